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
from jaxdata.rows.assembly import allocate_from
from jaxdata.rows.table import Batch

__all__ = ["AheadStream", "DirectStream", "PlacedStream", "Stream", "WorkerStream", "serve"]


Place = Callable[[Span, Any], Any]

_FEWEST_TOLD = 8  # batches that a worker is told of at once


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
        self._batches = _made(maker, lambda count: list(islice(spans, count)))

    def __next__(self) -> tuple[Span, Batch]:
        return next(self._batches)

    def close(self) -> None:
        """Nothing is held."""


class WorkerStream:
    """Batches made by worker processes in turn: number *k* by worker `k mod workers`.

    The turn is fixed, so the order does not depend on who is faster. A worker knows more spans
    than it makes batches ahead: planning goes better together, but memory is better used again
    while it is in the cache.
    """

    def __init__(self, maker: BatchMaker, spans: Iterator[Span], workers: int, depth: int) -> None:
        self._maker, self._spans = maker, spans
        self._asked: deque[Span] = deque()
        self._receivers = [
            BatchReceiver("jaxdata.feed.streams:serve", maker, max(depth, 1))
            for _ in range(workers)
        ]
        self._turn = cycle(self._receivers)
        self._enough = 0
        self._ask()

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [receiver.worker.pid for receiver in self._receivers]

    def _ask(self) -> None:
        """Have each worker know what it makes together, and as much again."""
        while len(self._asked) <= self._enough and (first := next(self._spans, None)):
            each = max(self._maker.together(first), _FEWEST_TOLD)
            self._enough = each * len(self._receivers)
            some = [first, *islice(self._spans, self._enough - 1)]
            for number, receiver in enumerate(self._receivers):
                receiver.tell(some[number :: len(self._receivers)])
            self._asked.extend(some)

    def __next__(self) -> tuple[Span, Batch]:
        if not self._asked:
            raise StopIteration
        batch = next(self._turn).receive()
        span = self._asked.popleft()
        if len(self._asked) <= self._enough:
            self._ask()
        return span, batch

    def close(self) -> None:
        """End the worker processes."""
        for receiver in self._receivers:
            receiver.close()


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
        with suppress(queue.Full):
            self._ready.put_nowait(_Raised(StopIteration()))  # for who waits in another thread


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


def _made(maker: BatchMaker, take: Callable[[int], list[Span]]) -> Iterator[tuple[Span, Batch]]:
    """Batches made some at a time: one at first, which somebody waits for, then twice as many."""
    count = 1
    while some := take(count):
        yield from zip(some, maker.make(some), strict=True)
        count = min(2 * count, maker.together(some[-1]))


def serve(connection: Connection, told: int, done: int, maker: BatchMaker, ready: int) -> None:
    """A worker process: makes the batches it is told of, until the parent is gone.

    Args:
        connection: see `BatchSender`, as the next two.
        told: descriptor.
        done: descriptor.
        maker: makes them.
        ready: batches that it makes before the parent has received the first of them.
    """
    sender = BatchSender(connection, told, done)
    allocate_from(sender.slabs)
    spans: deque[Span] = deque()
    wanted = ready

    def listen() -> None:
        nonlocal wanted
        received, more = sender.listen()
        wanted += received
        spans.extend(more)

    def take(count: int) -> list[Span]:
        while not spans:
            listen()
        return [spans.popleft() for _ in range(min(count, len(spans)))]

    for _, batch in _made(maker, take):
        while not wanted:
            listen()
        sender.send(batch)
        wanted -= 1
