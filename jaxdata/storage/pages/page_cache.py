"""The page cache of this process: where it lies, how large it may become, what it fetches next."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxdata.base.errors import InputError
from jaxdata.base.threads import in_background
from jaxdata.storage.pages.own_folder import network_file_system, place_of
from jaxdata.storage.pages.page_folder import PageFolder
from jaxdata.storage.pages.read_counts import READS, ReadCounts
from jaxdata.storage.pages.run_folder import counts_of_family

_log = logging.getLogger("jaxdata")
_MOST_AHEAD = 2**28
_SHARE = 1 / 10
"""of the free disk, by default"""

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


class PageCache:
    """Pages here, and threads that fetch others."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = PageFolder(folder, most)
        self.fetcher = PageFetcher(self.folder)

    @property
    def most(self) -> int:
        """Bytes of all pages together."""
        return self.folder.most

    def close(self) -> None:
        """Stop fetching, and need no page any more."""
        self.fetcher.close()
        self.folder.close()


_open: dict[tuple[int, str], PageCache | None] = {}


def page_cache() -> PageCache | None:
    """The cache of this process; None if there can be none, which is said once.

    It lies in `$JAXDATA_CACHE` (`~/.cache/jaxdata`) and holds at most `$JAXDATA_CACHE_BYTES`, by
    default a tenth of the free disk.
    """
    root = cache_root()
    key = (os.getpid(), str(root))
    if key not in _open:
        _open[key] = _try_to_open(root)
        atexit.register(close_caches)
    return _open[key]


def cache_root() -> Path:
    """`$JAXDATA_CACHE`, or `~/.cache/jaxdata`."""
    return Path(os.environ.get("JAXDATA_CACHE", "~/.cache/jaxdata")).expanduser()


def most_ahead() -> int:
    """Bytes of rows that are fetched before they are needed: an eighth of the cache, at most."""
    cache = page_cache()
    return _MOST_AHEAD if cache is None else min(_MOST_AHEAD, cache.most // 8)


def read_counts() -> ReadCounts:
    """What this process and its children have fetched from buckets."""
    cache = page_cache()
    return READS.read() if cache is None else counts_of_family(cache.folder.runs)


def close_caches() -> None:
    """Close the caches of this process, as at its end."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        if cache := _open.pop(key):
            cache.close()


def _try_to_open(root: Path) -> PageCache | None:
    try:
        cache = PageCache(place_of(root), limit_bytes(root))
    except OSError as error:
        _log.warning(
            "no pages are cached in %s (%s): what rows need is fetched range by range; "
            "JAXDATA_CACHE names another folder",
            root,
            str(error),  # with its frames, whatever these hold would live as long as the record
        )
        return None
    if kind := network_file_system(root):
        _log.warning("%s", network_line(root, kind))
    return cache


def network_line(root: Path, kind: str) -> str:
    """What a cache on a network file system costs, and the remedy."""
    return (
        f"the page cache {root} is on a network file system ({kind}): what was fetched from a "
        "bucket crosses the network again, and each host has pages of its own there. Let "
        "JAXDATA_CACHE name a folder on a local disk"
    )


def limit_bytes(root: Path) -> int:
    """`$JAXDATA_CACHE_BYTES`, or a tenth of what the disk has free."""
    text = os.environ.get("JAXDATA_CACHE_BYTES", "")
    try:
        return int(text) if text else int(shutil.disk_usage(_there(root)).free * _SHARE)
    except ValueError:
        raise InputError(
            f"JAXDATA_CACHE_BYTES={text!r}: expected a whole number of bytes, like 200000000000"
        ) from None


def _there(path: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
