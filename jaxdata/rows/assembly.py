"""Laying a whole batch out at once: from segments to arrays, without rows in between."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.reading import Reading, read_rows
from jaxdata.rows.table import Batch, Ints, RowTable

__all__ = ["assemble"]


def assemble(table: RowTable, rows: Ints, batch_size: int | None = None) -> Batch:
    """Read rows into a batch.

    Args:
        table: where the rows come from.
        rows: int64 (n,) row indices.
        batch_size: rows of the batch; those after the *n* given are padding. Default: *n*.

    Returns:
        ``inputs``, ``targets``, ``segment_ids``, ``positions`` (int32) and ``loss_mask`` (bool),
        each of shape (batch_size, seq_len).
    """
    size = len(rows) if batch_size is None else batch_size
    reading = read_rows(table, rows, size)
    inputs = reading.inputs(np.dtype(np.int32))
    batch = {"inputs": inputs, "targets": _targets(reading, inputs), **_lay_out(reading)}
    if table.positions == "row":
        batch["positions"] = _along_rows(batch["segment_ids"], table.seq_len)
    return {name: array.reshape(size, table.seq_len) for name, array in batch.items()}


def _targets(reading: Reading, inputs: NDArray[np.int32]) -> NDArray[np.int32]:
    """The inputs one slot on, but for the last slot of each segment."""
    targets = np.empty_like(inputs)
    targets[:-1] = inputs[1:]
    targets[reading.last] = reading.last_targets()
    for _, a, b in reading.gaps:
        targets[a:b] = 0
    return targets


def _lay_out(reading: Reading) -> Batch:
    """Everything that is not tokens."""
    begin, total = reading.begin, reading.total
    # A run is a segment with the padding behind it; before the first segment there may be some.
    run = np.diff(begin, prepend=0, append=total)
    ids = np.repeat(np.append(0, reading.number + 1).astype(np.int32), run)
    positions = np.repeat(np.append(0, begin).astype(np.int32), run)
    np.subtract(_slots(total), positions, out=positions)
    loss = _loss(reading)
    for array in (ids, positions, loss):
        for _, a, b in reading.gaps:
            array[a:b] = 0
    return {"loss_mask": loss, "segment_ids": ids, "positions": positions}


def _loss(reading: Reading) -> NDArray[np.bool_]:
    loss = np.ones(reading.total, bool)
    loss[reading.last[reading.ended]] = False
    lead = reading.segments.lead
    for at in np.flatnonzero(lead).tolist():
        loss[reading.begin[at] : reading.begin[at] + lead[at]] = False
    reading.apply_masks(loss)
    return loss


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)


def _along_rows(segment_ids: NDArray[np.int32], seq_len: int) -> NDArray[np.int32]:
    """Positions that run on from segment to segment."""
    return _slots(len(segment_ids)) % np.int32(seq_len) * (segment_ids > 0)
