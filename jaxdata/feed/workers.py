"""Batches made by worker processes, handed over through shared memory without a copy."""

import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, cycle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

import cloudpickle
import numpy as np

from jaxdata.base.processes import Worker, nameless_file
from jaxdata.feed.ahead import fetched_ahead
from jaxdata.feed.batches import Batches, BatchMaker
from jaxdata.feed.schedule import Schedule, Span
from jaxdata.rows.reading import BufferPool
from jaxdata.storage.local import map_handle

_ALIGNMENT = 64  # bytes: with it JAX uses numpy memory on a CPU without a copy
_GRAIN = 2**16  # bytes: batches that differ a little in size use the same buffers


class BatchSender:
    """The worker's side. Batches made in its `buffers` are handed over without a copy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._memory: dict[int, tuple[int, int]] = {}
        """number and address of each buffer, by the id of its memory"""
        self._unsent: dict[int, IO[bytes]] = {}
        self._lent: dict[int, list[memoryview]] = {}
        self.buffers = BufferPool(self._allocate, most_free=None)

    def _allocate(self, size: int) -> memoryview:
        file = nameless_file()
        os.ftruncate(file.fileno(), size)
        memory = map_handle(file.fileno(), size, writable=True)
        number = len(self._memory)
        self._memory[id(memory.obj)], self._unsent[number] = (number, _address(memory)), file
        return memory

    def listen(self) -> None:
        """Wait until the parent has received a batch; buffers that it released are free again."""
        for number in self._connection.recv():
            del self._lent[number]

    def send(self, batch: Any) -> None:
        """Tell the parent where the arrays of a batch are, and what else is in it.

        Arrays that are not in shared memory are copied there.
        """
        arrays: list[memoryview] = []

        def apart(array: pickle.PickleBuffer) -> None:
            arrays.append(array.raw())

        try:
            content = pickle.dumps(batch, 5, buffer_callback=apart)
        except (pickle.PicklingError, AttributeError):
            # It has classes of the user's `__main__`, which is not imported here.
            arrays.clear()
            content = cloudpickle.dumps(batch, 5, apart)
        below = {id(_memory_below(each)) for each in arrays}
        if len(below) != 1 or not below <= self._memory.keys():
            arrays = self._copied(arrays)
        number, start = self._memory[id(_memory_below(arrays[0]))]
        self._lent[number] = arrays
        places = [(_address(each) - start, each.nbytes) for each in arrays]
        self._connection.send((number, places, content))
        if number in self._unsent:
            with self._unsent.pop(number) as file:
                send_handle(self._connection, file.fileno(), None)

    def _copied(self, arrays: Sequence[memoryview]) -> list[memoryview]:
        """Copies, end to end in a buffer."""
        sizes = [each.nbytes for each in arrays]
        begins = [*accumulate((_rounded(size, _ALIGNMENT) for size in sizes), initial=0)]
        whole = self.buffers.take(_rounded(max(begins[-1], 1), _GRAIN)).data
        copies = [whole[at : at + size] for at, size in zip(begins, sizes, strict=False)]
        for copy, array in zip(copies, arrays, strict=True):
            copy[:] = array
        return copies or [whole[:0]]


class BatchReceiver:
    """The parent's side of one worker, which it starts (see `Worker`).

    The worker's function makes a `BatchSender` of its connection.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._worker = Worker(target, *args)
        self.terminate = self._worker.terminate
        self._buffers: dict[int, memoryview] = {}
        self._held: dict[int, weakref.ref[Any]] = {}
        self._released = deque[int]()

    def close(self) -> None:
        """End the worker; its memory goes with the last array that refers to it."""
        self._worker.close()
        self._buffers.clear()

    def receive(self) -> Any:
        """The next batch: arrays over shared memory, which is theirs while any of them lives."""
        number, places, content = self._worker.receive()
        if number not in self._buffers:
            handle = self._worker.guarded(recv_handle, self._worker.connection)
            size = os.fstat(handle).st_size
            self._buffers[number] = map_handle(handle, size, writable=True)
            os.close(handle)
        # All arrays are views of `whole`: it lives as long as any of them.
        whole = np.frombuffer(self._buffers[number], np.uint8)
        self._held[number] = weakref.ref(whole, partial(_release, self._released, number))
        # Callbacks in other threads add to those that are released.
        self._worker.send([self._released.popleft() for _ in range(len(self._released))])
        arrays = [whole[begin : begin + size] for begin, size in places]
        return pickle.loads(content, buffers=arrays)  # noqa: S301 (our own process wrote it)


def _release(released: deque[int], number: int, _: Any) -> None:
    released.append(number)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _address(memory: memoryview) -> int:
    address: int = np.asarray(memory).__array_interface__["data"][0]
    return address


def _memory_below(array: memoryview) -> Any:
    """The memory that arrays were made over, one over the other."""
    below: Any = array.obj
    while isinstance(below, np.ndarray):
        below = below.base
    return below.obj if isinstance(below, memoryview) else below


class WorkerStream(Batches):
    """Batches made by worker processes in turn: number *k* by worker `k mod workers`.

    The turn is fixed, so the order does not depend on which worker is faster. Each has a copy of
    the schedule, and makes `depth` batches ahead; it plans more of them: planning is cheaper in
    groups, but memory is faster when it is reused while it is in the cache.
    """

    def __init__(self, maker: BatchMaker, schedule: Schedule, workers: int, depth: int) -> None:
        self._spans, self._receivers = schedule.spans(), list[BatchReceiver]()
        try:
            for number in range(workers):
                turn = number, workers, max(depth, 1)
                self._receivers.append(BatchReceiver(serve, maker, schedule, *turn))
        except BaseException:
            self.close()
            raise
        self._turns = cycle(self._receivers)

    def __next__(self) -> tuple[Span, Any]:
        span = next(self._spans)
        return span, next(self._turns).receive()

    def close(self) -> None:
        """End the worker processes, side by side."""
        for receiver in self._receivers:
            receiver.terminate()
        for receiver in self._receivers:
            receiver.close()


def serve(
    connection: Connection,
    maker: BatchMaker,
    schedule: Schedule,
    number: int,
    workers: int,
    ready: int,
) -> None:
    """A worker process: makes every `workers`-th batch from `number` on, until the parent is gone.

    It makes `ready` of them before the parent has received the first.
    """
    sender = BatchSender(connection)
    spans = schedule.spans(number, workers)
    for _, batch in fetched_ahead(maker, spans, sender.buffers, processes=workers):
        while not ready or connection.poll():  # unread, messages would fill the channel
            sender.listen()
            ready += 1
        sender.send(batch)
        ready -= 1
    while True:
        sender.listen()
