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

from jaxdata.errors import InputError
from jaxdata.processes import Worker
from jaxdata.rows.table import Batch

__all__ = ["BatchReceiver", "BatchSender"]

_ALIGNMENT = 64  # bytes: what jax wants to take numpy memory on a CPU as it is
_SLACK = 1.25  # compact batches differ a little in size

Parts = list[tuple[str, np.dtype[Any], tuple[int, ...], int]]
"""(name, dtype, shape, byte offset) of each array of a batch."""


class BatchSender:
    """The worker's side: buffers, and which of them are free."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffers: list[mmap.mmap] = []
        self._free: set[int] = set()

    def release(self, numbers: Iterable[int]) -> None:
        """Take back buffers that the parent has let go of."""
        self._free.update(numbers)

    def send(self, batch: Batch) -> None:
        """Copy a batch into a buffer and tell the parent where it is."""
        parts, size = _plan(batch)
        number = next((k for k in sorted(self._free) if len(self._buffers[k]) >= size), None)
        handle = None
        if number is None:
            number, handle = len(self._buffers), _memory_file(int(size * _SLACK))
            self._buffers.append(mmap.mmap(handle, 0))
        self._free.discard(number)
        for (_, dtype, shape, start), array in zip(parts, batch.values(), strict=True):
            view = np.frombuffer(self._buffers[number], dtype, array.size, start)
            view.reshape(shape)[...] = array
        self._connection.send((number, handle is not None, parts))
        if handle is not None:
            send_handle(self._connection, handle, os.getppid())
            os.close(handle)


class BatchReceiver:
    """The parent's side of one worker.

    Args:
        worker: a process that answers with a `BatchSender`.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._buffers: dict[int, mmap.mmap] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()

    def released(self) -> list[int]:
        """Buffers that nothing refers to any more, since the last call."""
        return [self._released.popleft() for _ in range(len(self._released))]

    def receive(self) -> Batch:
        """The next batch: arrays over shared memory that is theirs as long as one of them is."""
        number, is_new, parts = self._worker.receive()
        if is_new:
            handle = recv_handle(self._worker.connection)
            self._buffers[number] = mmap.mmap(handle, 0)
            os.close(handle)
        # All arrays are views of `whole`: it lives as long as any of them.
        whole = np.frombuffer(self._buffers[number], np.uint8)
        self._held[number] = weakref.ref(whole, partial(_release, self._released, number))
        return {
            name: whole[start : start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))]
            .view(dtype)
            .reshape(shape)
            for name, dtype, shape, start in parts
        }


def _release(released: deque[int], number: int, _: Any) -> None:
    released.append(number)


def _plan(batch: Batch) -> tuple[Parts, int]:
    """Where the arrays of a batch go, and the bytes of all."""
    parts: Parts = []
    end = 0
    for name, array in batch.items():
        if array.dtype.hasobject:
            raise InputError(
                f"{name!r} holds Python objects, which worker processes cannot hand over: use "
                "num_workers=0, or make it an array of numbers"
            )
        parts.append((name, array.dtype, array.shape, end))
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return parts, max(end, 1)


def _memory_file(size: int) -> int:
    """Descriptor of an unnamed file in memory (on disk where the system has no such)."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("jaxdata-batch")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle
