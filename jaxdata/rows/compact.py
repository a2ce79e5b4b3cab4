"""A batch as its tokens and the lengths of its segments: an eighth of what it lays out to.

Everything else follows, and is made on the device (`feed.device.expand`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdata.rows.reading import read_rows
from jaxdata.rows.table import Batch, Ints, RowTable

__all__ = ["compact"]

_FEWEST_SEGMENTS = 8


def compact(table: RowTable, rows: Ints, batch_size: int | None = None) -> Batch:
    """Read rows as the first of a compact batch of `batch_size`; the others are padding.

    Returns:
        `tokens`, (batch, seq_len) in the dtype of the data: the inputs, 0 in padding. Of every
        segment, (batch, segments): `slots` and `lead` (uint16 where that holds seq_len, else
        int32): its slots, and the first of them without loss; `last_target` (as `tokens`) and
        `ended` (bool): the target of its last slot, and whether that has none. *segments* is a
        power of two, so that a compiled function meets few shapes. Where sources store masks,
        `mask` (batch, seq_len), bool: whether the target's stored mask is 1.
    """
    size = len(rows) if batch_size is None else batch_size
    reading = read_rows(table, rows, size)
    dtype = np.result_type(*(documents.dtype for documents in table.documents))
    small = np.uint16 if table.seq_len < 2**16 else np.int32
    width = _width(int(reading.number.max(initial=-1)) + 1)
    place = reading.segments.row, reading.number
    batch: Batch = {"tokens": reading.inputs(dtype).reshape(size, table.seq_len)}
    columns: dict[str, tuple[Any, Any]] = {
        "slots": (small, reading.segments.slots),
        "lead": (small, reading.segments.lead),
        "last_target": (dtype, reading.last_targets()),
        "ended": (bool, reading.ended),
    }
    for name, (kind, values) in columns.items():
        batch[name] = np.zeros((size, width), kind)
        batch[name][place] = values
    if any(documents.masked for documents in table.documents):
        mask = np.ones(reading.total, bool)
        reading.apply_masks(mask)
        batch["mask"] = mask.reshape(size, table.seq_len)
    return batch


def _width(segments: int) -> int:
    """The power of two that holds the most segments of a row."""
    return max(_FEWEST_SEGMENTS, 1 << max(segments - 1, 0).bit_length())
