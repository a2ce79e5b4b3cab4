"""`jaxdata tokenizer`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from jaxdata import tokenizers
from jaxdata.base.progress import Advance, progress_bar
from jaxdata.cli.options import Command, options_of, token_texts, was_typed
from jaxdata.converter import texts

_BYTE_LEVEL = "byte-level"
_ONLY = {"split": True, "character_coverage": False}
"""options of one kind: whether that is byte-level"""


@click.group()
def tokenizer() -> None:
    """Train a tokenizer on raw text files."""


@tokenizer.command(
    cls=Command,
    front=["output", "vocab_size", "model_type", "text_key", "special"],
    epilog="""\b
Example:
  jaxdata tokenizer train text/ --output tokenizer.model --vocab-size 8192
  jaxdata convert text/ --output data/mine --tokenizer tokenizer.model

\b
Byte-level BPE, as of GPT-4, for transformers and tiktoken:
  jaxdata tokenizer train text/ --model-type byte-level --output my-tokenizer/
  jaxdata convert text/ --output data/mine --tokenizer my-tokenizer
""",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--output",
    type=click.Path(),
    required=True,
    help="The model file to write; with byte-level the folder, of tokenizer.json (transformers) "
    "and ranks.tiktoken.",
)
@options_of(
    tokenizers.train,
    vocab_size={"help": "Number of tokens.", "type": click.IntRange(300), "metavar": "N"},
    digits=(
        "Maximum digits per token: with 2, 12345 becomes 12, 34 and 5; so it is with byte-level if "
        "nothing is given.",
        1,
    ),
)
@click.option(
    "--text-key",
    metavar="KEY",
    default="text",
    show_default=True,
    help="Key or column of the text; of conversations messages.content.",
)
@options_of(tokenizers.train, max_bytes=("Train on at most this many bytes.", 1))
@click.option(
    "--model-type",
    type=click.Choice(["bpe", "unigram", _BYTE_LEVEL]),
    default="bpe",
    show_default=True,
    help="SentencePiece's BPE or unigram; or byte-level BPE, whose words a rule splits "
    "(needs jaxdata[hf]).",
)
@options_of(
    tokenizers.train_byte_level, split="Rule that splits texts into words, with byte-level."
)
@options_of(
    tokenizers.train,
    character_coverage={
        "help": "Share of the text whose characters get a token; rarer ones are written in bytes.",
        "type": click.FloatRange(0, 1, min_open=True),
    },
    special={
        "help": "Special tokens to reserve an id for, separated by commas, such as "
        "'<|fim_prefix|>,<|fim_middle|>,<|fim_suffix|>'. May be given several times.",
        "type": token_texts,
        "multiple": True,
        "metavar": "TOKENS",
    },
    pad_id=(
        "Id of a padding token, <pad>; SentencePiece: 3 or more. The ids after it move up.",
        0,
    ),
)
@click.pass_context
def train(
    context: click.Context, /, inputs: tuple[str, ...], text_key: str, **options: Any
) -> None:
    """Train a lossless tokenizer, SentencePiece's or byte-level BPE.

    INPUT is as in jaxdata convert: files, folders or globs of .jsonl, .json, .txt, .parquet and
    more, compressed or in archives.
    """
    kind, vocab_size = options["model_type"], options["vocab_size"]
    output = options.pop("output")
    options["special"] = list(chain.from_iterable(options["special"]))
    train_one, use = _trainer(context, output, options)
    click.echo(f"training a {kind} vocabulary of {vocab_size:,} tokens ...", err=True)
    started = time.monotonic()
    with progress_bar("reading", in_bytes=True) as advance:
        corpus = _counted(texts(list(inputs), text_key), advance, options["max_bytes"])
        size = train_one(corpus, output, **options)
    seconds = time.monotonic() - started
    click.echo(
        f"wrote {output}: {vocab_size:,} tokens from {size / 1e6:,.1f} MB in {seconds:.1f} s"
    )
    click.echo(f"use it: jaxdata convert INPUT... --tokenizer {use}")


def _trainer(
    context: click.Context, output: str, options: dict[str, Any]
) -> tuple[Callable[..., int], str]:
    """What trains, and how its result is named; leaves it the options that it takes."""
    byte_level = options["model_type"] == _BYTE_LEVEL
    for name, of_byte_level in _ONLY.items():
        if of_byte_level == byte_level:
            continue
        if was_typed(context, name):
            kinds = _BYTE_LEVEL if of_byte_level else "bpe or unigram"
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} goes with --model-type {kinds}", context)
        del options[name]
    if byte_level:
        del options["model_type"]
        if options["digits"] is None:
            del options["digits"]
        return tokenizers.train_byte_level, f"hf:{output}"
    if Path(output).is_dir():
        raise click.UsageError(f"--output {output} is a folder; expected a file", context)
    return tokenizers.train, f"sentencepiece:{output}"


def _counted(corpus: Iterable[str], advance: Advance, most: int | None) -> Iterator[str]:
    """The texts, and their bytes reported."""
    done = 0
    for text in corpus:
        yield text
        done += len(text)
        advance(done, most)
