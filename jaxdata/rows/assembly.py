"""Laying a whole batch out at once: from segments to arrays, without rows in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.reading import Part, Reading, read_batches
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
    reading = read_batches(table, batches, batch_size)
    streams = reading.tokens(table.seq_len - reading.filled)
    masks = repeat(None) if reading.masks is None else target_masks(reading)
    for part, stream, mask in zip(reading.parts(), streams, masks, strict=False):
        batch = _empty(batch_size * table.seq_len)
        _write_tokens(batch, part, stream)
        _write_layout(batch, part)
        _write_loss(batch["loss_mask"], part, mask)
        _clear_padding(batch, part)
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


def _write_tokens(batch: Batch, part: Part, stream: NDArray[Any]) -> None:
    """Inputs, and targets: the inputs one slot on, but for the last slot of each segment."""
    extra = part.end + np.arange(len(part.end))  # what follows each segment, in the stream
    keep = np.ones(len(stream), bool)
    keep[extra] = False
    inputs, targets = batch["inputs"], batch["targets"]
    inputs[:] = stream[keep]
    targets[:-1] = inputs[1:]
    targets[part.end - 1] = stream[extra]


def _write_layout(batch: Batch, part: Part) -> None:
    """Numbers of segments and positions in them."""
    ids, positions = batch["segment_ids"], batch["positions"]
    # A run is a segment with the padding behind it; before the first segment there may be some.
    bounds = np.concatenate([[0], part.begin, [len(ids)]]).astype(np.int32)
    run = bounds[1:] - bounds[:-1]
    ids[:] = np.repeat(np.append(0, part.number + 1).astype(np.int32), run)
    np.subtract(_slots(len(ids)), np.repeat(bounds[:-1], run), out=positions)


def _write_loss(loss: NDArray[np.bool_], part: Part, mask: NDArray[np.bool_] | None) -> None:
    loss[:] = True if mask is None else mask
    loss[(part.end - 1)[part.ended]] = False
    for at in np.flatnonzero(part.lead).tolist():
        loss[part.begin[at] : part.begin[at] + part.lead[at]] = False


def _clear_padding(batch: Batch, part: Part) -> None:
    """Set padding to zero; in inputs it is."""
    for first, stop in part.padding:
        for name in ("targets", "segment_ids", "positions", "loss_mask"):
            batch[name][first:stop] = 0


def target_masks(reading: Reading) -> Iterator[NDArray[np.bool_]]:
    """Of each batch the stored masks of its targets, row by row."""
    streams = reading.token_masks(reading.seq_len - reading.filled)
    for part, stream in zip(reading.parts(), streams, strict=True):
        keep = np.ones(len(stream), bool)
        keep[part.begin + np.arange(len(part.begin))] = False  # no target has the first's
        yield stream[keep]


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)


def _along_rows(segment_ids: NDArray[np.int32], seq_len: int) -> NDArray[np.int32]:
    """Positions that run on from segment to segment."""
    return _slots(len(segment_ids)) % np.int32(seq_len) * (segment_ids > 0)
