"""Batches made by worker processes, handed over through shared memory without a copy."""

from __future__ import annotations

import math
import os
import select
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import cycle, dropwhile, islice, takewhile
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.processes import Worker
from jaxdata.feed.batches import BatchMaker, Change, make_in_groups, prefetch
from jaxdata.feed.schedule import Span
from jaxdata.feed.trees import is_array, leaves, map_leaves
from jaxdata.rows.arrays import BufferPool
from jaxdata.rows.table import Batch
from jaxdata.storage.maps import map_handle

_ALIGNMENT = 64  # bytes: with it JAX uses numpy memory on a CPU without a copy
_GRAIN = 2**16  # bytes: batches that differ a little in size use the same buffers

Offsets = tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
"""Name, dtype, shape and first byte of each array in a buffer."""


class Slot(str):
    """The place of an array in the structure of a batch, by its name."""

    __slots__ = ()


class Received(NamedTuple):
    """The parent's answer to a batch."""

    free: list[int]
    """buffers that nothing refers to any more"""


class Heard(NamedTuple):
    """What the parent says."""

    received: int = 0
    """batches that it has received since"""
    spans: Sequence[Span] = ()
    """to make, after those told of before"""
    amend: Callable[[BatchMaker], BatchMaker] | None = None
    """makes the maker of all batches that are not made yet"""


