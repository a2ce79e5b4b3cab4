"""Files of a bucket whose pages are cached on this host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from jaxdata.format.storage.pages.counts import READS
from jaxdata.format.storage.pages.page_cache import PageCache, page_cache
from jaxdata.format.storage.pages.page_folder import PAGE_BYTES
from jaxdata.format.storage.patience import check_stop
from jaxdata.format.storage.ranges import ExactRanges
from jaxdata.format.storage.remote import RemoteStore
from jaxdata.ragged import ByteRanges, Ints

_PAGES_A_FILE = 2**24
_PAGE_SECONDS = 0.25
"""how long a batch waits for a page that is under way, before it asks for its ranges"""
_MOST_AHEAD = 2**28
"""bytes of ranges that are asked for ahead, where pages are of no use"""


class StoredFile(NamedTuple):
    """What is known of a file before it is read."""

    name: str
    size: int
    sha256: str


class PagedFiles:
    """Ranges of files: slices of cached pages, exact ranges until these are there.

    A batch waits for a page only where its request is under way; what is not asked for yet, or
    comes too late, is read by exact ranges, so that a slow page delays nobody.
    """

    def __init__(self, store: RemoteStore, files: Sequence[StoredFile]) -> None:
        self._files = files
        self._exact: ExactRanges = store.ranges([file.name for file in files])
        self.by_pages = True
        """whether pages are worth fetching: whoever reads knows which will be used"""

    @cached_property
    def _cache(self) -> PageCache | None:
        return page_cache()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    def gather(self, file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        """See `Store`; of these files."""
        began = time.perf_counter()
        READS.used_bytes += int((stop - start).sum())
        try:
            return self._gather(file, start, stop)
        finally:
            READS.wait_seconds += time.perf_counter() - began

    def _gather(self, file: Ints, start: Ints, stop: Ints) -> ByteRanges:
        page = start // PAGE_BYTES
        numbers, which = np.unique(file * _PAGES_A_FILE + page, return_inverse=True)
        names = [self._name(number) for number in numbers.tolist()]
        maps = self._pages(names)
        within = start - page * PAGE_BYTES
        here = np.array([data is not None for data in maps], bool)[which]
        here &= within + (stop - start) <= PAGE_BYTES
        found, late = np.flatnonzero(here), np.flatnonzero(~here)
        READS.hits, READS.misses = READS.hits + len(found), READS.misses + len(late)
        views = ByteRanges(
            [data or b"" for data in maps],
            which[found],
            within[found],
            (within + stop - start)[found],
        )
        if not len(late):
            return views
        if self.by_pages:
            self._want(numbers[np.unique(which[late])])
        copies = ByteRanges.of(self._exact.read(file[late], start[late], stop[late]))
        order = np.argsort(np.concatenate([found, late]))
        return ByteRanges.chain([views, copies]).take(order)

    def _pages(self, names: list[str]) -> list[memoryview | None]:
        """The pages that are here, or nearly."""
        if (cache := self._cache) is None:
            return [None] * len(names)
        maps = cache.folder.get(names)
        sent = [n for n, data in zip(names, maps, strict=True) if data is None]
        sent = [name for name in sent if cache.fetcher.is_sent(name)]
        if not sent:
            return maps
        cache.fetcher.wait(sent, _PAGE_SECONDS, check_stop)
        return cache.folder.get(names)

    def prefetch(self, file: Ints, start: Ints, stop: Ints) -> None:
        """Begin to fetch what holds some ranges, which are soon read, in this order."""
        if not self.by_pages or self._cache is None:
            self._exact.forget(_MOST_AHEAD)
            self._exact.ask(file, start, stop)
            return
        numbers, first = np.unique(file * _PAGES_A_FILE + start // PAGE_BYTES, return_index=True)
        self._want(numbers[np.argsort(first)])

    def _want(self, numbers: Ints) -> None:
        """Have pages fetched that are not here."""
        if (cache := self._cache) is None:
            return
        names = [(number, self._name(number)) for number in numbers.tolist()]
        maps = cache.folder.get([name for _, name in names])
        absent = [pair for pair, data in zip(names, maps, strict=True) if data is None]
        cache.fetcher.want((name, partial(self._fetch, number)) for number, name in absent)

    def _fetch(self, number: int) -> bytes:
        file, page = divmod(number, _PAGES_A_FILE)
        start = page * PAGE_BYTES
        READS.pages += 1
        return self._exact.fetch(file, start, min(start + PAGE_BYTES, self._files[file].size))

    def _name(self, number: int) -> str:
        file, page = divmod(number, _PAGES_A_FILE)
        return f"{self._files[file].sha256[:32]}/{page}"
