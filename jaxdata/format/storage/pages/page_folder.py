"""Pages of files in a folder that all processes of a host share.

A page is a file, published by rename and mapped by whoever needs it. What is evicted is unlinked:
maps of it stay valid, so a reader never sees anything but the page. A page that a run under way
needs has a link in the folder of that run (`run_folder`), and goes only after all that have none;
among these, the one that was needed longest ago goes first.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxdata.errors import DatasetError
from jaxdata.format.storage.maps import map_file
from jaxdata.format.storage.pages.claims import Claims
from jaxdata.format.storage.pages.read_counts import READS
from jaxdata.format.storage.pages.run_folder import RunFolder, sweep

PAGE_BYTES = 2**20
"""fixed: an index has a checksum of each page"""
LABELS = "labels"
COLUMN = "column"
"""the only page of a column of an index"""
_MOST_MAPS = 2**13
_SLACK = 1 / 32
"""of the limit: bytes that a process adds before it looks at all pages again"""


def key_of(sha256: str) -> str:
    """The name of the folder of the pages of a file."""
    return sha256[:32]


class _Page(NamedTuple):
    needed: bool
    """by a run under way"""
    used_at: int
    size: int
    path: str


class PageFolder:
    """The pages that this host has, and those that this process needs.

    Args:
        root: the folder; one for each user.
        most: bytes of all pages together.
    """

    def __init__(self, root: Path, most: int) -> None:
        self.most = most
        self._pages, self.runs = root / "pages", root / "runs"
        self._labels, self._labelled = root / LABELS, set[str]()
        self._pages.mkdir(parents=True, exist_ok=True)
        self.claims, self._run = Claims(root / "claims"), RunFolder(self.runs)
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._lock, self._closed = threading.Lock(), False
        self._added = most  # nothing is known yet

    def get(self, names: Sequence[str]) -> list[memoryview | None]:
        """The content of pages, as far as they are here; this run needs them from now on."""
        with self._lock:
            return [self._get(name) for name in names]

    def _get(self, name: str) -> memoryview | None:
        if name in self._maps:
            self._maps.move_to_end(name)
            return self._maps[name]
        data = self._map(name)
        if data is not None:
            self._maps[name] = data
            if len(self._maps) > _MOST_MAPS:
                self._drop(1)
        return data

    def _map(self, name: str) -> memoryview | None:
        if self._closed:  # a thread that fetches may be late: no link is made any more
            return None
        page = self._pages / name
        link = self._run.pin(page, name.replace("/", "-"))
        if link is None:
            return None
        with suppress(OSError):
            os.utime(page)
        with suppress(DatasetError):  # it is missing: somebody cleared the cache
            return map_file(link)
        return None

    def _drop(self, count: int) -> None:
        """Need the pages no more that were needed longest ago."""
        for _ in range(min(count, len(self._maps))):
            name, _data = self._maps.popitem(last=False)
            self._run.unpin(name.replace("/", "-"))

    def has(self, name: str) -> bool:
        """Whether a page is here."""
        return name in self._maps or (self._pages / name).exists()

    def add(self, name: str, data: bytes) -> None:
        """Publish a page, which this run needs."""

        def write(path: Path) -> None:
            path.write_bytes(data)

        self.add_file(name, write)

    def add_file(self, name: str, write: Callable[[Path], None]) -> None:
        """Publish a file, which this run needs; `write` writes it."""
        page = self._pages / name
        page.parent.mkdir(exist_ok=True)
        temporary = self.runs / f".tmp-{secrets.token_hex(8)}"
        try:
            write(temporary)
            self._added += temporary.stat().st_size
            temporary.replace(page)
        finally:
            temporary.unlink(missing_ok=True)
        self.get([name])
        if self._added > self.most * _SLACK:
            self.make_room()

    def remove(self, names: Sequence[str]) -> None:
        """Delete pages."""
        with self._lock:
            for name in names:
                if self._maps.pop(name, None) is not None:
                    self._run.unpin(name.replace("/", "-"))
                (self._pages / name).unlink(missing_ok=True)

    def column_bytes(self) -> int:
        """Bytes of the columns of an index that this process needs."""
        with self._lock:
            return sum(len(data) for name, data in self._maps.items() if name.endswith(COLUMN))

    def label(self, sha256: str, text: str) -> None:
        """Say what file it is that pages are of, for people who look at the cache."""
        if sha256 not in self._labelled:
            self._labelled.add(sha256)
            with suppress(OSError):
                self._labels.mkdir(exist_ok=True)
                (self._labels / key_of(sha256)).write_text(text)

    def make_room(self) -> None:
        """Evict what is beyond the limit; one process at a time."""
        if not self.claims.take("room"):
            return
        try:
            self._evict()
            self._added = 0
        finally:
            self.claims.release("room")

    def _evict(self) -> None:
        sweep(self.runs)
        found = _scan(self._pages)
        beyond = sum(page.size for page in found) - int(self.most * (1 - _SLACK))
        if beyond <= 0:
            return
        beyond -= _unlink([page for page in found if not page.needed], beyond)
        if beyond > 0:
            with self._lock:
                self._drop(max(len(self._maps) // 4, beyond // PAGE_BYTES + 1))
            _unlink([page for page in _scan(self._pages) if not page.needed], beyond)

    def close(self) -> None:
        """Need no page any more."""
        with self._lock:
            self._closed = True
            self._maps.clear()
        READS.move_to(None)
        self._run.close()
        self.claims.close()


def _scan(pages: Path) -> list[_Page]:
    """All pages, those first that were needed longest ago."""
    found = []
    with os.scandir(pages) as folders:
        for folder in folders:
            with suppress(FileNotFoundError), os.scandir(folder.path) as files:
                found += [_page(each) for each in files]
    return sorted((page for page in found if page), key=lambda page: page.used_at)


def _page(entry: os.DirEntry[str]) -> _Page | None:
    with suppress(FileNotFoundError):
        seen = entry.stat()
        return _Page(seen.st_nlink > 1, seen.st_mtime_ns, seen.st_size, entry.path)
    return None


def _unlink(pages: Sequence[_Page], beyond: int) -> int:
    """Delete pages until `beyond` bytes are gone; returns how many are."""
    gone = 0
    for page in pages:
        if gone >= beyond:
            break
        with suppress(FileNotFoundError):
            os.unlink(page.path)  # noqa: PTH108
            gone += page.size
    return gone
