"""Batches from a worker process to its parent through shared memory, without names or leaks.

A worker writes each batch into a memory file of its own and passes the file's descriptor once;
both map it. The parent hands out arrays over that memory, and gives it back to the worker when
nothing refers to them any more: a delivered batch never changes. The files have no name, so
nothing is left behind however the processes end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.processes import Worker
from jaxdata.rows.slabs import Slabs
from jaxdata.rows.table import Batch

__all__ = ["BatchReceiver", "BatchSender"]

_ALIGNMENT = 64  # bytes: what jax wants to take numpy memory on a CPU as it is
_Part = tuple[str, np.dtype[Any], tuple[int, ...], int]
"""Name, dtype, shape and first byte of an array in a slab."""
_GRAIN = 2**16  # bytes: batches that differ a little in size use the same buffers


class BatchSender:
    """The worker's side. Batches made in its `slabs` are handed over without a copy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._memory: list[mmap.mmap] = []
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        self._lent: dict[int, NDArray[Any]] = {}
        self._parts: list[_Part] = []
        self.slabs = Slabs(self._allocate, most_free=None)

    def _allocate(self, size: int) -> mmap.mmap:
        handle = _memory_file(size)
        memory = mmap.mmap(handle, size)
        number = len(self._memory)
        self._memory.append(memory)
        self._numbers[id(memory)], self._handles[number] = number, handle
        return memory

    def release(self, numbers: Iterable[int]) -> None:
        """Let go of buffers that the parent has let go of."""
        for number in numbers:
            del self._lent[number]

    def send(self, batch: Batch) -> None:
        """Tell the parent where a batch is; what is not in shared memory is copied there."""
        whole = self._slab_of(batch)
        if whole is None:
            whole, batch = self._copied(batch)
        number = self._numbers[id(_memory_below(whole))]
        self._lent[number] = whole
        start = _address(whole)
        parts = [(n, a.dtype, a.shape, _address(a) - start) for n, a in batch.items()]
        handle = self._handles.pop(number, None)
        # Most batches have the layout of the one before, which the parent remembers.
        told = None if parts == self._parts else parts
        self._parts = parts
        self._connection.send((number, handle is not None, told))
        if handle is not None:
            send_handle(self._connection, handle, os.getppid())
            os.close(handle)

    def _slab_of(self, batch: Batch) -> NDArray[Any] | None:
        """The slab that all arrays of a batch are in, if they are."""
        owners = {id(array.base): array.base for array in batch.values()}
        whole = next(iter(owners.values()), None)
        plain = all(array.flags.c_contiguous for array in batch.values())
        shared = plain and len(owners) == 1 and id(_memory_below(whole)) in self._numbers
        return whole if shared else None

    def _copied(self, batch: Batch) -> tuple[NDArray[Any], Batch]:
        places = np.cumsum([0, *(_aligned(array) for array in batch.values())]).tolist()
        whole = self.slabs.take(-(-max(places[-1], 1) // _GRAIN) * _GRAIN)
        copies: Batch = {}
        for (name, array), start in zip(batch.items(), places, strict=False):
            if array.dtype.hasobject:
                raise InputError(
                    f"{name!r} holds Python objects, which worker processes cannot hand over: "
                    "use num_workers=0, or make it an array of numbers"
                )
            copies[name] = _view(whole, array.dtype, array.shape, start)
            copies[name][...] = array
        return whole, copies


class BatchReceiver:
    """The parent's side of one worker.

    Args:
        worker: a process that answers with a `BatchSender`.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._buffers: dict[int, mmap.mmap] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()
        self._parts: list[_Part] = []

    def released(self) -> list[int]:
        """Buffers that nothing refers to any more, since the last call."""
        return [self._released.popleft() for _ in range(len(self._released))]

    def receive(self) -> Batch:
        """The next batch: arrays over shared memory that is theirs as long as one of them is."""
        number, is_new, told = self.worker.receive()
        self._parts = self._parts if told is None else told
        if is_new:
            handle = recv_handle(self.worker.connection)
            self._buffers[number] = mmap.mmap(handle, 0)
            os.close(handle)
        # All arrays are views of `whole`: it lives as long as any of them.
        whole = np.frombuffer(self._buffers[number], np.uint8)
        self._held[number] = weakref.ref(whole, partial(_release, self._released, number))
        return {name: _view(whole, *part) for name, *part in self._parts}


def _release(released: deque[int], number: int, _: Any) -> None:
    released.append(number)


def _view(
    whole: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...], start: int
) -> NDArray[Any]:
    """An array in a part of a slab."""
    return np.ndarray(shape, dtype, buffer=whole, offset=start)


def _aligned(array: NDArray[Any]) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


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
