"""Fetching pages in the background, in the order in which they are needed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from jaxdata.base.threads import in_background
from jaxdata.storage.pages.page_folder import PageFolder

_THREADS = 32
_BEHIND = 8 * _THREADS
_OTHERS_SECONDS = 0.02
_IDLE_SECONDS = 5.0
_GRACE_SECONDS = 1.0


class Wanted(NamedTuple):
    """A page to fetch: what `PageFolder.add` takes."""

    name: str
    size: int
    fetch: Callable[[], Iterable[bytes]]


class PageFetcher:
    """Threads that fetch wanted pages into a folder, each page once for all processes."""

    def __init__(self, folder: PageFolder) -> None:
        self._folder = folder
        self._wanted: OrderedDict[str, Wanted] = OrderedDict()
        self._sent: set[str] = set()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = threading.Event()

    def want(self, pages: Iterable[Wanted]) -> None:
        """Fetch pages that are neither here nor asked for, after those that were wanted before."""
        with self._changed:
            for page in pages:
                if page.name not in self._sent:
                    self._wanted.setdefault(page.name, page)
            for _ in range(min(len(self._wanted) - self._idle, _THREADS - len(self._threads))):
                thread = in_background(
                    self._work, name="jaxdata-pages", stopped=self._closed, wake=self._wake
                )
                self._threads.add(thread)
            self._changed.notify_all()

    def is_sent(self, name: str) -> bool:
        """Whether a request for the page is under way."""
        return name in self._sent

    @property
    def is_behind(self) -> bool:
        """Whether a page that is wanted now comes late."""
        return len(self._wanted) > _BEHIND

    def wait(self, names: Iterable[str], seconds: float, check: Callable[[], None]) -> None:
        """Wait until the requests for these pages have ended, for some seconds at most."""
        end = time.monotonic() + seconds
        left = set(names)
        with self._changed:
            while (left := left & self._sent) and (remains := end - time.monotonic()) > 0:
                check()
                self._changed.wait(min(remains, 0.05))

    @property
    def left(self) -> int:
        """Pages that are wanted and not here yet."""
        return len(self._wanted) + len(self._sent)

    def close(self) -> None:
        """Fetch nothing more; wait for the threads, whose calls must not outlive Python."""
        with self._changed:
            self._closed.set()
            self._wanted.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join(_GRACE_SECONDS)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _work(self) -> None:
        while (page := self._next()) is not None:
            try:
                done = self._fetch(page)
            except Exception:  # whoever needs the page asks for its ranges, and meets it, too
                done = True
            self._ended(page, again=not done)

    def _next(self) -> Wanted | None:
        """The next page to fetch; None ends the thread."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._wanted or self._closed.is_set(), _IDLE_SECONDS)
            self._idle -= 1
            if not self._wanted:
                self._threads.discard(threading.current_thread())
                return None
            name, page = self._wanted.popitem(last=False)
            self._sent.add(name)
            return page

    def _fetch(self, page: Wanted) -> bool:
        """Fetch a page, unless another process does; the folder says where it cannot be written."""
        name = page.name
        if self._folder.has(name):
            return True
        if not self._folder.claims.take(name):
            time.sleep(_OTHERS_SECONDS)
            return False
        try:
            if not self._folder.has(name):  # the other process may have ended meanwhile
                self._folder.add(*page)
        finally:
            with suppress(OSError):
                self._folder.claims.release(name)
        return True

    def _ended(self, page: Wanted, *, again: bool) -> None:
        with self._changed:
            self._sent.discard(page.name)
            if again and not self._closed.is_set():
                self._wanted[page.name] = page
            self._changed.notify_all()