class BatchSender:
    """The worker's side. Batches made in its `buffers` are handed over without a copy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._incoming = select.poll()
        self._incoming.register(connection.fileno(), select.POLLIN)
        self._memory: list[memoryview] = []
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        self._lent: dict[int, NDArray[Any]] = {}
        self._last: tuple[Offsets, Any] | None = None
        self.buffers = BufferPool(self._allocate, most_free=None)

    def _allocate(self, size: int) -> memoryview:
        handle = _memory_file(size)
        memory = map_handle(handle, size, writable=True)
        number = len(self._memory)
        self._memory.append(memory)
        self._numbers[id(memory.obj)], self._handles[number] = number, handle
        return memory

    def has_message(self) -> bool:
        """Whether `listen` would not wait."""
        return bool(self._incoming.poll(0))

    def listen(self) -> Heard:
        """Wait for the parent."""
        message = self._connection.recv()
        if isinstance(message, Received):
            for number in message.free:
                del self._lent[number]
            return Heard(received=1)
        return Heard(amend=message) if callable(message) else Heard(spans=message)

    def send(self, batch: Any) -> None:
        """Tell the parent where a batch is; one that is not in shared memory is copied there.

        Arrays may lie in any structure: that is sent, with constants, when it changes.
        """
        arrays = {n: np.asarray(leaf) for n, leaf in leaves(batch).items() if is_array(leaf)}
        structure = map_leaves(lambda name, leaf: Slot(name) if name in arrays else leaf, batch)
        whole = self._buffer_of(arrays)
        if whole is None:
            whole, offsets = self._copied(arrays)
        else:
            start = _address(whole)
            offsets = tuple((n, a.dtype, a.shape, _address(a) - start) for n, a in arrays.items())
        number = self._numbers[id(_memory_below(whole))]
        self._lent[number] = whole
        where = offsets, structure
        # Structures may be of classes of the user's `__main__`, which is not imported here.
        self._connection.send((number, None if where == self._last else cloudpickle.dumps(where)))
        self._last = where
        if number in self._handles:
            handle = self._handles.pop(number)
            send_handle(self._connection, handle, os.getppid())
            os.close(handle)

    def _buffer_of(self, batch: Batch) -> NDArray[Any] | None:
        """The buffer that holds all arrays of a batch, if one does."""
        owners = {id(array.base): array.base for array in batch.values()}
        whole = next(iter(owners.values()), None)
        plain = all(array.flags.c_contiguous for array in batch.values())
        shared = plain and len(owners) == 1 and id(_memory_below(whole)) in self._numbers
        return whole if shared else None

    def _copied(self, batch: Batch) -> tuple[NDArray[Any], Offsets]:
        size, offsets = _end_to_end(tuple((n, a.dtype, a.shape) for n, a in batch.items()))
        whole = self.buffers.take(size)
        for array, (_, dtype, shape, start) in zip(batch.values(), offsets, strict=True):
            np.ndarray(shape, dtype, whole, start)[...] = array
        return whole, offsets


class BatchReceiver:
    """The parent's side of one worker, which it starts (see `Worker`).

    The worker's function makes a `BatchSender` of its connection.
    """

    def __init__(self, target: str, *args: Any) -> None:
        self._worker = Worker(target, *args)
        self.terminate = self._worker.terminate
        self._buffers: dict[int, memoryview] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()
        self._last: tuple[Offsets, Any] = (), {}

    def tell(self, spans: Sequence[Span]) -> None:
        """Have the worker make batches, after those told of before."""
        self._worker.send(spans)

    def amend(self, amend: Callable[[BatchMaker], BatchMaker]) -> None:
        """Have it make the batches that it has not begun by another recipe."""
        self._worker.send(amend)

    def close(self) -> None:
        """End the worker; its memory goes with the last array that refers to it."""
        self._worker.close()
        self._buffers.clear()

    def receive(self) -> Any:
        """The next batch: arrays over shared memory, which is theirs while any of them lives."""
        number, where = self._worker.receive()
        self._last = self._last if where is None else cloudpickle.loads(where)
        if number not in self._buffers:
            handle = self._worker.guarded(recv_handle, self._worker.connection)
            size = os.fstat(handle).st_size
            self._buffers[number] = map_handle(handle, size, writable=True)
            os.close(handle)
        # All arrays are views of `whole`: it lives as long as any of them.
        whole = np.frombuffer(self._buffers[number], np.uint8)
        self._held[number] = weakref.ref(whole, partial(_release, self._released, number))
        # Callbacks in other threads add to those that are released.
        free = [self._released.popleft() for _ in range(len(self._released))]
        self._worker.send(Received(free))
        offsets, structure = self._last
        arrays = {n: np.ndarray(shape, dtype, whole, first) for n, dtype, shape, first in offsets}
        return map_leaves(
            lambda _, leaf: arrays[leaf] if isinstance(leaf, Slot) else leaf, structure
        )


def _release(released: deque[int], number: int, _: Any) -> None:
    released.append(number)


@lru_cache
def _end_to_end(arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> Any:
    """Bytes of a buffer for arrays, and their offsets in it."""
    offsets, end = [], 0
    for name, dtype, shape in arrays:
        if dtype.hasobject:
            raise InputError(
                f"{name!r} holds Python objects, which worker processes cannot hand over: "
                "use num_workers=0, or make it an array of numbers"
            )
        offsets.append((name, dtype, shape, end))
        end += _rounded(math.prod(shape) * dtype.itemsize, _ALIGNMENT)
    return _rounded(max(end, 1), _GRAIN), tuple(offsets)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _memory_below(whole: Any) -> Any:
    """The memory that the array of a buffer was made over."""
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


_MIN_TOLD = 8  # batches that a worker is told of at once


class WorkerStream:
    """Batches made by worker processes in turn: number *k* by worker `k mod workers`.

    The turn is fixed, so the order does not depend on which worker is faster. A worker knows more
    spans than it makes batches ahead: planning is cheaper in groups, but memory is faster when it
    is reused while it is in the cache.
    Each makes `depth` batches ahead.
    """

    def __init__(self, maker: BatchMaker, spans: Iterator[Span], workers: int, depth: int) -> None:
        self._maker, self._spans = maker, spans
        self._asked: deque[Span] = deque()
        self._receivers: list[BatchReceiver] = []
        self._enough = self._beyond = self._told = 0
        self._changes: deque[Change] = deque()
        try:
            for _ in range(workers):
                self._receivers.append(BatchReceiver(f"{__name__}:serve", maker, max(depth, 1)))
            self._turn = cycle(self._receivers)
            self._ask()
        except BaseException:
            self.close()
            raise

    def _ask(self) -> None:
        """Tell each worker of the group that it makes next, and of another of that size."""
        while len(self._asked) <= self._enough and (first := next(self._spans, None)):
            each = max(self._maker.together(first), _MIN_TOLD)
            self._enough = each * len(self._receivers)
            some = [first, *islice(self._spans, self._enough - 1)]
            workers = len(self._receivers)
            for number, receiver in enumerate(self._receivers):
                receiver.tell(some[(number - self._told) % workers :: workers])
            self._asked.extend(some)
            self._told += len(some)  # of no whole turns, where the run ended before a change

    def change(self, change: Change) -> None:
        """Have what no worker has begun made by another recipe; any thread may call it."""
        self._changes.append(change)

    def _tell_of(self, change: Change) -> None:
        """Tell the workers; of what they know, go on only with what there is now."""
        for receiver in self._receivers:
            receiver.amend(change.amend)
        first = self._asked[0].first if self._asked else 0
        spans = dropwhile(lambda span: span.first < first, change.spans)
        pairs = zip(self._asked, spans, strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        # What workers were told beyond the end stays told: another change may have it again.
        self._beyond = len(self._asked) - known
        self._spans = iter(()) if self._beyond else spans

    def __next__(self) -> tuple[Span, Batch]:
        while self._changes:
            self._tell_of(self._changes.popleft())
        if len(self._asked) == self._beyond:
            raise StopIteration
        batch = next(self._turn).receive()
        span = self._asked.popleft()
        if len(self._asked) <= self._enough:
            self._ask()
        return span, batch

    def close(self) -> None:
        """End the worker processes, side by side."""
        for receiver in self._receivers:
            receiver.terminate()
        for receiver in self._receivers:
            receiver.close()


def serve(connection: Connection, maker: BatchMaker, ready: int) -> None:
    """A worker process: makes the batches that it is told of, until the parent is gone.

    It makes `ready` of them before the parent has received the first.
    """
    sender = BatchSender(connection)
    spans: deque[Span] = deque()
    left: deque[Span] = deque()
    """of the group that is being made"""
    wanted, used = ready, maker

    def listen() -> None:
        nonlocal wanted, maker
        heard = sender.listen()
        wanted += heard.received
        spans.extend(heard.spans)
        fresh = list(heard.spans)
        if heard.amend is not None:
            maker, fresh = heard.amend(maker), [*left, *spans]
        if fresh and maker.is_far:
            prefetch(maker, fresh)

    def take(count: int) -> list[Span]:
        while not spans and maker is used:
            listen()
        if maker is used:
            left.extend(spans.popleft() for _ in range(min(count, len(spans))))
        return list(left)

    while True:
        for _, batch in make_in_groups(used, take, sender.buffers):
            while not wanted or sender.has_message():  # unread, messages would fill the channel
                listen()
            sender.send(batch)
            wanted -= 1
            left.popleft()
            if maker is not used:
                break
        used = maker
        spans.extendleft(reversed(left))
        left.clear()
