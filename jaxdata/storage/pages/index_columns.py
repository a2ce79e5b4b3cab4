"""Columns of an index in a bucket: copied to this host once, or in spans as they are asked for.

A column is copied in parallel parts, compared with its checksum and mapped by all processes. Of a
long one a host needs little: spans of it are fetched, and the whole only where they become many.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.base.threads import pause
from jaxdata.storage.pages.own_folder import COLUMN
from jaxdata.storage.pages.page_cache import Wanted, key_of, page_cache
from jaxdata.storage.ranges import Extent

SPAN = 2**9
"""entries that are fetched together"""
_MOST_SPANS = 1 / 8
"""of a column: beyond, the whole is copied to this host"""
_PART_BYTES = 2**24
_AT_ONCE = 16
"""parts that are under way; so many are in memory"""
_MOST = 1 / 2
"""of the cache: a larger column is read into memory"""
_OTHERS_SECONDS = 0.02
Ask = Callable[[int, int], Extent]
"""`(first byte, byte after the last)` -> a part that is asked for, which lies in one object"""


def cached_column(
    url: str, sha256: str, edges: list[int], ask: Ask, label: str
) -> memoryview | None:
    """The bytes of a column, mapped; None if the cache has no room for it, or takes nothing.

    Args:
        url: of the column, for messages.
        sha256: of its bytes, in hex.
        edges: its first byte, those where another object begins, and the byte after its last.
        ask: asks for a part.
        label: what `PageFolder.label` says.

    Raises:
        DatasetError: they are not the bytes that were written.
    """
    cache = page_cache()
    if cache is None or edges[-1] > cache.most * _MOST:
        return None
    name = f"{key_of(sha256)}/{COLUMN}"
    cache.label(sha256, label)
    column = Wanted(name, edges[-1], lambda: _checked(url, sha256, edges, ask))
    while (found := cache.get([name])[0]) is None and not cache.refuses:
        if not cache.fetch(column):
            pause(_OTHERS_SECONDS)
    return found


def _checked(url: str, sha256: str, edges: list[int], ask: Ask) -> Iterator[bytes]:
    """All bytes in order; raises DatasetError if in the end they are not those of the checksum."""
    content = hashlib.sha256()
    for part in _parts(edges, ask):
        content.update(part)
        yield part
    if content.hexdigest() != sha256:
        raise DatasetError(
            f"{url} is not what was written: its checksum is another. Restore it from a copy, "
            "or convert the source again"
        )


def _parts(edges: list[int], ask: Ask) -> Iterator[bytes]:
    """All bytes in order, some parts ahead."""
    asked = (
        ask(start, min(start + _PART_BYTES, end))
        for begin, end in pairwise(edges)
        for start in range(begin, end, _PART_BYTES)
    )
    under_way = deque(islice(asked, _AT_ONCE))
    while under_way:
        data = under_way.popleft().data
        under_way.extend(islice(asked, 1))
        yield data


class FarColumn:
    """A read-only array that fetches spans of entries as they are asked for.

    It is indexed by integers, arrays of integers and slices; for anything else that an array does,
    the whole column is fetched.

    Args:
        size: number of entries.
        dtype: their type.
        read: `(first byte, byte after the last)` of each range, int64 (ranges,) -> their bytes.
        whole: fetches all of it.

    >>> data = np.arange(5_000, dtype="<u4")
    >>> def read(start, stop):
    ...     return [data.tobytes()[a:b] for a, b in zip(start, stop)]
    >>> column = FarColumn(len(data), data.dtype, read, lambda: data)
    >>> column[np.array([4_999, 3])].tolist(), int(column[7]), column[2:4].tolist()
    ([4999, 3], 7, [2, 3])
    """

    def __init__(
        self,
        size: int,
        dtype: np.dtype[Any],
        read: Callable[[Ints, Ints], list[Any]],
        whole: Callable[[], NDArray[Any]],
    ) -> None:
        self._size, self.dtype, self._read, self._fetch_whole = size, dtype, read, whole
        spans = -(-size // SPAN)
        most = max(int(spans * _MOST_SPANS), 1)
        self._place = np.full(spans, -1, np.int32)
        self._spans = np.empty((most, SPAN), dtype)  # what is not written takes no memory
        self._count, self._lock = 0, threading.Lock()

    @cached_property
    def _whole(self) -> NDArray[Any]:
        return self._fetch_whole()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._whole, dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._whole, name)

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> tuple[int]:
        return (self._size,)

    def take(self, places: AnyInts, mode: str = "raise") -> NDArray[Any]:
        """As numpy's; of the modes, "raise" and "clip"."""
        chosen = np.clip(places, 0, self._size - 1) if mode == "clip" else places
        return np.asarray(self._at(chosen), self.dtype)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self._size))
        return self._at(np.asarray(index))

    def _at(self, given: AnyInts) -> Any:
        places: Ints = np.where(given < 0, given + self._size, given).astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() < self._size:
            raise IndexError(f"index out of bounds of a column of {self._size} entries")
        span = places // SPAN
        if "_whole" not in vars(self) and (self._place[span] < 0).any():
            self._fetch(span)
        if "_whole" in vars(self):
            return self._whole[places]
        return self._spans[self._place[span], places - span * SPAN]

    def fetch(self, places: AnyInts) -> None:
        """Fetch what some entries need, all at once."""
        self._at(places)

    def _fetch(self, span: Ints) -> None:
        """Fetch those spans that are not here; the whole, where they become many."""
        with self._lock:
            new = np.unique(span)
            new = new[self._place[new] < 0]
            count = self._count + len(new)
            if count > len(self._spans):
                _ = self._whole
                return
            start, item = new * SPAN, self.dtype.itemsize
            stop = np.minimum(start + SPAN, self._size)
            found = self._read(start * item, stop * item)
            for row, data in enumerate(found, self._count):
                values = np.frombuffer(data, self.dtype)
                self._spans[row, : len(values)] = values
            # Others read meanwhile: rows are there before the places that name them.
            self._place[new] = np.arange(self._count, count)
            self._count = count
