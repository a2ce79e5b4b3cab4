"""Laying a whole batch out at once: from segments to arrays, without rows in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.reading import Gaps, Reading, read_batches
from jaxdata.rows.slabs import Slabs
from jaxdata.rows.table import Batch, Ints, RowTable

__all__ = ["allocate_from", "assemble", "target_masks"]


def assemble(table: RowTable, batches: Sequence[Ints], batch_size: int) -> Iterator[Batch]:
    """Read rows into batches.

    Args:
        table: where the rows come from.
        batches: of each its rows; where they are fewer than `batch_size`, the others are padding.
        batch_size: rows of a batch.

    Yields:
        `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool), each of
        shape (batch_size, seq_len).
    """
    for reading in read_batches(table, batches, batch_size):
        batch = _empty(reading.total)
        gaps = reading.gaps()
        _write_tokens(batch, reading, gaps)
        _write_layout(batch, reading, gaps)
        if table.positions == "row":
            batch["positions"] = _along_rows(batch["segment_ids"], table.seq_len)
        yield {name: array.reshape(batch_size, table.seq_len) for name, array in batch.items()}


_slabs = Slabs()


def allocate_from(slabs: Slabs) -> None:
    """Have the batches of this process made in other memory; a worker's, in what it shares."""
    global _slabs
    _slabs = slabs


def _empty(total: int) -> Batch:
    """Arrays of a batch in one slab, not yet written."""
    slab = _slabs.take(total * 17)
    words = slab[: total * 16].view(np.int32).reshape(4, total)
    names = ("inputs", "targets", "segment_ids", "positions")
    batch: Batch = dict(zip(names, words, strict=True))
    batch["loss_mask"] = slab[total * 16 :].view(bool)
    return batch


def _write_tokens(batch: Batch, reading: Reading, gaps: Gaps) -> None:
    """Inputs, and targets: the inputs one slot on, but for the last slot of each segment."""
    stream = reading.stream(gaps.padding)
    last = reading.begin + reading.segments.slots  # in inputs with what follows each segment
    extra = last + np.arange(len(last))
    keep = np.ones(len(stream), bool)
    keep[extra] = False
    inputs, targets = batch["inputs"], batch["targets"]
    inputs[:] = stream[keep]
    targets[:-1] = inputs[1:]
    targets[last - 1] = stream[extra]
    gaps.clear(targets)


def _write_layout(batch: Batch, reading: Reading, gaps: Gaps) -> None:
    """Everything that is not tokens."""
    # A run is a segment with the padding behind it; before the first segment there may be some.
    bounds = np.concatenate([[0], reading.begin, [reading.total]]).astype(np.int32)
    run = bounds[1:] - bounds[:-1]
    ids, positions, loss = batch["segment_ids"], batch["positions"], batch["loss_mask"]
    ids[:] = np.repeat(np.append(0, reading.number + 1).astype(np.int32), run)
    np.subtract(_slots(reading.total), np.repeat(bounds[:-1], run), out=positions)
    _write_loss(loss, reading, gaps)
    for array in (ids, positions, loss):
        gaps.clear(array)


def _write_loss(loss: NDArray[np.bool_], reading: Reading, gaps: Gaps) -> None:
    loss[:] = True if reading.masks is None else target_masks(reading, gaps)
    begin, slots, lead = reading.begin, reading.segments.slots, reading.segments.lead
    loss[(begin + slots - 1)[reading.ended]] = False
    for at in np.flatnonzero(lead).tolist():
        loss[begin[at] : begin[at] + lead[at]] = False


def target_masks(reading: Reading, gaps: Gaps) -> NDArray[np.bool_]:
    """(total,) stored masks of the targets."""
    stream = reading.mask_stream(gaps.padding)
    keep = np.ones(len(stream), bool)
    keep[reading.begin + np.arange(len(reading.begin))] = False  # no target has the first's
    return stream[keep]


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)


def _along_rows(segment_ids: NDArray[np.int32], seq_len: int) -> NDArray[np.int32]:
    """Positions that run on from segment to segment."""
    return _slots(len(segment_ids)) % np.int32(seq_len) * (segment_ids > 0)
