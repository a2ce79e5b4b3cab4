"""grain as it comes: its ArrayRecord source, its packers, on the files of our dataset.

What its users write: documents longer than a row are truncated to one, inputs and targets are two
features. That reads less than we do, and leaves the rest of long documents out.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grain
import numpy as np
from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["PACKERS", "batches"]

Element = dict[str, Any]


def _first_fit(rows: grain.IterDataset[Element], seq_len: int, bins: int) -> Any:
    lengths = {"inputs": seq_len, "targets": seq_len}
    return FirstFitPackIterDataset(rows, length_struct=lengths, num_packing_bins=bins)


def _best_fit(rows: grain.IterDataset[Element], seq_len: int, bins: int) -> Any:
    lengths = {"inputs": seq_len, "targets": seq_len}
    return BestFitPackIterDataset(rows, length_struct=lengths, num_packing_bins=bins)


def _concat(rows: grain.IterDataset[Element], seq_len: int, _: int) -> Any:
    lengths = {"inputs": seq_len, "targets": seq_len}
    return grain.experimental.ConcatThenSplitIterDataset(rows, length_struct=lengths)


PACKERS: dict[str, Callable[..., Any]] = {
    "first fit": _first_fit,
    "best fit": _best_fit,
    "concat then split": _concat,
}


def batches(
    shards: list[str], packer: str, *, seq_len: int, batch_size: int, threads: bool
) -> Iterator[Element]:
    """Endless batches of packed rows.

    Args:
        shards: ArrayRecord files of uint16 documents.
        packer: a name in `PACKERS`; bin packers get as many bins as a batch has rows.
        seq_len: slots of a row.
        batch_size: rows of a batch.
        threads: grain's default of 16 threads and 500 elements ahead; else none of either.
    """
    options = None if threads else grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    documents = (
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards))
        .shuffle(seed=0)
        .map(partial(_decode, seq_len=seq_len))
        .repeat()
        .to_iter_dataset(options)
    )
    return iter(PACKERS[packer](documents, seq_len, batch_size).batch(batch_size))


def _decode(record: bytes, seq_len: int) -> Element:
    tokens = np.frombuffer(record, "<u2")[: seq_len + 1].astype(np.int32)
    return {"inputs": tokens[:-1], "targets": tokens[1:]}
