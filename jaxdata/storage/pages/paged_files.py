"""Files of a bucket whose pages are cached on this host: their numbers, checksums and ranges."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.base.threads import check_stop
from jaxdata.storage.client import refuse_fork
from jaxdata.storage.pages.page_cache import PageCache, Wanted, page_cache
from jaxdata.storage.pages.page_folder import PAGE_BYTES, key_of
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.ranges import ExactRanges
from jaxdata.storage.remote import RemoteStore

_log = logging.getLogger("jaxdata")

_PAGE_SECONDS = 0.25
"""how long a batch waits for a page that is under way, before it asks for its ranges"""
_LEAST_USE = 1 / 4
_MOST_AHEAD = 2**28
"""bytes of ranges that are asked for ahead, where pages are of no use"""
_PAGES_A_FILE = 2**24
Bools = NDArray[np.bool_]
Checksums = Callable[[], NDArray[np.uint32] | None]
"""The CRC-32 of every page of all files; None where they are not known, as of foreign files."""


class StoredFile(NamedTuple):
    """What is known of a file before it is read."""

    name: str
    size: int
    version: str
    """what no other content has: its sha256, or what the bucket calls this version of it"""


class PageRanges(NamedTuple):
    """Ranges of bytes of files; (ranges,) each."""

    file: Ints
    start: Ints
    stop: Ints
    home: Bools
    """whether the page of a range is worth fetching for it, where documents are read in any
    order"""

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return int((self.stop - self.start).sum())


class PageNumbers:
    """A number for each page of some files in a bucket."""

    def __init__(self, url: str, files: Sequence[StoredFile], checksums: Checksums) -> None:
        self._url, self._files, self._read_checksums = url, files, checksums
        self._first = np.cumsum([0, *(-(-file.size // PAGE_BYTES) for file in files)])

    @cached_property
    def _checksums(self) -> NDArray[np.uint32] | None:
        return self._read_checksums()

    def of(self, file: Ints, start: Ints) -> Ints:
        """The page that a byte of a file lies in."""
        return file * _PAGES_A_FILE + start // PAGE_BYTES

    def range(self, number: int) -> tuple[int, int, int]:
        """The file of a page, its first byte and the byte after its last."""
        file, page = divmod(number, _PAGES_A_FILE)
        start = page * PAGE_BYTES
        return file, start, min(start + PAGE_BYTES, self._files[file].size)

    @property
    def count(self) -> int:
        """Pages of all files."""
        return int(self._first[-1])

    def size_of(self, number: int) -> int:
        """How many a page has."""
        _, start, stop = self.range(number)
        return stop - start

    def label(self, number: int) -> tuple[str, str]:
        """The checksum of the file of a page, and what `PageFolder.label` says of it."""
        file = self._files[number // _PAGES_A_FILE]
        return file.version, f"{self._url}\n{file.name}"

    def name(self, number: int) -> str:
        """What the cache calls a page: it is the same in every copy of the file."""
        file, start, stop = self.range(number)
        return f"{key_of(self._files[file].version)}/{start}-{stop}"

    def is_whole(self, number: int, data: bytes) -> bool:
        """Whether a page is what was written, as far as that is known."""
        file, page = divmod(number, _PAGES_A_FILE)
        known = self._checksums
        return known is None or zlib.crc32(data) == known[self._first[file] + page]

    def damage(self, number: int) -> DatasetError:
        """The error for a page that is not."""
        file, start, stop = self.range(number)
        return DatasetError(
            f"{self._url}/{self._files[file].name}: bytes {start:,} to {stop:,} are not what was "
            "written: restore it from a copy; jaxdata verify "
            f"{self._url} names what is damaged"
        )


class PagedFiles:
    """Ranges of files: slices of cached pages, exact ranges until these are there.

    A batch waits for a page only where its request is under way; what is not asked for yet, or
    comes too late, is read by exact ranges, so that a slow page delays nobody.
    """

    def __init__(
        self,
        store: RemoteStore,
        files: Sequence[StoredFile],
        checksums: Checksums = lambda: None,
    ) -> None:
        self._url = store.url
        self._pages = PageNumbers(store.url, files, checksums)
        self._exact: ExactRanges = store.ranges([file.name for file in files])
        self._fetched = self._used = 0
        self._damaged: dict[int, DatasetError] = {}
        self.size = sum(file.size for file in files)
        """bytes of all files"""
        self.by_pages = True
        """whether pages are worth fetching: whoever reads knows which will be used"""
        self.dealt_by_pages = False
        """whether documents that share a page are needed together, and their neighbours are not"""

    @cached_property
    def _cache(self) -> PageCache | None:
        return page_cache()

    def fit(self, need: int, room: int) -> bool:
        """Fetch pages only if what is open at a time, `need` bytes, has room; returns whether."""
        self.by_pages, self.dealt_by_pages = need <= room, need < self.size
        return self.by_pages

    def gather(self, ranges: PageRanges) -> ByteRanges:
        """The bytes of some ranges (see `Store`)."""
        refuse_fork()  # refuses a forked process, whatever is cached
        began, size = time.perf_counter(), ranges.nbytes
        try:
            return self._gather(ranges)
        finally:
            self._used += size
            READS.add(used_bytes=size, wait_seconds=time.perf_counter() - began)

    def _gather(self, ranges: PageRanges) -> ByteRanges:
        file, start, stop, home = ranges
        numbers, which = np.unique(self._pages.of(file, start), return_inverse=True)
        maps = self._maps(numbers)
        within = start % PAGE_BYTES
        here = np.array([data is not None for data in maps], bool)[which]
        here &= within + (stop - start) <= PAGE_BYTES
        found, late = np.flatnonzero(here), np.flatnonzero(~here)
        READS.add(hits=len(found), misses=len(late))
        stops = (within + stop - start)[found]
        views = ByteRanges([data or b"" for data in maps], which[found], within[found], stops)
        if not len(late):
            return views
        alone = np.zeros_like(here)  # asked for without their page
        alone[late] = self._exact.are_asked(file[late], start[late], stop[late])
        self.prefetch_pages(numbers[np.unique(which[~here & ~alone & self._by_page(home)])])
        copies = ByteRanges.of(self._exact.read(file[late], start[late], stop[late]))
        order = np.argsort(np.concatenate([found, late]))
        return ByteRanges.chain([views, copies]).take(order)

    def _maps(self, numbers: Ints) -> list[memoryview | None]:
        """The pages that are here, or nearly."""
        for number in self._damaged and numbers.tolist():
            if number in self._damaged:
                raise self._damaged[number]
        if (cache := self._cache) is None:
            return [None] * len(numbers)
        names = [self._pages.name(number) for number in numbers.tolist()]
        maps = cache.folder.get(names)
        absent = [name for name, data in zip(names, maps, strict=True) if data is None]
        sent = [name for name in absent if cache.fetcher.is_sent(name)]
        if not sent:
            return maps
        cache.fetcher.wait(sent, _PAGE_SECONDS, check_stop)
        return cache.folder.get(names)

    def prefetch(self, ranges: PageRanges) -> None:
        """Begin to fetch what holds some ranges, which are soon read, in this order."""
        refuse_fork()
        file, start, stop, home = ranges
        numbers = self.pages_of(ranges)
        absent = numbers[self.prefetch_pages(numbers)]
        alone = ~self._by_page(home)
        if self._cache and self._cache.fetcher.is_behind:
            alone |= np.isin(self._pages.of(file, start), absent)
        self._exact.forget(_MOST_AHEAD)
        self._exact.ask(*(column[alone] for column in (file, start, stop)))

    def pages_of(self, ranges: PageRanges) -> Ints:
        """The pages that are worth fetching for some ranges, in the order of these."""
        numbers = self._pages.of(ranges.file, ranges.start)[self._by_page(ranges.home)]
        found, first = np.unique(numbers, return_index=True)
        return found[np.argsort(first)]

    def size_of(self, page: int) -> int:
        """Bytes of a page."""
        return self._pages.size_of(page)

    def _by_page(self, home: Bools) -> Bools:
        """Which ranges are worth their page."""
        kept = self._cache is not None and not self._cache.folder.refuses
        whole = np.full_like(home, self.by_pages and kept)
        return whole & home if self.dealt_by_pages else whole

    @property
    def page_count(self) -> int:
        """Pages of all files."""
        return self._pages.count

    def fetch_missing(self, pages: Iterable[int]) -> None:
        """Fetch now what was asked for and did not come; raises DatasetError for the reason."""
        for page in map(self._wanted, pages):
            if self._cache is not None and not self._cache.folder.has(page.name):
                self._cache.folder.add(*page)

    def _wanted(self, number: int) -> Wanted:
        fetch = partial(self._fetch, number)
        return Wanted(self._pages.name(number), self._pages.size_of(number), fetch)

    def prefetch_pages(self, numbers: Ints) -> Bools:
        """Begin to fetch pages in this order; returns which are not here yet."""
        if (cache := self._cache) is None:
            return np.ones(len(numbers), bool)
        self._check_use(cache)
        names = [self._pages.name(number) for number in numbers.tolist()]
        absent = np.array([data is None for data in cache.folder.get(names)], bool)
        cache.fetcher.want(map(self._wanted, numbers[absent].tolist()))
        return absent

    def _fetch(self, number: int) -> list[bytes]:
        """The content of a page, as it was written, in one piece."""
        if self._cache is not None:
            self._cache.folder.label(*self._pages.label(number))
        data = self._exact.fetch(*self._pages.range(number))
        if not self._pages.is_whole(number, data):  # on the way, or in the bucket?
            data = self._exact.fetch(*self._pages.range(number))
        if not self._pages.is_whole(number, data):
            self._damaged[number] = error = self._pages.damage(number)
            raise error
        self._fetched += len(data)
        READS.add(pages=1)
        return [data]

    def _check_use(self, cache: PageCache) -> None:
        """Fetch pages no more where they go before a quarter of them was used."""
        if self._fetched <= cache.most or self._used >= self._fetched * _LEAST_USE:
            return
        self.by_pages = False
        _log.warning(
            "%s: pages of %d MB were fetched, but rows needed %d MB of them before they had to go: "
            "from now on exact ranges are fetched. The cache of %d MB is too small for what these "
            "rows read at a time: JAXDATA_CACHE_BYTES sets it, and `jaxdata preview --hosts` says "
            "how much they need",
            *(self._url, self._fetched // 10**6, self._used // 10**6, cache.most // 10**6),
        )
