"""Batches made ahead of time by a thread, and what they are made of fetched from a bucket."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from jaxdata.base.errors import log
from jaxdata.base.progress import status_line
from jaxdata.base.threads import TICK, check_stop, in_background
from jaxdata.feed.batches import Batches, BatchMaker, Stream, make_in_groups, pages_are_behind
from jaxdata.feed.schedule import Span
from jaxdata.rows.reading import HOST_BUFFERS, BufferPool
from jaxdata.storage.pages.page_cache import most_ahead
from jaxdata.storage.pages.read_counts import ReadCounts

T = TypeVar("T")
_GRACE_SECONDS = 5.0
_WINDOW_SECONDS = 4.0
_LEAST_WINDOW = 2**24
"""bytes of rows"""
_MOST_BATCHES = 4_096
_FEW_BATCHES = 2
"""that are looked up where pages come late, and ranges are requests of their own"""
_AT_ONCE = 16
"""batches that are looked up in a pass"""


class Ahead(Stream[T]):
    """What another iterator yields, taken ahead by a thread as long as there is room.

    Args:
        items: whose errors are raised after what it yielded before.
        has_room: whether another is taken beside those that are ready, the oldest first.
        close: ends what the thread may wait for.
    """

    def __init__(
        self,
        items: Iterator[T],
        has_room: Callable[[Sequence[T]], bool],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(items, close)
        self._has_room, self._ready, self._errors = has_room, deque[T](), list[BaseException]()
        self._changed, self._over = threading.Condition(), threading.Event()
        self._thread = in_background(
            self._work, name="jaxdata-ahead", stopped=self._over, wake=self._finish
        )

    def __next__(self) -> T:
        for item in self.take(1):
            return item
        raise StopIteration

    def take(self, most: int) -> list[T]:
        """At least one and at most so many; none at the end."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._ready or self._over.is_set(), TICK):
                check_stop()
            some = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._changed.notify_all()
            if not some and self._errors:
                raise self._errors.pop()
            return some

    def close(self) -> None:
        """Stop the thread, and hand out nothing more.

        What the thread is in the middle of may need a lock that the caller has, if that is Python's
        garbage collector: then it ends later.
        """
        with self._changed:
            self._finish()
            self._ready.clear()
        self._close()
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_SECONDS)

    def _finish(self) -> None:
        with self._changed:
            self._over.set()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while self._waited_for_room():
                self._hand_out(next(self._items))
        except BaseException as error:  # for whoever takes
            if not (isinstance(error, StopIteration) or self._over.is_set()):
                self._errors.append(error)
        self._finish()

    def _hand_out(self, item: T) -> None:
        with self._changed:
            if not self._over.is_set():
                self._ready.append(item)
                self._changed.notify_all()

    def _waited_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._over.is_set() or self._has_room(self._ready))
            return not self._over.is_set()


def made_ahead(batches: Batches, depth: int) -> Batches:
    """The same batches, as many as `depth` of them made ahead by a thread."""
    return Ahead(batches, lambda ready: len(ready) < depth, batches.close)


def fetched_ahead(
    maker: BatchMaker,
    spans: Iterator[Span],
    buffers: BufferPool = HOST_BUFFERS,
    processes: int = 1,
) -> Batches:
    """Batches made when they are requested; of a bucket, a thread has rows fetched ahead.

    So many `processes` do so with one cache, each as far as its share of that goes.
    """
    if not maker.is_far:
        return Stream(make_in_groups(maker, lambda count: list(islice(spans, count)), buffers))
    ahead = told_ahead(maker, spans, processes)
    made = make_in_groups(maker, lambda count: [each.span for each in ahead.take(count)], buffers)
    return Stream(made, ahead.close)


class _Told(NamedTuple):
    """A batch of which a store was told, and the bytes of all up to its begin and its end."""

    span: Span
    begin: int
    end: int


def told_ahead(maker: BatchMaker, spans: Iterator[Span], processes: int = 1) -> Ahead[_Told]:
    """Have stores fetch what batches are made of, as much as is taken in a few seconds."""
    began, most = time.monotonic(), most_ahead(processes)

    def told() -> Iterator[_Told]:
        count, end = 1, 0
        while some := list(islice(spans, count)):
            size = 0
            with suppress(Exception):  # whoever makes the batch meets it, too
                for files, ranges in maker.far_ranges(some):
                    files.prefetch(ranges)
                    size += ranges.nbytes
            for span in some:
                yield _Told(span, end, end := end + size // len(some))
            count = 1 if pages_are_behind() else min(2 * count, _AT_ONCE)

    def has_room(ready: Sequence[_Told]) -> bool:
        if not ready:
            return True
        if pages_are_behind():
            return len(ready) < _FEW_BATCHES
        taken = ready[0].begin
        rate = taken / max(time.monotonic() - began, 1e-3)
        window = min(max(rate * _WINDOW_SECONDS, _LEAST_WINDOW), most)
        return len(ready) < _MOST_BATCHES and ready[-1].end - taken < window

    return Ahead(told(), has_room)


def with_first_fill(stream: Batches, reads: Callable[[], ReadCounts]) -> Batches:
    """A stream from a bucket that says, while its first batch is waited for, what was fetched."""
    began = time.monotonic()

    def so_far() -> str:
        counts, seconds = reads(), time.monotonic() - began
        return f"{counts.bytes / 1e6:,.1f} MB in {counts.gets:,} GETs, {seconds:.1f} s"

    def batches() -> Iterator[tuple[Any, Any]]:
        with status_line(lambda: f"fetching the first batch: {so_far()}"):
            first = list(islice(stream, 1))
        if first:
            log.info("the first batch is here: %s", so_far())
            yield first.pop()
            yield from stream

    return Stream(batches(), stream.close)
