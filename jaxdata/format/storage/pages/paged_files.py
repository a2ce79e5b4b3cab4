"""Files of a bucket whose pages are cached on this host."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage.pages.page_cache import PageCache, page_cache
from jaxdata.format.storage.pages.page_folder import PAGE_BYTES
from jaxdata.format.storage.pages.read_counts import READS
from jaxdata.format.storage.patience import check_stop
from jaxdata.format.storage.ranges import ExactRanges
from jaxdata.format.storage.remote import RemoteStore
from jaxdata.ragged import ByteRanges, Ints

_log = logging.getLogger("jaxdata")

Bools = NDArray[np.bool_]
_PAGES_A_FILE = 2**24
_PAGE_SECONDS = 0.25
"""how long a batch waits for a page that is under way, before it asks for its ranges"""
_LEAST_USE = 1 / 4
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
        self._files, self._url = files, store.url
        self._fetched = self._used = 0
        self._exact: ExactRanges = store.ranges([file.name for file in files])
        self.by_pages = True
        """whether pages are worth fetching: whoever reads knows which will be used"""
        self.dealt_by_pages = False
        """whether documents that share a page are needed together, and their neighbours are not"""

    @cached_property
    def _cache(self) -> PageCache | None:
        return page_cache()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    def gather(self, file: Ints, start: Ints, stop: Ints, home: Bools) -> ByteRanges:
        """See `Store`; `home` says whether the page of a range is worth fetching for it."""
        began, size = time.perf_counter(), int((stop - start).sum())
        try:
            return self._gather(file, start, stop, home)
        finally:
            self._used += size
            READS.add(used_bytes=size, wait_seconds=time.perf_counter() - began)

    def _gather(self, file: Ints, start: Ints, stop: Ints, home: Bools) -> ByteRanges:
        page = start // PAGE_BYTES
        numbers, which = np.unique(file * _PAGES_A_FILE + page, return_inverse=True)
        maps = self._pages([self._name(number) for number in numbers.tolist()])
        within = start - page * PAGE_BYTES
        here = np.array([data is not None for data in maps], bool)[which]
        here &= within + (stop - start) <= PAGE_BYTES
        found, late = np.flatnonzero(here), np.flatnonzero(~here)
        READS.add(hits=len(found), misses=len(late))
        stops = (within + stop - start)[found]
        views = ByteRanges([data or b"" for data in maps], which[found], within[found], stops)
        if not len(late):
            return views
        self._want(numbers[np.unique(which[~here & self._by_page(home)])])
        copies = ByteRanges.of(self._exact.read(file[late], start[late], stop[late]))
        order = np.argsort(np.concatenate([found, late]))
        return ByteRanges.chain([views, copies]).take(order)

    def _by_page(self, home: Bools) -> Bools:
        """Which ranges are worth their page."""
        whole = np.full_like(home, self.by_pages and self._cache is not None)
        return whole & home if self.dealt_by_pages else whole

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

    def prefetch(self, file: Ints, start: Ints, stop: Ints, home: Bools) -> None:
        """Begin to fetch what holds some ranges, which are soon read, in this order."""
        by_page = self._by_page(home)
        numbers = (file * _PAGES_A_FILE + start // PAGE_BYTES)[by_page]
        pages, first = np.unique(numbers, return_index=True)
        self._want(pages[np.argsort(first)])
        self._exact.forget(_MOST_AHEAD)
        self._exact.ask(*(column[~by_page] for column in (file, start, stop)))

    def _want(self, numbers: Ints) -> None:
        """Have pages fetched that are not here."""
        if (cache := self._cache) is None:
            return
        self._check_use(cache)
        names = [(number, self._name(number)) for number in numbers.tolist()]
        maps = cache.folder.get([name for _, name in names])
        absent = [pair for pair, data in zip(names, maps, strict=True) if data is None]
        cache.fetcher.want((name, partial(self._fetch, number)) for number, name in absent)

    def _fetch(self, number: int) -> bytes:
        data = self._exact.fetch(*self._range(number))
        self._fetched += len(data)
        READS.add(pages=1)
        return data

    def _check_use(self, cache: PageCache) -> None:
        """Fetch pages no more where they go before a quarter of them was used."""
        if self._fetched > cache.most and self._used < self._fetched * _LEAST_USE:
            self.by_pages = False
            _log.warning(
                "%s: pages of %d MB were fetched, but rows needed %d MB of them before they had to "
                "go: from now on exact ranges are fetched. The cache of %d MB is too small for "
                "what these rows read at a time: JAXDATA_CACHE_BYTES sets it, and `jaxdata plan "
                "--hosts` says how much they need",
                self._url,
                self._fetched // 10**6,
                self._used // 10**6,
                cache.most // 10**6,
            )

    def _name(self, number: int) -> str:
        file, start, stop = self._range(number)
        return f"{self._files[file].sha256[:32]}/{start}-{stop}"

    def _range(self, number: int) -> tuple[int, int, int]:
        """The file of a page, its first byte and the byte after its last."""
        file, page = divmod(number, _PAGES_A_FILE)
        start = page * PAGE_BYTES
        return file, start, min(start + PAGE_BYTES, self._files[file].size)
