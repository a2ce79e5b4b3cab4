"""Batches from a worker process to its parent through shared memory, without names or leaks.

A worker writes each batch into a memory file of its own and passes the file's descriptor once;
both map it. The parent hands out arrays over that memory, and gives it back to the worker when
nothing refers to them any more: a delivered batch never changes. The files have no name, so
nothing is left behind however the processes end.

A batch is a few numbers each way, in pipes: where its arrays lie (the number of a layout) and in
which buffer; and `_RECEIVED` with the numbers of buffers that are free again. What the numbers mean
is told before they are first used, on the connection.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.numbers import NumberReader, NumberWriter
from jaxdata.feed.schedule import Span
from jaxdata.processes import Worker
from jaxdata.rows.slabs import Slabs
from jaxdata.rows.table import Batch

__all__ = ["BatchReceiver", "BatchSender"]

_ALIGNMENT = 64  # bytes: what jax wants to take numpy memory on a CPU as it is
_Layout = tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
"""Name, dtype, shape and first byte of each array in a slab."""
_GRAIN = 2**16  # bytes: batches that differ a little in size use the same buffers
_MOST_LAYOUTS = 64  # that are remembered: some functions make arrays of ever other shapes
_RECEIVED, _SPANS = -1, -2
_LAYOUT, _BUFFER = -3, -4


class BatchSender:
    """The worker's side. Batches made in its `slabs` are handed over without a copy.

    Args:
        connection: to the parent.
        told, done: descriptors of the pipes from the parent and to it.
    """

    def __init__(self, connection: Connection, told: int, done: int) -> None:
        self._connection = connection
        self._told, self._done = NumberReader(told), NumberWriter(done)
        self._memory: list[mmap.mmap] = []
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        self._lent: dict[int, NDArray[Any]] = {}
        self._layouts: dict[_Layout, int] = {}
        self.slabs = Slabs(self._allocate, most_free=None)

    def _allocate(self, size: int) -> mmap.mmap:
        handle = _memory_file(size)
        memory = mmap.mmap(handle, size)
        number = len(self._memory)
        self._memory.append(memory)
        self._numbers[id(memory)], self._handles[number] = number, handle
        return memory

    def listen(self) -> tuple[int, list[Span]]:
        """Wait for the parent: how many batches it has received, and spans that it tells of."""
        numbers = self._told.read()
        if not numbers:
            raise EOFError("the parent is gone")
        received, spans = 0, list[Span]()
        for number in numbers:
            if number == _RECEIVED:
                received += 1
            elif number == _SPANS:
                spans += self._connection.recv()
            else:
                del self._lent[number]
        return received, spans

    def send(self, batch: Batch) -> None:
        """Tell the parent where a batch is; what is not in shared memory is copied there."""
        whole = self._slab_of(batch)
        if whole is None:
            whole, layout = self._copied(batch)
        else:
            start = _address(whole)
            layout = tuple((n, a.dtype, a.shape, _address(a) - start) for n, a in batch.items())
        number = self._numbers[id(_memory_below(whole))]
        self._lent[number] = whole
        if layout not in self._layouts:
            self._teach(layout)
        if number in self._handles:
            self._lend(number)
        self._done.write(self._layouts[layout], number)

    def _teach(self, layout: _Layout) -> None:
        number = len(self._layouts)
        if number == _MOST_LAYOUTS:
            number = self._layouts.pop(next(iter(self._layouts)))
        self._layouts[layout] = number
        self._done.write(_LAYOUT, number)
        self._connection.send(layout)

    def _lend(self, number: int) -> None:
        handle = self._handles.pop(number)
        self._done.write(_BUFFER, number)
        send_handle(self._connection, handle, os.getppid())
        os.close(handle)

    def _slab_of(self, batch: Batch) -> NDArray[Any] | None:
        """The slab that all arrays of a batch are in, if they are."""
        owners = {id(array.base): array.base for array in batch.values()}
        whole = next(iter(owners.values()), None)
        plain = all(array.flags.c_contiguous for array in batch.values())
        shared = plain and len(owners) == 1 and id(_memory_below(whole)) in self._numbers
        return whole if shared else None

    def _copied(self, batch: Batch) -> tuple[NDArray[Any], _Layout]:
        size, layout = _end_to_end(tuple((n, a.dtype, a.shape) for n, a in batch.items()))
        whole = self.slabs.take(size)
        for array, (_, dtype, shape, start) in zip(batch.values(), layout, strict=True):
            np.ndarray(shape, dtype, whole, start)[...] = array
        return whole, layout


class BatchReceiver:
    """The parent's side of one worker, which it starts.

    Args:
        target: what the worker runs, see `Worker`; it takes a connection, what a `BatchSender`
            takes besides that, and
        *args: more.
    """

    def __init__(self, target: str, *args: Any) -> None:
        told, tell = os.pipe()
        hear, done = os.pipe()
        self._tell, self._hear = NumberWriter(tell), NumberReader(hear)
        try:
            self.worker = Worker(target, told, done, *args, handles=(told, done))
        finally:
            os.close(told)
            os.close(done)  # ours, or we would wait for ourselves when the worker is gone
        self._buffers: dict[int, mmap.mmap] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()
        self._arrived: deque[int] = deque()
        self._layouts: dict[int, _Layout] = {}

    def tell(self, spans: Sequence[Span]) -> None:
        """Have batches made, after those told of before."""
        self.worker.send(spans)
        self.worker.guarded(self._tell.write, _SPANS)

    def receive(self) -> Batch:
        """The next batch: arrays over shared memory that is theirs as long as one of them is."""
        while (layout := self._next()) < 0:
            (self._learn if layout == _LAYOUT else self._borrow)(self._next())
        number = self._next()
        # All arrays are views of `whole`: it lives as long as any of them.
        whole = np.frombuffer(self._buffers[number], np.uint8)
        self._held[number] = weakref.ref(whole, partial(_release, self._released, number))
        self.worker.guarded(self._tell.write, _RECEIVED, *self._taken_back())
        return {
            name: np.ndarray(shape, dtype, whole, first)
            for name, dtype, shape, first in self._layouts[layout]
        }

    def _taken_back(self) -> list[int]:
        """Buffers that nothing refers to any more; callbacks in other threads add to them."""
        return [self._released.popleft() for _ in range(len(self._released))]

    def _next(self) -> int:
        while not self._arrived:
            self._arrived.extend(self._hear.read())
            if not self._arrived:  # the worker is gone; this raises what it died of
                self.worker.receive()
        return self._arrived.popleft()

    def _learn(self, number: int) -> None:
        self._layouts[number] = self.worker.receive()

    def _borrow(self, number: int) -> None:
        handle = self.worker.guarded(recv_handle, self.worker.connection)
        self._buffers[number] = mmap.mmap(handle, 0)
        os.close(handle)

    def close(self) -> None:
        """End the worker; calling it again does nothing."""
        self.worker.close()
        self._tell.close()
        self._hear.close()


def _release(released: deque[int], number: int, _: Any) -> None:
    released.append(number)


@lru_cache(_MOST_LAYOUTS)
def _end_to_end(arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> Any:
    """Bytes of a slab for arrays, and how they lie in it."""
    layout, end = [], 0
    for name, dtype, shape in arrays:
        if dtype.hasobject:
            raise InputError(
                f"{name!r} holds Python objects, which worker processes cannot hand over: "
                "use num_workers=0, or make it an array of numbers"
            )
        layout.append((name, dtype, shape, end))
        end += _rounded(math.prod(shape) * dtype.itemsize, _ALIGNMENT)
    return _rounded(max(end, 1), _GRAIN), tuple(layout)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _memory_below(whole: Any) -> Any:
    """The buffer that a slab was made over."""
    below = getattr(whole, "base", None)
    return below.obj if isinstance(below, memoryview) else below


def _memory_file(size: int) -> int:
    """Descriptor of an unnamed file in memory (on disk where the system has no such)."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("jaxdata-batch")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle
