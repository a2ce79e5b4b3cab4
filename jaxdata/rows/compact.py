"""A batch as its tokens and the lengths of its segments: an eighth of the bytes of its arrays.

The device makes the arrays from them (`feed.device.expand`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from jaxdata.ragged import Ints
from jaxdata.rows.arrays import target_masks
from jaxdata.rows.extras import segment_extras
from jaxdata.rows.reading import Reading, read_batches
from jaxdata.rows.table import Batch, RowTable

_MIN_SEGMENTS = 8


def compact(
    table: RowTable, batches: Sequence[Ints], batch_size: int, extras: Sequence[str] = ()
) -> Iterator[Batch]:
    """Read rows into compact batches.

    The arguments are those of `rows.arrays.assemble`.

    Yields:
        `tokens`, (batch, seq_len + segments) in the dtype of the data: for each segment its inputs
        and the target of its last slot (0 if it has none), end to end, then zeros. For every
        segment, (batch, segments): `slots`, and `context`, the first slots without loss (uint16 if
        that holds seq_len, else int32); `ended` (bool), whether the last slot has no target.
        *segments* is a power of two, so that a compiled function meets few shapes. If sources
        store masks, `mask` (batch, seq_len), bool, of the targets. The extras are
        (batch, segments), -1 after the last segment; side arrays (batch, seq_len).
    """
    reading = read_batches(table, batches, batch_size)
    in_row = np.diff(reading.row_edges)
    fullest = in_row.reshape(-1, batch_size).max(axis=1).tolist()
    widths = [max(_MIN_SEGMENTS, 1 << max(most - 1, 0).bit_length()) for most in fullest]
    fill = reading.seq_len + np.repeat(widths, batch_size) - reading.filled - in_row
    columns = _columns(reading, max(widths))
    masks = None if reading.masks is None else target_masks(reading)
    added = segment_extras(table, reading, extras, widths) if extras else repeat({})
    for number, (width, tokens) in enumerate(zip(widths, reading.tokens(fill), strict=True)):
        rows = slice(number * batch_size, (number + 1) * batch_size)
        batch: Batch = {"tokens": tokens.reshape(batch_size, table.seq_len + width)}
        batch |= {name: column[rows, :width] for name, column in columns.items()}
        if masks is not None:
            batch["mask"] = next(masks).reshape(batch_size, table.seq_len)
        yield {**batch, **next(added)}


def _columns(reading: Reading, width: int) -> Batch:
    """The columns of every segment, (rows, width) for all batches."""
    small = np.uint16 if reading.seq_len < 2**16 else np.int32
    given: dict[str, tuple[Any, Any]] = {
        "slots": (small, reading.segments.slots),
        "context": (small, reading.segments.context),
        "ended": (bool, reading.ended),
    }
    index = reading.segments.row * width + reading.number
    columns: Batch = {}
    for name, (kind, values) in given.items():
        column = np.zeros((len(reading.row_edges) - 1) * width, kind)
        column[index] = values.astype(kind)
        columns[name] = column.reshape(-1, width)
    return columns
