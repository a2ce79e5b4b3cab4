"""Files of a bucket whose pages are cached on this host: their numbers, checksums, ranges, columns.

A column of an index is copied to this host once, compared with its checksum and mapped by all
processes. Of a long one a host needs little: spans of it are fetched as they are asked for, and the
whole only where they become many.
"""

import hashlib
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, AnyInts, ByteRanges, Ints
from jaxdata.base.threads import pause
from jaxdata.storage.client import refuse_fork
from jaxdata.storage.pages import page_cache
from jaxdata.storage.pages.page_cache import PAGE_BYTES, PageCache, Wanted, key_of
from jaxdata.storage.pages.read_counts import READS
from jaxdata.storage.ranges import ExactRanges

_PAGE_SECONDS = 0.25
"""how long a batch waits for a page that is under way, before it asks for its ranges"""
_MOST_AHEAD = 2**28
"""bytes of ranges that are asked for ahead, where pages are of no use"""
_PAGES_A_FILE = 2**24
Checksums = Callable[[], NDArray[np.uint32]]
"""The CRC-32 of every page of all files."""
Spills = Callable[[Ints, Ints, Ints], Ints]
"""Documents, the files where they lie, and bytes of these at or after their beginnings -> the ends
of the documents across those bytes: the bytes themselves where there is none; int64 (n,) each."""


class StoredFile(NamedTuple):
    """What is known of a file before it is read."""

    name: str
    size: int
    version: str
    """what no other content has: its sha256"""


class PageRanges(NamedTuple):
    """Ranges of bytes of files; (ranges,) each."""

    file: Ints
    start: Ints
    stop: Ints
    page: Ints
    """page of the file with which a range is fetched, where documents are dealt by pages: its own,
    or that before it, over whose end its document spills; -1 if with none"""
    document: Ints
    """whose bytes they are"""

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return int((self.stop - self.start).sum())


