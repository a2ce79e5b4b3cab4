"""Streams of batches: made here and now or ahead by a thread, and the iterator that reads one."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile, islice
from typing import Any, NamedTuple, TypeVar

from jaxdata.base.errors import InputError
from jaxdata.base.processes import forget_in_forks
from jaxdata.base.progress import status_line
from jaxdata.base.threads import TICK, check_stop, in_background
from jaxdata.feed.batches import BatchMaker
from jaxdata.feed.schedule import Span
from jaxdata.rows.arrays import HOST_BUFFERS, BufferPool
from jaxdata.storage import ReadCounts, most_ahead

T = TypeVar("T")
_log = logging.getLogger("jaxdata")
_GRACE_SECONDS = 5.0
_WINDOW_SECONDS = 4.0
_LEAST_WINDOW = 2**24
"""bytes of rows"""
_MOST_BATCHES = 4_096
_AT_ONCE = 16
"""batches that are looked up in a pass"""


class Stream(Iterator[tuple[Any, Any]]):
    """Batches, each with what its iterator notes of it, as a rule its span.

    Args:
        batches: what yields them.
        close: stops whatever makes them; calling it again does nothing.
    """

    def __init__(
        self, batches: Iterator[tuple[Any, Any]], close: Callable[[], None] = lambda: None
    ) -> None:
        self._batches, self._close = batches, close

    def __next__(self) -> tuple[Any, Any]:
        return next(self._batches)

    def close(self) -> None:
        """Stop whatever makes them."""
        self._close()


class StreamReader(ABC):
    """An iterator over a stream, which is opened when it is needed; threads may share it.

    The stream closes with the iterator, at its end, and where an error or Ctrl-C breaks it off. A
    forked copy of the process opens its own: threads and worker processes stay with the original.

    Args:
        on_devices: whether batches are placed on devices of JAX, which a forked copy cannot use.
    """

    _what = "loader"
    _ended = _is_closed = _is_forked = False
    _finalizer: Any = None
    _stream: Any = None
    """ends the stream, if one is open"""

    def __init__(self, on_devices: bool) -> None:
        super().__init__()
        self._on_devices = on_devices
        self.lock = threading.RLock()
        """Held by a thread while it reads or moves; hold it to do several things at once. A
        signal handler may take the state meanwhile."""
        forget_in_forks(self)

    @abstractmethod
    def _open(self) -> Stream:
        """Open a stream from here on; it must not refer to this iterator, with which it closes."""

    @abstractmethod
    def _advance(self, note: Any) -> None:
        """Record that a batch was delivered."""

    def _end(self) -> BaseException:
        """What is raised at the end."""
        return StopIteration()

    def __next__(self) -> Any:
        with self.lock:
            self._check_open()
            try:
                if self._ended:
                    raise StopIteration
                note, batch = next(self._opened())
                self._advance(note)
            except BaseException as error:  # Ctrl-C too, when a batch may be half received
                self._let_go()
                if isinstance(error, Exception):
                    self._check_open()  # another thread closed it meanwhile
                if isinstance(error, StopIteration):
                    end, self._ended = self._end(), True
                    raise end from None
                raise
            return batch

    def start_prefetch(self) -> None:
        """Start to make batches before the first is requested."""
        with self.lock:
            self._check_open()
            self._opened()

    def _opened(self) -> Stream:
        if self._on_devices and self._is_forked:
            raise InputError(
                "JAX cannot be used in a forked process, and this iterator places batches on its "
                "devices: start the process with 'spawn', or use shard=(i, n) for numpy batches"
            )
        if self._finalizer is None:
            self._stream = self._open()
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream  # type: ignore[no-any-return]

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Discard batches made ahead, before the next row changes."""
        with self.lock:
            self._check_open()
            self._let_go()
            self._ended = False
            yield

    def close(self) -> None:
        """Stop threads and worker processes; it cannot be used afterwards."""
        self._is_closed = True
        self._let_go()  # a thread that waits for a batch lets go of the lock
        with self.lock:
            self._let_go()

    def forget(self) -> None:
        """In a forked copy: leave the stream to the original."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self.lock, self._is_forked, self._finalizer = threading.RLock(), True, None

    def _let_go(self) -> None:
        if (finalizer := self._finalizer) is not None:
            finalizer()
            self._finalizer = self._stream = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError(f"this {self._what} is closed: make another")

    def __reduce__(self) -> Any:
        raise InputError(
            f"a {type(self).__name__} is not copied or pickled, as it has threads and a place in a "
            "run: make another one in the same way, and call its set_state(first.get_state())"
        )

    def __del__(self) -> None:  # noqa: B027
        """Do nothing, unlike grain: a stream closes when nothing refers to its iterator."""


class Ahead(Iterator[T]):
    """What another iterator yields, taken ahead by a thread as long as there is room.

    Args:
        items: whose errors are raised after what it yielded before.
        has_room: whether another is taken beside those that are ready, the oldest first.
        name: of the thread.
        close: ends what the thread may wait for.
    """

    def __init__(
        self,
        items: Iterator[T],
        has_room: Callable[[Sequence[T]], bool],
        name: str,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._items, self._has_room, self._close = items, has_room, close
        self._ready = deque[T]()
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._ended, self._error = False, list[BaseException]()
        self._thread = in_background(self._work, name=name, stopped=self._stopped, wake=self._stop)

    def __next__(self) -> T:
        for item in self.take(1):
            return item
        raise StopIteration

    def take(self, most: int) -> list[T]:
        """At least one and at most so many; none at the end."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._ready or self._ended, TICK):
                check_stop()
            some = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._changed.notify_all()
            if not some and self._error:
                raise self._error.pop()
            return some

    def close(self) -> None:
        """Stop the thread, and hand out nothing more.

        What the thread is in the middle of may need a lock that the caller has, if that is Python's
        garbage collector: then it ends later.
        """
        self._stop()
        self._close()
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_SECONDS)

    def _stop(self) -> None:
        with self._changed:
            self._stopped.set()
            self._ended = True
            self._ready.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while self._waited_for_room():
                item = next(self._items)
                with self._changed:
                    self._ready.extend([] if self._ended else [item])
                    self._changed.notify_all()
        except BaseException as error:  # for whoever takes
            if not (isinstance(error, StopIteration) or self._stopped.is_set()):
                self._error.append(error)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _waited_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has_room(self._ready))
            return not self._ended


