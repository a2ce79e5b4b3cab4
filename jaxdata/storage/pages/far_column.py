"""A long column of an index in a bucket, of which only what is asked for is fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyInts, Ints

SPAN = 2**9
"""entries that are fetched together"""
_MOST = 1 / 8
"""of the spans: beyond, the whole column is copied to this host"""


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
        self._place = np.full(spans, -1, np.int32)
        self._spans = np.empty((0, SPAN), dtype)
        self._count, self._most = 0, max(int(spans * _MOST), 1)
        self._lock = threading.Lock()

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
            chosen = range(*index.indices(self._size))
            return self._at(np.arange(chosen.start, chosen.stop, chosen.step))
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
            if self._count + len(new) > self._most:
                _ = self._whole
                return
            start, item = new * SPAN, self.dtype.itemsize
            stop = np.minimum(start + SPAN, self._size)
            found = self._read(start * item, stop * item)
            self._keep(new, [np.frombuffer(each, self.dtype) for each in found])

    def _keep(self, new: Ints, found: list[NDArray[Any]]) -> None:
        """Others read meanwhile: rows are there before the places that name them."""
        count = self._count + len(new)
        if count > len(self._spans):
            grown = np.zeros((2 * count, SPAN), self.dtype)
            grown[: self._count] = self._spans[: self._count]
            self._spans = grown
        for row, values in enumerate(found, self._count):
            self._spans[row, : len(values)] = values
        self._place[new] = np.arange(self._count, count)
        self._count = count
