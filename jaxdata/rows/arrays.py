"""Rows as arrays: a whole batch at once from its segments."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyArray, Bools, Ints
from jaxdata.rows.extras import slot_extras
from jaxdata.rows.reading import EXTRAS, BatchSegments, read_batches
from jaxdata.rows.table import Batch, RowTable

_MOST_FREE = 8


class BufferPool:
    """Memory for batches, reused once nothing refers to it; safe between threads.

    Fresh arrays of this size come from the kernel page by page, which costs as much as filling
    them.

    Args:
        allocate: makes a writable buffer of a number of bytes.
        most_free: maximum number of free buffers; None for no limit.

    >>> pool = BufferPool()
    >>> array = pool.take(64)
    >>> part, memory = array[:8], array.ctypes.data
    >>> del array
    >>> pool.take(64).ctypes.data == memory  # a part of it is still in use
    False
    >>> del part
    >>> pool.take(64).ctypes.data == memory
    True
    """

    def __init__(
        self, allocate: Callable[[int], Any] = bytearray, most_free: int | None = _MOST_FREE
    ) -> None:
        self._allocate = allocate
        self._free: deque[Any] = deque(maxlen=most_free)
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """An uninitialised array of `size` bytes.

        The array and its views keep the memory in use; it is free when the last of them is gone.
        """
        memory = self._find(size)
        # A view of an array made here refers to that array, not to the memory below it.
        whole = np.frombuffer(memory, np.uint8)
        self._held[id(memory)] = weakref.ref(whole, partial(self._release, memory))
        return whole

    def _find(self, size: int) -> Any:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(memory) == size:
                return memory
            self._free.appendleft(memory)
        return self._allocate(size)

    def _release(self, memory: Any, _: Any) -> None:
        del self._held[id(memory)]
        self._free.append(memory)


HOST_BUFFERS = BufferPool()
"""memory of the batches that this process makes for itself"""


def assemble(
    table: RowTable,
    batches: Sequence[Ints],
    batch_size: int,
    extras: Sequence[str] = (),
    buffers: BufferPool = HOST_BUFFERS,
) -> Iterator[Batch]:
    """Read rows into batches.

    Args:
        table: where the rows come from.
        batches: the rows of each batch; a batch of fewer than `batch_size` is completed with
            padding.
        batch_size: rows of a batch.
        extras: arrays to add, some of `rows.extras.EXTRAS` and side arrays.
        buffers: where the memory of the batches comes from.

    Yields:
        `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool), each of
        shape (batch_size, seq_len), and the extras.
    """
    reading = read_batches(table, batches, batch_size)
    nothing: Iterator[Any] = repeat(None)
    masks, blanks = reading.target_masks() or nothing, reading.input_blanks() or nothing
    added = slot_extras(reading, extras) if extras else repeat({})
    made = zip(reading.batches, reading.tokens(), masks, blanks, added, strict=False)
    for segments, stream, mask, blank, more in made:
        batch = _allocate(buffers, batch_size * table.seq_len)
        _write_tokens(batch, segments, stream)
        _write_segments(batch, segments)
        _write_loss(batch["loss_mask"], segments, mask)
        for name in ("targets", "segment_ids", "positions", "loss_mask"):  # inputs are 0 there
            for first, stop in segments.padding:
                batch[name][first:stop] = 0
            batch[name][segments.gaps] = 0
        if blank is not None:
            _clear_blank(batch, more, blank)
        if table.positions == "row":
            along = _slots(batch_size * table.seq_len) % np.int32(table.seq_len)
            batch["positions"] = along * (batch["segment_ids"] > 0)
        arrays = {name: array.reshape(batch_size, -1) for name, array in batch.items()}
        yield {**arrays, **more}


def _allocate(buffers: BufferPool, total: int) -> Batch:
    """The arrays of a batch, not yet written, in one buffer."""
    buffer = buffers.take(total * 17)
    words = buffer[: total * 16].view(np.int32).reshape(4, total)
    names = ("inputs", "targets", "segment_ids", "positions")
    batch: Batch = dict(zip(names, words, strict=True))
    batch["loss_mask"] = buffer[total * 16 :].view(bool)
    return batch


def _write_tokens(batch: Batch, segments: BatchSegments, stream: AnyArray) -> None:
    """Inputs and targets: the inputs shifted by one slot, except in the last slot of a segment."""
    inputs, targets = batch["inputs"], batch["targets"]
    inputs[:] = np.delete(stream, segments.last)
    targets[:-1] = inputs[1:]
    targets[segments.end - 1] = stream[segments.last]


def _write_segments(batch: Batch, segments: BatchSegments) -> None:
    """The number of each slot's segment, and its position there."""
    ids, positions = batch["segment_ids"], batch["positions"]
    # A run is a segment and the padding after it; there may be padding before the first.
    bounds = np.concatenate([[0], segments.begin, [len(ids)]]).astype(np.int32)
    run = bounds[1:] - bounds[:-1]
    ids[:] = np.repeat(np.append(0, segments.number + 1).astype(np.int32), run)
    np.subtract(_slots(len(ids)), np.repeat(bounds[:-1], run), out=positions)


def _write_loss(loss: Bools, segments: BatchSegments, mask: Bools | None) -> None:
    loss[:] = True if mask is None else mask
    loss[(segments.end - 1)[segments.ended]] = False
    for at in np.flatnonzero(segments.context).tolist():
        loss[segments.begin[at] : segments.begin[at] + segments.context[at]] = False


def _clear_blank(batch: Batch, more: Batch, blank: Bools) -> None:
    """Make padding of the slots of deleted documents; side arrays are 0 already."""
    for array in batch.values():
        array[blank] = 0
    for name in EXTRAS:
        if name in more:
            more[name].reshape(-1)[blank] = -1


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)
