"""Threads in the background: each can be told to stop, and has stopped when Python ends.

Python ends daemon threads wherever they are; in the middle of a call of a C++ library that aborts
the process.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_GRACE_SECONDS = 10.0
"""in which threads that were told to stop must come to a point where they do"""
_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)
_stops: dict[threading.Thread, Callable[[], None]] = {}
"""of each that runs, what makes it stop"""


class Stopped(Exception):
    """Nobody waits any more for what this thread waits for."""


@contextmanager
def until(stop: threading.Event) -> Iterator[None]:
    """Within, waiting ends with `Stopped` as soon as `stop` is set by another thread."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def check_stop() -> None:
    """Raise `Stopped` where the thread waits in vain."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise Stopped


def in_background(
    work: Callable[[], None],
    *,
    name: str,
    stopped: threading.Event | None = None,
    wake: Callable[[], None] = lambda: None,
) -> threading.Thread:
    """Start a thread that does some work until `stopped` is set, at the latest when Python ends.

    Args:
        work: what it does.
        name: of the thread.
        stopped: an event that `work` looks at wherever it waits.
        wake: ends a wait that does not; called after the event is set. Neither may refer to what
            is to be closed by the garbage collector.

    Raises:
        RuntimeError: there are too many threads, or Python ends.

    >>> done = []
    >>> in_background(lambda: done.append(1), name="example").join()
    >>> done
    [1]
    """
    event = stopped or threading.Event()

    def run() -> None:
        try:
            with until(event), suppress(Stopped):
                work()
        finally:
            _stops.pop(thread, None)

    def stop() -> None:
        event.set()
        wake()

    thread = threading.Thread(target=run, daemon=True, name=name)
    _stops[thread] = stop
    try:
        thread.start()
    except RuntimeError:
        del _stops[thread]
        raise
    return thread


@atexit.register
def _stop_all() -> None:
    running = list(_stops.items())
    for _, stop in running:
        stop()
    end = time.monotonic() + _GRACE_SECONDS
    for thread, _ in running:
        thread.join(max(end - time.monotonic(), 0))


os.register_at_fork(after_in_child=_stops.clear)  # none of them is in the copy
