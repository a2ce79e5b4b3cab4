"""A batch as its tokens and the lengths of its segments: an eighth of what it lays out to.

Everything else follows, and is made on the device (`feed.device.expand`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdata.rows.assembly import target_masks
from jaxdata.rows.reading import Padding, Reading, read_batches
from jaxdata.rows.table import Batch, Ints, RowTable

__all__ = ["compact"]

_FEWEST_SEGMENTS = 8


def compact(table: RowTable, batches: Sequence[Ints], batch_size: int) -> Iterator[Batch]:
    """Read rows into compact batches.

    Args:
        table: where the rows come from.
        batches: of each its rows; where they are fewer than `batch_size`, the others are padding.
        batch_size: rows of a batch.

    Yields:
        `tokens`, (batch, seq_len + segments) in the dtype of the data: of each segment its inputs
        and the target of its last slot (0 where it has none), end to end, zeros behind. Of every
        segment, (batch, segments): `slots` and `lead` (uint16 where that holds seq_len, else
        int32): its slots, and the first of them without loss; `ended` (bool): the last slot has
        no target. *segments* is a power of two, so that a compiled function meets few shapes.
        Where sources store masks, `mask` (batch, seq_len), bool: those of the targets.
    """
    for reading in read_batches(table, batches, batch_size):
        yield _compact(reading, batch_size, table.seq_len)


def _compact(reading: Reading, rows: int, seq_len: int) -> Batch:
    width = _width(int(reading.number.max(initial=-1)) + 1)
    tokens = reading.stream(_row_padding(reading, seq_len + width))
    batch: Batch = {"tokens": tokens.reshape(rows, seq_len + width)}
    small = np.uint16 if seq_len < 2**16 else np.int32
    columns: dict[str, tuple[Any, Any]] = {
        "slots": (small, reading.segments.slots),
        "lead": (small, reading.segments.lead),
        "ended": (bool, reading.ended),
    }
    place = reading.segments.row * width + reading.number
    for name, (kind, values) in columns.items():
        column = np.zeros(rows * width, kind)
        column[place] = values
        batch[name] = column.reshape(rows, width)
    if reading.masks is not None:
        batch["mask"] = target_masks(reading, reading.gaps()).reshape(rows, seq_len)
    return batch


def _row_padding(reading: Reading, width: int) -> Padding:
    """What fills every row's tokens up to `width`."""
    tokens = np.zeros(len(reading.begin) + 1, np.int64)
    np.cumsum(reading.segments.slots + 1, out=tokens[1:])
    before = tokens[reading.row_edges]
    return reading.row_edges[1:], width - (before[1:] - before[:-1])


def _width(segments: int) -> int:
    """The power of two that holds the most segments of a row."""
    return max(_FEWEST_SEGMENTS, 1 << max(segments - 1, 0).bit_length())
