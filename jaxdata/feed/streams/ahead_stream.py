"""Batches made ahead of time by a thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from jaxdata.background import TICK, in_background
from jaxdata.feed.batches import Stream
from jaxdata.feed.schedule import Span

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
