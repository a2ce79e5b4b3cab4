"""`jaxdata tokenizer`."""

from __future__ import annotations

import time
from itertools import chain
from typing import Literal

import click

from jaxdata import tokenizers
from jaxdata.cli.convert_options import token_texts
from jaxdata.converter import texts


@click.group()
def tokenizer() -> None:
    """Train a tokenizer on raw text files."""


@tokenizer.command(
    epilog="""\b
Example:
  jaxdata tokenizer train corpus/ --output tokenizer.model --vocab-size 8192
  jaxdata convert corpus/ --output data/mine --source web --tokenizer sentencepiece:tokenizer.model
"""
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    required=True,
    help="The model file to write.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(300),
    default=8192,
    show_default=True,
    help="Number of tokens.",
)
@click.option(
    "--digits",
    type=click.IntRange(1),
    help="Maximum digits per token: with 2, 12345 becomes 12, 34 and 5.",
)
@click.option("--text-key", default="text", show_default=True, help="Key or column of the text.")
@click.option("--max-bytes", type=click.IntRange(1), help="Train on at most this many bytes.")
@click.option(
    "--model-type",
    type=click.Choice(["bpe", "unigram"]),
    default="bpe",
    show_default=True,
    help="SentencePiece's algorithm.",
)
@click.option(
    "--character-coverage",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9995,
    show_default=True,
    help="Share of the text whose characters get a token; rarer ones are written in bytes.",
)
@click.option(
    "--special",
    type=token_texts,
    multiple=True,
    metavar="TOKENS",
    help="Special tokens to reserve an id for, separated by commas, such as "
    "'<|fim_prefix|>,<|fim_middle|>,<|fim_suffix|>'. May be given several times.",
)
def train(
    inputs: tuple[str, ...],
    output: str,
    vocab_size: int,
    digits: int | None,
    text_key: str,
    max_bytes: int | None,
    model_type: Literal["bpe", "unigram"],
    character_coverage: float,
    special: tuple[list[str], ...],
) -> None:
    """Train a lossless SentencePiece tokenizer.

    INPUT is as in jaxdata convert: files, folders or globs of .jsonl, .json, .txt, .parquet and
    more, compressed or in archives.
    """
    click.echo(f"training a {model_type} vocabulary of {vocab_size:,} tokens ...", err=True)
    started = time.monotonic()
    size = tokenizers.train(
        texts(list(inputs), text_key),
        output,
        vocab_size=vocab_size,
        model_type=model_type,
        digits=digits,
        max_bytes=max_bytes,
        character_coverage=character_coverage,
        special=list(chain.from_iterable(special)),
    )
    seconds = time.monotonic() - started
    click.echo(
        f"wrote {output}: {vocab_size:,} tokens from {size / 1e6:,.1f} MB in {seconds:.1f} s"
    )
    click.echo(f"use it: jaxdata convert INPUT... --tokenizer sentencepiece:{output}")
