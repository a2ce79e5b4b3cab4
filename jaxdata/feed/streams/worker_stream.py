"""Batches made by worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import cycle, islice
from multiprocessing.connection import Connection

from jaxdata.feed.batches import BatchMaker, make_in_groups, prefetch
from jaxdata.feed.schedule import Span
from jaxdata.feed.streams.shared import BatchReceiver, BatchSender
from jaxdata.rows.table import Batch

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
        self._enough = 0
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
    wanted = ready

    def listen() -> None:
        nonlocal wanted
        received, more = sender.listen()
        wanted += received
        spans.extend(more)
        if more and maker.is_far:
            prefetch(maker, more)

    def take(count: int) -> list[Span]:
        while not spans:
            listen()
        return [spans.popleft() for _ in range(min(count, len(spans)))]

    for _, batch in make_in_groups(maker, take, sender.buffers):
        while not wanted or sender.has_message():  # unread, messages would fill the channel
            listen()
        sender.send(batch)
        wanted -= 1
