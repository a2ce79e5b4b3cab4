"""Threads in the background: each can be told to stop, and has stopped when Python ends.

Python ends daemon threads wherever they are; in the middle of a call of a C++ library that aborts
the process.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, Self, TypeVar

TICK = 0.05
"""seconds after which a wait looks whether it is in vain

No wait is without a limit: a signal that comes just before the wait begins would not end it.
"""
_GRACE_SECONDS = 10.0
"""in which threads that were told to stop must come to a point where they do, when Python ends"""
_LEAVING_SECONDS = 2.0
"""the same, when a block is left"""
T = TypeVar("T")
_in_vain: ContextVar[Callable[[], bool]] = ContextVar("in_vain", default=lambda: False)
_stops: dict[threading.Thread, Callable[[], None]] = {}
"""of each that runs, what makes it stop"""


class Stopped(Exception):
    """Nobody waits any more for what this thread waits for."""


@contextmanager
def until(stop: Callable[[], bool]) -> Iterator[None]:
    """Within, waiting ends with `Stopped` as soon as `stop()`, as another thread may decide."""
    outer = _in_vain.get()
    token = _in_vain.set(lambda: stop() or outer())
    try:
        yield
    finally:
        _in_vain.reset(token)


def within(seconds: float) -> AbstractContextManager[None]:
    """Within, waiting ends with `Stopped` after some seconds."""
    end = time.monotonic() + seconds
    return until(lambda: time.monotonic() > end)


def check_stop() -> None:
    """Raise `Stopped` where the thread waits in vain."""
    if _in_vain.get()():
        raise Stopped


def waited(future: Future[T]) -> T:
    """The result of a future.

    Raises:
        Stopped: see `until`.
    """
    while not future.done():
        with suppress(TimeoutError):
            return future.result(TICK)
        check_stop()
    return future.result()


def pause(seconds: float) -> None:
    """Sleep; raises Stopped (see `until`)."""
    end = time.monotonic() + seconds
    while (remains := end - time.monotonic()) > 0:
        check_stop()
        time.sleep(min(TICK, remains))


class Threads:
    """Threads that make calls side by side, in a `with` block.

    When the block is left, nothing more is begun, and what is under way ends with `Stopped` where
    it waits: a Ctrl-C is held up by no call.

    >>> with Threads(4) as threads:
    ...     threads.map(abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, do: Callable[..., T], *args: Any) -> Future[T]:
        """Have a call made by the next thread that is free."""
        future: Future[T] = Future()
        self._calls.put(partial(_make, future, partial(do, *args)))
        if len(self._threads) < self._most:
            work = partial(_make_all, self._calls, self._stopped)
            wake = partial(self._calls.put, None)
            name = "jaxdata-side-by-side"
            self._threads.append(in_background(work, name=name, stopped=self._stopped, wake=wake))
        return future

    def map(self, do: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """The results of calls, in order; raises what the first of them raises."""
        return [waited(future) for future in [self.submit(do, item) for item in items]]

    def ended(self, futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
        """What was submitted, as it ends."""
        left = set(futures)
        while left:
            done, left = wait(left, TICK, FIRST_COMPLETED)
            yield from done
            check_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Begin no further call, and let those under way end where they wait."""
        self._stopped.set()
        self._calls.put(None)
        end = time.monotonic() + _LEAVING_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))


def _make(future: Future[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def _make_all(calls: SimpleQueue[Callable[[], None] | None], stopped: threading.Event) -> None:
    while (call := calls.get()) is not None and not stopped.is_set():
        call()
        del call  # what it holds, its result among it, is its caller's
    calls.put(None)  # for the next thread


def in_background(
    work: Callable[[], None],
    *,
    name: str,
    stopped: threading.Event | None = None,
    wake: Callable[[], object] = lambda: None,
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
            with until(event.is_set), suppress(Stopped):
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
