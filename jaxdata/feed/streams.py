"""Batches in order: made here, made by worker processes, made ahead of time by a thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from typing import Any, Protocol

from jaxdata.feed.batches import BatchMaker
from jaxdata.feed.schedule import Span
from jaxdata.feed.shared import BatchReceiver, BatchSender
from jaxdata.processes import Worker
from jaxdata.rows.table import Batch

__all__ = ["AheadStream", "DirectStream", "PlacedStream", "Stream", "WorkerStream", "serve"]


Place = Callable[[Span, Any], Any]
_TOGETHER = 8  # batches whose places are worked out in one go: numpy's calls cost as for one


class Stream(Protocol):
    """An iterator of batches, each with its span, that can be closed."""

    def __next__(self) -> tuple[Span, Any]: ...

    def close(self) -> None:
        """Stop and let go of every thread and process; calling it again does nothing."""
        ...


class DirectStream:
    """Batches made when they are asked for.

    Args:
        maker: makes the batch of a span.
        spans: the batches, in order.
    """

    def __init__(self, maker: BatchMaker, spans: Iterator[Span]) -> None:
        self._batches = _made(maker, spans)

    def __next__(self) -> tuple[Span, Batch]:
        return next(self._batches)

    def close(self) -> None:
        """Nothing is held."""


class WorkerStream:
    """Batches made by worker processes in turn: number *k* by worker `k mod workers`.

    The turn is fixed, so the order does not depend on who is faster.
    """

    def __init__(self, maker: BatchMaker, spans: Iterator[Span], workers: int, depth: int) -> None:
        self._spans = spans
        self._workers = [Worker("jaxdata.feed.streams:serve", maker) for _ in range(workers)]
        self._turns = cycle([(worker, BatchReceiver(worker)) for worker in self._workers])
        self._asked: deque[tuple[Span, BatchReceiver]] = deque()
        for _ in range(workers * max(depth, 1)):
            self._ask()

    def _ask(self) -> None:
        span = next(self._spans, None)
        if span is not None:
            worker, receiver = next(self._turns)
            worker.send((span, receiver.released()))
            self._asked.append((span, receiver))

    def __next__(self) -> tuple[Span, Batch]:
        if not self._asked:
            raise StopIteration
        span, receiver = self._asked.popleft()
        batch = receiver.receive()
        self._ask()
        return span, batch

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.close()


class PlacedStream:
    """Another stream, each batch passed through `place`, with nothing made ahead."""

    def __init__(self, stream: Stream, place: Place) -> None:
        self._stream, self._place = stream, place
        self.close = stream.close

    def __next__(self) -> tuple[Span, Any]:
        span, batch = next(self._stream)
        return span, self._place(span, batch)


class AheadStream:
    """Another stream, taken `depth` batches ahead by a thread."""

    def __init__(self, stream: Stream, depth: int) -> None:
        self._stream = stream
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_pump, args=(stream, self._ready, self._stopped), daemon=True
        )
        self._thread.start()

    def __next__(self) -> tuple[Span, Any]:
        item: Any = self._ready.get()
        if isinstance(item, _Raised):
            self._ready.put(item)
            raise item.error
        return item  # type: ignore[no-any-return]

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


def _pump(stream: Stream, ready: queue.Queue[Any], stopped: threading.Event) -> None:
    try:
        while not stopped.is_set():
            ready.put(next(stream))
    except BaseException as error:  # handed to the consumer, StopIteration included
        if not stopped.is_set():
            ready.put(_Raised(error))


def _made(maker: BatchMaker, spans: Iterator[Span]) -> Iterator[tuple[Span, Batch]]:
    while some := list(islice(spans, _TOGETHER)):
        yield from zip(some, maker.make(some), strict=True)


def serve(connection: Connection, maker: BatchMaker) -> None:
    """A worker process: answer each span with its batch, until the parent is gone."""
    sender = BatchSender(connection)
    while True:
        asked = [connection.recv()]
        while len(asked) < _TOGETHER and connection.poll():
            asked.append(connection.recv())
        for _, released in asked:
            sender.release(released)
        for batch in maker.make([span for span, _ in asked]):
            sender.send(batch)
