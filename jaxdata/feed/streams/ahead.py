"""Batches made ahead of time by a thread, and what they are made of fetched from a bucket."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from jaxdata.base.progress import status_line
from jaxdata.base.threads import TICK, check_stop, in_background
from jaxdata.feed.batches import BatchMaker, DirectStream, Stream, make_in_groups, prefetch
from jaxdata.feed.schedule import Span
from jaxdata.rows.table import Batch
from jaxdata.storage.pages.page_cache import most_ahead
from jaxdata.storage.pages.read_counts import ReadCounts

_GRACE_SECONDS = 5.0


class AheadStream:
    """Another stream, taken `depth` batches ahead by a thread.

    Its queues are `SimpleQueue`s: a stream that is garbage may be closed by any thread at any time,
    in the middle of an operation on them too.
    """

    def __init__(self, stream: Stream, depth: int) -> None:
        self._stream = stream
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._stopped = threading.Event()
        pump = partial(_pump, stream, self._ready, self._room, self._stopped)
        wake = partial(self._room.put, None)
        self._thread = in_background(pump, name="jaxdata-ahead", stopped=self._stopped, wake=wake)

    def __next__(self) -> tuple[Span, Any]:
        item: Any = None
        while item is None:
            with suppress(Empty):
                item = self._ready.get(timeout=TICK)
        if isinstance(item, _Raised):
            # Not the same error again: it refers to its callers, and would keep them.
            self._ready.put(_Raised(StopIteration()))
            raise item.error
        self._room.put(None)
        return item  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the thread and the stream that it reads.

        What the thread is in the middle of may need a lock that the caller has, if that is Python's
        garbage collector: then it ends later.
        """
        self._stopped.set()
        self._room.put(None)
        self._stream.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_SECONDS)
        with suppress(Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(_Raised(StopIteration()))  # for a reader in another thread


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _pump(
    stream: Stream, ready: SimpleQueue[Any], room: SimpleQueue[None], stopped: threading.Event
) -> None:
    try:
        room.get()
        while not stopped.is_set():
            ready.put(next(stream))
            room.get()
    except BaseException as error:  # handed to the consumer, StopIteration included
        if not stopped.is_set():
            ready.put(_Raised(error))


_log = logging.getLogger("jaxdata")

_WINDOW_SECONDS = 4.0
_LEAST_WINDOW = 2**24
"""bytes of rows"""
_MOST_BATCHES = 4_096
_FETCH_GRACE_SECONDS = 1.0
_AT_ONCE = 16
"""batches that are looked up in a pass"""


class FarStream(DirectStream):
    """Batches made when they are requested, of rows that are fetched ahead."""

    _ahead: ReadAhead | None = None
    _closed = False

    def _begin(self, spans: Iterator[Span]) -> Iterator[tuple[Span, Batch]]:
        self._stop()
        ahead = self._ahead = ReadAhead(self._maker, spans)
        if self._closed:  # meanwhile, by another thread
            self._stop()
        return make_in_groups(self._maker, ahead.take)

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def close(self) -> None:
        """Stop to fetch."""
        self._closed = True
        self._stop()


class FirstFill:
    """A stream from a bucket that says, while its first batch is waited for, what was fetched."""

    def __init__(self, stream: Stream, reads: Callable[[], ReadCounts]) -> None:
        self._stream, self._reads = stream, reads
        self._filled, self._began = False, time.monotonic()
        self.close = stream.close

    def __next__(self) -> tuple[Span, Any]:
        if self._filled:
            return next(self._stream)
        with status_line(lambda: f"fetching the first batch: {self._so_far()}"):
            first = next(self._stream)
        self._filled = True
        _log.info("the first batch is here: %s", self._so_far())
        return first

    def _so_far(self) -> str:
        counts, seconds = self._reads(), time.monotonic() - self._began
        return f"{counts.bytes / 1e6:,.1f} MB in {counts.gets:,} GETs, {seconds:.1f} s"


class ReadAhead:
    """Hands out spans, ahead of which a thread has the stores fetch."""

    def __init__(self, maker: BatchMaker, spans: Iterator[Span]) -> None:
        self._maker, self._spans = maker, spans
        self._known: deque[tuple[Span, int]] = deque()
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._ended, self._most = False, most_ahead()
        self._ahead = self._taken = 0  # bytes
        self._began = time.monotonic()
        self._thread = in_background(
            self._work, name="jaxdata-read-ahead", stopped=self._stopped, wake=self._end
        )

    def take(self, count: int) -> list[Span]:
        """The next spans, at most `count`; none at the end."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._known or self._ended, TICK):
                check_stop()
            some = [self._known.popleft() for _ in range(min(count, len(self._known)))]
            size = sum(each for _, each in some)
            self._ahead, self._taken = self._ahead - size, self._taken + size
            self._changed.notify_all()
        return [span for span, _ in some]

    def close(self) -> None:
        """Tell stores nothing more; whoever takes, gets nothing more."""
        with self._changed:
            self._stopped.set()
            self._ended = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_FETCH_GRACE_SECONDS)  # a library's call must end before Python does

    @property
    def _window(self) -> float:
        """Bytes that are taken in a few seconds."""
        rate = self._taken / max(time.monotonic() - self._began, 1e-3)
        return min(max(rate * _WINDOW_SECONDS, _LEAST_WINDOW), self._most)

    def _work(self) -> None:
        count = 1
        try:
            while spans := list(islice(self._spans, count)):
                if not self._room_for(spans, self._tell(spans)):
                    break
                count = min(2 * count, _AT_ONCE)
        finally:
            self._end()

    def _tell(self, spans: list[Span]) -> int:
        try:
            return prefetch(self._maker, spans)
        except Exception:  # whoever makes the batch meets it, too
            return 0

    def _room_for(self, spans: list[Span], size: int) -> bool:
        """Hand out spans, and wait until more may be fetched; False at the end."""
        with self._changed:
            if self._ended:
                return False
            self._known.extend((span, size // len(spans)) for span in spans)
            self._ahead += size // len(spans) * len(spans)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._wants_more)
            return not self._ended

    @property
    def _wants_more(self) -> bool:
        """Whether less than the window is handed out; sources at hand count as no bytes."""
        few = len(self._known) < _MOST_BATCHES
        return not self._known or (few and self._ahead < self._window)

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
