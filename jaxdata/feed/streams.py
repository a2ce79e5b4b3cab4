"""Batches in order: made here, made by worker processes, made ahead of time by a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from jaxdata.feed.batches import BatchMaker
from jaxdata.processes import Worker
from jaxdata.rows.table import Batch

__all__ = ["AheadStream", "DirectStream", "Stream", "WorkerStream", "serve"]


class Stream(Protocol):
    """An iterator of batches that can be closed."""

    def __next__(self) -> Any: ...

    def close(self) -> None:
        """Stop and let go of every thread and process; calling it again does nothing."""
        ...


class DirectStream:
    """Batches made when they are asked for.

    Args:
        make: makes the batch that begins at a row.
        firsts: first rows of the batches, in order.
    """

    def __init__(self, make: Callable[[int], Any], firsts: Iterator[int]) -> None:
        self._make, self._firsts = make, firsts

    def __next__(self) -> Any:
        return self._make(next(self._firsts))

    def close(self) -> None:
        """Nothing is held."""


class WorkerStream:
    """Batches made by worker processes in turn: number *k* by worker ``k mod workers``.

    The turn is fixed, so the order does not depend on who is faster.
    """

    def __init__(self, maker: BatchMaker, firsts: Iterator[int], workers: int, depth: int) -> None:
        self._firsts = firsts
        self._workers = [Worker("jaxdata.feed.streams:serve", maker) for _ in range(workers)]
        self._asked = self._taken = 0
        for _ in range(workers * max(depth, 1)):
            self._ask()

    def _ask(self) -> None:
        first = next(self._firsts, None)
        if first is not None:
            self._workers[self._asked % len(self._workers)].send(first)
            self._asked += 1

    def __next__(self) -> Batch:
        if self._taken == self._asked:
            raise StopIteration
        batch = _receive(self._workers[self._taken % len(self._workers)])
        self._taken += 1
        self._ask()
        return batch

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.close()


class AheadStream:
    """Another stream, taken ``depth`` batches ahead by a thread, each passed through ``place``."""

    def __init__(self, stream: Stream, depth: int, place: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_pump, args=(stream, place, self._ready, self._stopped), daemon=True
        )
        self._thread.start()

    def __next__(self) -> Any:
        item = self._ready.get()
        if isinstance(item, _Raised):
            self._ready.put(item)
            raise item.error
        return item

    def close(self) -> None:
        """Stop the thread and the stream behind it."""
        self._stopped.set()
        self._stream.close()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._ready.get(timeout=0.01)


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _pump(
    stream: Stream, place: Callable[[Any], Any], ready: queue.Queue[Any], stopped: threading.Event
) -> None:
    try:
        while not stopped.is_set():
            ready.put(place(next(stream)))
    except BaseException as error:  # handed to the consumer, StopIteration included
        if not stopped.is_set():
            ready.put(_Raised(error))


def serve(connection: Connection, maker: BatchMaker) -> None:
    """A worker process: answer each first row with its batch, until the parent is gone."""
    while True:
        batch = maker.make(connection.recv())
        connection.send([(name, array.dtype, array.shape) for name, array in batch.items()])
        for array in batch.values():
            connection.send_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _receive(worker: Worker) -> Batch:
    """A batch into arrays of its own, one copy away from the socket."""
    batch: Batch = {}
    for name, dtype, shape in worker.receive():
        batch[name] = np.empty(shape, dtype)
        worker.receive_into(batch[name].reshape(-1).view(np.uint8))
    return batch