def made_ahead(stream: Stream, depth: int) -> Stream:
    """The same batches, as many as `depth` of them made ahead by a thread."""
    ahead = Ahead(stream, lambda ready: len(ready) < depth, "jaxdata-ahead", stream.close)
    return Stream(ahead, ahead.close)


def make_in_groups(
    maker: BatchMaker,
    take: Callable[[int], list[Span]],
    buffers: BufferPool = HOST_BUFFERS,
) -> Iterator[tuple[Span, Any]]:
    """Make batches in groups: one at first, since the trainer waits for it, then ever more.

    `take(n)` gives the next spans, at most *n*; none at the end.
    """
    count = 1
    while spans := take(count):
        yield from zip(spans, maker.make(spans, buffers), strict=True)
        count = min(2 * count, maker.together(spans[-1]))


class Change(NamedTuple):
    """Other rows from one on that no stream has begun: what was begun is the same."""

    amend: Callable[[BatchMaker], BatchMaker]
    """picklable"""
    spans: Iterator[Span]
    """the batches after those delivered"""


class DirectStream(Stream):
    """Batches made when they are requested; another thread may change those not yet begun."""

    def __init__(self, maker: BatchMaker, spans: Iterator[Span]) -> None:
        self._maker, self._last = maker, -1
        self._changes = deque[Change]()
        super().__init__(make_in_groups(maker, self._taking(spans)))

    def _taking(self, spans: Iterator[Span]) -> Callable[[int], list[Span]]:
        """What gives the next so many."""
        return lambda count: list(islice(spans, count))

    def change(self, change: Change) -> None:
        """Make the next batch, and all that follow, by another recipe."""
        self._changes.append(change)

    def __next__(self) -> tuple[Span, Any]:
        while self._changes:
            amend, spans = self._changes.popleft()
            self._maker = amend(self._maker)
            left = dropwhile(lambda span: span.first <= self._last, spans)
            self._batches = make_in_groups(self._maker, self._taking(left))
        span, batch = next(self._batches)
        self._last = span.first
        return span, batch


class FarStream(DirectStream):
    """The same of rows in a bucket, which a thread has the stores fetch ahead."""

    _ahead: Ahead[_Told] | None = None
    _is_closed = False

    def _taking(self, spans: Iterator[Span]) -> Callable[[int], list[Span]]:
        self._stop()
        ahead = self._ahead = told_ahead(self._maker, spans)
        if self._is_closed:  # meanwhile, by another thread
            self._stop()
        return lambda count: [each.span for each in ahead.take(count)]

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def close(self) -> None:
        self._is_closed = True
        self._stop()


class _Told(NamedTuple):
    """A batch of which a store was told, and the bytes of all up to its begin and its end."""

    span: Span
    begin: int
    end: int


def told_ahead(maker: BatchMaker, spans: Iterator[Span]) -> Ahead[_Told]:
    """Have stores fetch what batches are made of, as much as is taken in a few seconds."""
    began, most = time.monotonic(), most_ahead()

    def told() -> Iterator[_Told]:
        count, end = 1, 0
        while some := list(islice(spans, count)):
            try:
                each = prefetch(maker, some) // len(some)
            except Exception:  # whoever makes the batch meets it, too
                each = 0
            for span in some:
                yield _Told(span, end, end := end + each)
            count = min(2 * count, _AT_ONCE)

    def has_room(ready: Sequence[_Told]) -> bool:
        if not ready:
            return True
        taken = ready[0].begin
        rate = taken / max(time.monotonic() - began, 1e-3)
        window = min(max(rate * _WINDOW_SECONDS, _LEAST_WINDOW), most)
        return len(ready) < _MOST_BATCHES and ready[-1].end - taken < window

    return Ahead(told(), has_room, "jaxdata-read-ahead")


def prefetch(maker: BatchMaker, spans: Sequence[Span]) -> int:
    """Begin to fetch what some batches are made of; returns its bytes."""
    size = 0
    for files, ranges in maker.far_ranges(spans):
        files.prefetch(ranges)
        size += ranges.nbytes
    return size


def with_first_fill(stream: Stream, reads: Callable[[], ReadCounts]) -> Stream:
    """A stream from a bucket that says, while its first batch is waited for, what was fetched."""
    began = time.monotonic()

    def so_far() -> str:
        counts, seconds = reads(), time.monotonic() - began
        return f"{counts.bytes / 1e6:,.1f} MB in {counts.gets:,} GETs, {seconds:.1f} s"

    def batches() -> Iterator[tuple[Any, Any]]:
        with status_line(lambda: f"fetching the first batch: {so_far()}"):
            first = next(stream, None)
        if first is not None:
            _log.info("the first batch is here: %s", so_far())
            yield first
            yield from stream

    return Stream(batches(), stream.close)
