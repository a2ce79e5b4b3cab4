"""A batch as its tokens and the lengths of its segments: an eighth of what it lays out to.

Everything else follows, and is made on the device (`feed.device.expand`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdata.rows.assembly import target_masks
from jaxdata.rows.reading import Reading, read_batches
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
    reading = read_batches(table, batches, batch_size)
    in_row = np.diff(reading.row_edges)
    widths = [_width(int(most)) for most in in_row.reshape(-1, batch_size).max(axis=1)]
    fill = reading.seq_len + np.repeat(widths, batch_size) - reading.filled - in_row
    columns = _columns(reading, max(widths))
    masks = None if reading.masks is None else target_masks(reading)
    for number, (width, tokens) in enumerate(zip(widths, reading.tokens(fill), strict=True)):
        rows = slice(number * batch_size, (number + 1) * batch_size)
        batch: Batch = {"tokens": tokens.reshape(batch_size, table.seq_len + width)}
        batch |= {name: column[rows, :width] for name, column in columns.items()}
        if masks is not None:
            batch["mask"] = next(masks).reshape(batch_size, table.seq_len)
        yield batch


def _columns(reading: Reading, width: int) -> Batch:
    """What is said of every segment, (rows, width) of all batches."""
    small = np.uint16 if reading.seq_len < 2**16 else np.int32
    given: dict[str, tuple[Any, Any]] = {
        "slots": (small, reading.segments.slots),
        "lead": (small, reading.segments.lead),
        "ended": (bool, reading.ended),
    }
    place = reading.segments.row * width + reading.number
    columns: Batch = {}
    for name, (kind, values) in given.items():
        column = np.zeros((len(reading.row_edges) - 1) * width, kind)
        column[place] = values.astype(kind)
        columns[name] = column.reshape(-1, width)
    return columns


def _width(segments: int) -> int:
    """The power of two that holds the most segments of a row."""
    return max(_FEWEST_SEGMENTS, 1 << max(segments - 1, 0).bit_length())
