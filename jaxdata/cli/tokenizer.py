"""`jaxdata tokenizer`."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import click

from jaxdata import tokenizers
from jaxdata.base.errors import sized
from jaxdata.base.progress import Advance, progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.options import command, options_of, refuse
from jaxdata.converter import texts


@click.group()
def tokenizer() -> None:
    """Train a tokenizer on raw text files."""


_EPILOG = """\b
Example:
  jaxdata tokenizer train text/ --output tokenizer.model --vocab-size 8192
  jaxdata convert text/ --output data/mine --tokenizer tokenizer.model

\b
Byte-level BPE, as of GPT-4, for transformers and tiktoken:
  jaxdata tokenizer train text/ --model-type byte-level --output my-tokenizer/
  jaxdata convert text/ --output data/mine --tokenizer my-tokenizer
"""


@command(
    front=["output", "vocab_size", "model_type", "text_key", "special"],
    epilog=_EPILOG,
    options=[
        *options_of(
            tokenizers.train,
            vocab_size={"help": "Number of tokens.", "ge": 300},
            digits={
                "help": "Maximum digits per token: with 2, 12345 becomes 12, 34 and 5; so it is "
                "with byte-level if nothing is given.",
                "ge": 1,
            },
            max_bytes={"help": "Train on at most this many bytes.", "ge": 1},
            character_coverage={
                "help": "Share of the text whose characters get a token; rarer ones are written in "
                "bytes.",
                "ge": 0,
                "le": 1,
            },
            special={
                "help": "Special tokens to reserve an id for, separated by commas, such as "
                "'<|fim_prefix|>,<|fim_middle|>,<|fim_suffix|>'.",
                "metavar": "TOKENS",
            },
            pad_id={
                "help": "Id of a padding token, <pad>; SentencePiece: 3 or more. The ids after it "
                "move up.",
                "ge": 0,
            },
        ),
        *options_of(
            tokenizers.train_byte_level, split="Rule that splits texts into words, with byte-level."
        ),
    ],
)
def train(
    inputs: tuple[str, ...],
    output: str = setting(
        ...,
        "The model file to write; with byte-level the folder, of tokenizer.json (transformers) "
        "and ranks.tiktoken.",
        metavar="PATH",
    ),
    text_key: str = setting(
        "text", "Key or column of the text; of conversations messages.content.", metavar="KEY"
    ),
    model_type: Literal["bpe", "unigram", "byte-level"] = setting(
        "bpe",
        "SentencePiece's BPE or unigram; or byte-level BPE, whose words a rule splits (needs "
        "jaxdata[hf]).",
    ),
    **options: Any,
) -> None:
    """Train a lossless tokenizer, SentencePiece's or byte-level BPE.

    INPUT is as in jaxdata convert: files, folders or globs of .jsonl, .json, .txt, .parquet and
    more, compressed or in archives.
    """
    options["special"] = options["special"] or ()
    train_one: Callable[..., int]
    if model_type == "byte-level":
        refuse(("character_coverage",), "{} goes with --model-type bpe or unigram")
        del options["character_coverage"]
        if options["digits"] is None:
            del options["digits"]
        train_one, use = tokenizers.train_byte_level, f"hf:{output}"
    else:
        refuse(("split",), "{} goes with --model-type byte-level")
        del options["split"]
        if Path(output).is_dir():
            raise click.UsageError(f"--output {output} is a folder; expected a file")
        options["model_type"] = model_type
        train_one, use = tokenizers.train, f"sentencepiece:{output}"
    vocab_size, started = options["vocab_size"], time.monotonic()
    click.echo(f"training a {model_type} vocabulary of {vocab_size:,} tokens ...", err=True)
    with progress_bar("reading", in_bytes=True) as advance:
        corpus = _noted(texts(list(inputs), text_key), advance, options["max_bytes"])
        size = train_one(corpus, output, **options)
    seconds = time.monotonic() - started
    click.echo(f"wrote {output}: {vocab_size:,} tokens from {sized(size)} in {seconds:.1f} s")
    click.echo(f"use it: jaxdata convert INPUT... --tokenizer {use}")


tokenizer.add_command(train)


def _noted(corpus: Iterable[str], advance: Advance, most: int | None) -> Iterator[str]:
    """The texts, and their bytes reported."""
    done = 0
    for text in corpus:
        yield text
        done += len(text.encode())
        advance(done, most)
