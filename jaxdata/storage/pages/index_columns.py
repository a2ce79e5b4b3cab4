"""Columns of an index in a bucket: copied to this host once, or in spans as they are asked for.

A column is copied, compared with its checksum and mapped by all processes. Of a long one a host
needs little: spans of it are fetched, and the whole only where they become many.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import AnyArray, AnyInts, Ints
from jaxdata.base.threads import pause
from jaxdata.storage.pages.own_folder import COLUMN
from jaxdata.storage.pages.page_cache import Wanted, key_of, page_cache

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
    cache = page_cache()
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

    column = Wanted(f"{key_of(sha256)}/{COLUMN}", size, checked)
    cache.label(sha256, label)
    while (found := cache.get([column.name])[0]) is None and not cache.refuses:
        if not cache.fetch(column):
            pause(_OTHERS_SECONDS)
    return found


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
        whole: Callable[[], AnyArray],
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