class PagedFiles:
    """Ranges of files in a bucket, by the cached pages that hold them, else by themselves.

    Args:
        url: of the folder of the files.
        files: the files.
        checksums: of all pages, asked for as often as one is fetched.
        spills: where the documents end that lie across ends of pages.
    """

    def __init__(
        self, url: str, files: Sequence[StoredFile], checksums: Checksums, spills: Spills
    ) -> None:
        self._url, self._files, self._checksums = url, files, checksums
        self._first = np.cumsum([0, *(-(-file.size // PAGE_BYTES) for file in files)])
        self._exact = ExactRanges(url, [file.name for file in files])
        self._damaged: dict[int, DatasetError] = {}
        self._read_spills, self._spills = spills, dict[int, int]()
        self.size = sum(file.size for file in files)
        """bytes of all files"""
        self.by_pages = True
        """whether pages are worth fetching: whoever reads knows which will be used"""
        self.dealt_by_pages = False
        """whether documents that share a page are needed together, and their neighbours are not"""

    @cached_property
    def _cache(self) -> PageCache | None:
        return page_cache.page_cache()

    def fit(self, need: int, room: int) -> bool:
        """Fetch pages only if what is open at a time, `need` bytes, has room; returns whether."""
        self.by_pages, self.dealt_by_pages = need <= room, need < self.size
        return self.by_pages

    def gather(self, ranges: PageRanges) -> ByteRanges:
        """The bytes of some ranges (see `Store`)."""
        refuse_fork()  # refuses a forked process, whatever is cached
        began = time.perf_counter()
        try:
            return self._gather(ranges)
        finally:
            READS.add(used_bytes=ranges.nbytes, wait_seconds=time.perf_counter() - began)

    def _gather(self, ranges: PageRanges) -> ByteRanges:
        file, start, stop, *_ = ranges
        own, wanted = _numbered(file, start // PAGE_BYTES), self._wanted_pages(ranges)
        places = np.stack([np.where(wanted < 0, own, wanted), own])
        numbers, which = np.unique(places, return_inverse=True)
        maps = self._maps(numbers)
        sizes = np.array([-1 if data is None else len(data) for data in maps], np.int64)
        which, within = which.reshape(places.shape), start - places % _PAGES_A_FILE * PAGE_BYTES
        fits = within + (stop - start) <= sizes[which]
        here = fits.any(axis=0)
        found, late = np.flatnonzero(here), np.flatnonzero(~here)
        READS.add(hits=len(found), misses=len(late))
        at = fits.argmax(axis=0)[found], found
        begin = within[at]
        stops = begin + (stop - start)[found]
        views = ByteRanges([data or b"" for data in maps], which[at], begin, stops)
        if not len(late):
            return views
        asked = self._exact.are_asked(file[late], start[late], stop[late])
        missed = late[~np.array(asked, bool)]
        self.prefetch_pages(self.pages_of(PageRanges(*(column[missed] for column in ranges))))
        copies = ByteRanges.of(self._exact.read(file[late], start[late], stop[late]))
        order = np.argsort(np.concatenate([found, late]))
        return ByteRanges.chain([views, copies]).take(order)

    def _maps(self, numbers: Ints) -> list[memoryview | None]:
        """The pages that are here, or nearly."""
        for number in self._damaged.keys() & set(numbers.tolist()):
            raise self._damaged[number]
        if (cache := self._cache) is None:
            return [None] * len(numbers)
        names = [self._name(number) for number in numbers.tolist()]
        maps = cache.get(names)
        absent = [name for name, data in zip(names, maps, strict=True) if data is None]
        return cache.get(names) if cache.wait_for(absent, _PAGE_SECONDS) else maps

    def prefetch(self, ranges: PageRanges) -> None:
        """Begin to fetch what holds some ranges, which are soon read, in this order."""
        refuse_fork()
        file, start, stop, *_ = ranges
        wanted, numbers = self._wanted_pages(ranges), self.pages_of(ranges)
        alone = wanted < 0
        if len(numbers) and self._cache:
            order = np.argsort(numbers)
            sizes = self.prefetch_pages(numbers)[order]
            here = sizes[np.searchsorted(numbers[order], wanted).clip(max=len(numbers) - 1)]
            beyond = stop - wanted % _PAGES_A_FILE * PAGE_BYTES > here
            alone |= np.where(here == 0, self._cache.is_behind, beyond)
        self._exact.ask(file[alone], start[alone], stop[alone], _MOST_AHEAD)

    def pages_of(self, ranges: PageRanges) -> Ints:
        """The pages that are worth fetching for some ranges, in the order of these."""
        wanted = self._wanted_pages(ranges)
        found, first = np.unique(wanted, return_index=True)
        first = np.sort(first[found >= 0])
        pages = wanted[first]
        if self.dealt_by_pages:
            new = [number not in self._spills for number in pages.tolist()]
            self._note_spills(pages[new], ranges.document[first[new]])
        return pages

    def _note_spills(self, pages: Ints, documents: Ints) -> None:
        """Find out how far what begins in some pages goes on, in each of which a document lies."""
        file, page = np.divmod(pages, _PAGES_A_FILE)
        ends = (page + 1) * PAGE_BYTES
        beyond = self._read_spills(documents, file, ends) - ends
        beyond[beyond >= PAGE_BYTES] = 0  # it fills the next page
        self._spills |= zip(pages.tolist(), beyond.tolist(), strict=True)

    def _wanted_pages(self, ranges: PageRanges) -> Ints:
        """The number of the page that is worth fetching for each range; -1 if there is none."""
        kept = self.by_pages and self._cache is not None and not self._cache.refuses
        page = ranges.page if self.dealt_by_pages else ranges.start // PAGE_BYTES
        return np.where(kept & (page >= 0), _numbered(ranges.file, page), -1)

    def prefetch_pages(self, numbers: Ints) -> Ints:
        """Begin to fetch pages in this order; returns the bytes of each that are here."""
        if (cache := self._cache) is None:
            return np.zeros(len(numbers), np.int64)
        maps = cache.get([self._name(number) for number in numbers.tolist()])
        sizes = np.array([0 if data is None else len(data) for data in maps], np.int64)
        cache.want(map(self._wanted, numbers[sizes == 0].tolist()))
        return sizes

    def _wanted(self, page: int) -> Wanted:
        return Wanted(self._name(page), self.size_of(page), partial(self._fetch, page))

    def _fetch(self, page: int) -> list[bytes]:
        """The content of a page and what spills over its end, as it was written, in one piece."""
        file, start, stop = self._place(page)
        stored = self._files[file]
        checksum = self._checksums()[self._first[file] + start // PAGE_BYTES]
        if self._cache is not None:
            self._cache.label(stored.version, f"{self._url}\n{stored.name}")
        for _ in range(2):  # it may be damaged on the way, or in the bucket
            data = self._exact.part(file, start, start + self.size_of(page)).data
            if zlib.crc32(data[: stop - start]) == checksum:
                READS.add(pages=1)
                return [data]
        self._damaged[page] = error = DatasetError(
            f"{self._url}/{stored.name}: bytes {start:,} to {stop:,} are not what was "
            f"written: restore it from a copy; jaxdata verify {self._url} names what is damaged"
        )
        raise error

    def _place(self, page: int) -> tuple[int, int, int]:
        """The file of a page, its first byte and the byte after its last."""
        file, number = divmod(page, _PAGES_A_FILE)
        start = number * PAGE_BYTES
        return file, start, min(start + PAGE_BYTES, self._files[file].size)

    def size_of(self, page: int) -> int:
        """Bytes of a page, and of what spills over its end."""
        _, start, stop = self._place(page)
        return stop - start + self._spills.get(page, 0) * self.dealt_by_pages

    def _name(self, page: int) -> str:
        """What the cache calls a page: it is the same in every copy of the file."""
        file, start, stop = self._place(page)
        return f"{key_of(self._files[file].version)}/{start}-{stop}"


def _numbered(file: Ints, page: Ints) -> Ints:
    """The numbers of pages of files."""
    return file * _PAGES_A_FILE + page


SPAN = 2**9
"""entries that are fetched together"""
_MOST_SPANS = 1 / 8
"""of a column: beyond, the whole is copied to this host"""
_MOST = 1 / 2
"""of the cache: a larger column is read into memory"""
_OTHERS_SECONDS = 0.02


def cached_column(
    url: str, sha256: str, size: int, parts: Callable[[], Iterable[bytes]], label: str
) -> memoryview | None:
    """The bytes of a column, mapped; None if the cache has no room for it, or takes nothing.

    Args:
        url: of the column, for messages.
        sha256: of its bytes, in hex.
        size: their number.
        parts: fetches them, in order.
        label: what `PageCache.label` says.

    Raises:
        DatasetError: they are not the bytes that were written.
    """
    cache = page_cache.page_cache()
    if cache is None or size > cache.most * _MOST:
        return None

    def checked() -> Iterator[bytes]:
        content = hashlib.sha256()
        for part in parts():
            content.update(part)
            yield part
        if content.hexdigest() != sha256:
            raise DatasetError(
                f"{url} is not what was written: its checksum is another. Restore it from a copy, "
                "or convert the source again"
            )

    column = Wanted(f"{key_of(sha256)}/{page_cache.COLUMN}", size, checked)
    cache.label(sha256, label)
    while (found := cache.get([column.name])[0]) is None and not cache.refuses:
        if not cache.fetch(column):
            pause(_OTHERS_SECONDS)
    return found


Read = Callable[[Ints, Ints], list[Any]]
"""(first byte, byte after the last) of each range, int64 (ranges,) -> their bytes."""


class FarColumn(NDArrayOperatorsMixin):
    """A read-only array that fetches spans of entries as they are asked for.

    It is indexed by integers, arrays of integers and slices; for anything else that an array does,
    the whole column is fetched.

    Args:
        size: number of entries.
        dtype: their type.
        read: fetches ranges of bytes.
        whole: fetches all of it.

    >>> data = np.arange(5_000, dtype="<u4")
    >>> def read(start, stop):
    ...     return [data.tobytes()[a:b] for a, b in zip(start, stop)]
    >>> column = FarColumn(len(data), data.dtype, read, lambda: data)
    >>> column[np.array([4_999, 3])].tolist(), int(column[7]), column[2:4].tolist()
    ([4999, 3], 7, [2, 3])
    """

    def __init__(
        self, size: int, dtype: np.dtype[Any], read: Read, whole: Callable[[], AnyArray]
    ) -> None:
        self.shape, self.dtype, self._read, self._fetch_whole = (size,), dtype, read, whole
        self._values: AnyArray = np.empty(size, dtype)  # what is not written takes no memory
        self._here, self._lock = np.zeros(-(-size // SPAN), bool), threading.RLock()

    def _whole(self) -> AnyArray:
        with self._lock:
            if not self._here.all():
                self._values = self._fetch_whole()
                self._here[:] = True
        return self._values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        return np.array(self._whole(), dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(each) if isinstance(each, FarColumn) else each for each in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._whole(), name)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, places: AnyInts, mode: str = "raise") -> AnyArray:
        """As numpy's; of the modes, "raise" and "clip"."""
        return np.asarray(self[np.clip(places, 0, len(self) - 1) if mode == "clip" else places])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        given = np.asarray(index)
        if given.dtype == bool:
            return self._whole()[given]
        places: Ints = np.where(given < 0, given + len(self), given).astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"index out of bounds of a column of {len(self)} entries")
        span = places // SPAN
        if not self._here[span].all():
            self._fetch(span)
        return self._values[places]

    def _fetch(self, span: Ints) -> None:
        """Fetch those spans that are not here; the whole, where they become many."""
        with self._lock:
            new = np.unique(span)
            new = new[~self._here[new]]
            if self._here.sum() + len(new) > max(int(len(self._here) * _MOST_SPANS), 1):
                self._whole()
                return
            start, item = new * SPAN, self.dtype.itemsize
            stop = np.minimum(start + SPAN, len(self))
            found = self._read(start * item, stop * item)
            for first, end, data in zip(start.tolist(), stop.tolist(), found, strict=True):
                self._values[first:end] = np.frombuffer(data, self.dtype)
            self._here[new] = True  # last: others read meanwhile
