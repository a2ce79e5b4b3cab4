"""What a trainer and a config have to agree on, and what its log says of the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.config import Config, open_data
from jaxdata.errors import InputError
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.rows.table import Batch

Run = str | Path | Mapping[str, Any] | Config
"""a config as `jaxdata.load` takes it"""


def measures(loader: BatchIterator) -> dict[str, float]:
    """What a trainer's own log says of its data: tokens and epochs by source, seconds waited."""
    return {f"data/{name}": value for name, value in loader.scalars().items()}


def check_seq_len(config: Config, trained: int, trainer: str) -> None:
    """Refuse rows of another length than the trainer's sequences."""
    if config.pack.seq_len != trained:
        raise InputError(
            f"the config packs rows of pack.seq_len={config.pack.seq_len}, but {trainer} is "
            f"{trained}: set pack.seq_len to {trained}, or {trainer} to {config.pack.seq_len}"
        )


def check_vocabulary(config: Config, trained: int, trainer: str) -> None:
    """Refuse a model whose vocabulary lacks ids of the data: jax clips them without a word."""
    held = vocabulary(config)
    if held is not None and held > trained:
        raise InputError(
            f"the data has ids below {held:,}, but {trainer} is {trained:,}: ids from {trained:,} "
            f"on have no embedding; set it to at least {held:,}, or give the data it was made for"
        )


def vocabulary(config: Config) -> int | None:
    """The ids of the data are below this; None where its tokenizer is unknown."""
    dataset = open_data(config)
    manifest = getattr(dataset, "manifest", None)
    try:
        return int((manifest or dataset).tokenizer.vocab_size)
    except InputError:
        return None


def check_restarts(batch: Batch, trainer: str) -> None:
    """Refuse positions that run along the row, where they tell a trainer its documents."""
    segments, positions = batch["segment_ids"], batch["positions"]
    begins = (segments[..., 1:] != segments[..., :-1]) & (segments[..., 1:] > 0)
    if np.any(positions[..., 1:][begins]):
        raise InputError(
            f"{trainer} finds the documents of a row by positions that restart, but the positions "
            "of these rows run along the row: pack with positions='segment'"
        )
