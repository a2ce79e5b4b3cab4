"""Documents of one source: lengths for the planner, ranges of tokens for the reader.

`Documents` is the contract that packing needs; the other files meet it, in memory or from disk. All
are grain `RandomAccessDataSource`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import PagedFiles, PageRanges, Store
from jaxdata.ragged import ByteRanges, Ints

_AT_ONCE = 2**20  # documents
Document = dict[str, NDArray[Any]]


class Gathered(NamedTuple):
    """Bytes of some ranges: views that are, end to end, the ranges in order."""

    views: ByteRanges
    range: Ints
    """(views,) number of the range that each belongs to; non-decreasing"""

    @classmethod
    def cut(cls, joined: NDArray[Any], counts: Ints) -> Gathered:
        """Split an array that holds ranges of `counts` elements, end to end."""
        views = ByteRanges.cut(joined.data.cast("B"), counts * joined.itemsize)
        return cls(views, np.arange(len(counts)))

    def followed(self, ranges: Ints, filler: bytes) -> Gathered:
        """Append `filler` to some of the ranges."""
        at = self.range.searchsorted(ranges, side="right")
        views = self.views.inserted(at, np.full(len(at), len(filler)), filler)
        return Gathered(views, np.insert(self.range, at, ranges))


class Documents(Protocol):
    """Documents that can be packed: the contract of every source.

    A document is a run of tokens ending with EOD (other tools may omit it). Planning needs only
    `lengths`; `tokens` and `masks` read only the ranges they are asked for.
    """

    @property
    def name(self) -> str:
        """`"<split>/<source>"`; seeds are derived from it."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of the content; nothing else changes it."""
        ...

    @property
    def masked(self) -> bool:
        """Whether the source stores loss masks."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens: an unsigned integer of 16 or 32 bits."""
        ...

    @property
    def store(self) -> Store | None:
        """The dataset, in which plans can be cached; None for documents in memory."""
        ...

    @property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each document, (documents,) unsigned integers."""
        ...

    def page_ends(self, size: int) -> Ints:
        """Where pages of `size` bytes end; int64 (pages,).

        A page is the documents whose first byte lies between two multiples of `size` in a file;
        its end is the number of the document after its last. Pages without documents are left out.
        """
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document:
        """`{"tokens": (n,) integers}` and, where masked, `"loss_mask"`: (n,) bool.

        Where the source has side arrays, each by its name: (n,) of its dtype.
        """
        ...

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Tokens `[starts[k], starts[k] + counts[k])` of `documents[k]`, for every *k*.

        As bytes of `dtype`, little-endian.
        """
        ...

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Stored masks of the same ranges, a byte each (1: has loss when it is a target)."""
        ...


class Far(Documents, Protocol):
    """Documents in a bucket, of which ranges are fetched ahead."""

    @property
    def pages(self) -> PagedFiles:
        """Their files."""
        ...

    def page_ranges(self, documents: Ints, starts: Ints, counts: Ints) -> PageRanges:
        """The bytes of these files that ranges of tokens, and of masks, are read from."""
        ...


def far(documents: Documents) -> Far | None:
    """The documents, if they lie in a bucket and can be fetched ahead."""
    known: Any = documents
    local = documents.store is None or documents.store.local
    return None if local or not hasattr(known, "page_ranges") else known


class SideArray(NamedTuple):
    """An array beside the tokens of a source: one value for each token of each document."""

    dtype: np.dtype[Any]
    """little-endian"""
    read: Callable[[Ints, Ints, Ints], Gathered]
    """the values of ranges, as `Documents.tokens` reads these"""
    pages: PagedFiles | None = None
    """its files, where they lie in a bucket"""
    page_ranges: Callable[[Ints, Ints, Ints], PageRanges] | None = None
    """see `Far`"""

    def through(self, find: Callable[[Ints, Ints], tuple[Ints, Ints]]) -> SideArray:
        """The same array of documents that are parts of others.

        Args:
            find: numbers of documents, and tokens in them -> those of the others.
        """

        def found(ask: Callable[[Ints, Ints, Ints], Any]) -> Callable[[Ints, Ints, Ints], Any]:
            return lambda documents, starts, counts: ask(*find(documents, starts), counts)

        ask = self.page_ranges
        return SideArray(
            self.dtype, found(self.read), self.pages, None if ask is None else found(ask)
        )


def side_arrays(documents: Documents) -> Mapping[str, SideArray]:
    """The side arrays of documents, by name: their `side`, if they have any."""
    return getattr(documents, "side", {})


class StatedLengths(NamedTuple):
    """What is known of the lengths of a source before they are read."""

    tokens: int
    """their sum"""
    sha256: str | None
    """of them as little-endian uint32, in hex; None if an earlier jaxdata wrote the source"""


def stated_lengths(documents: Documents) -> StatedLengths | None:
    """What the description of a source says of its lengths; None if nothing."""
    return getattr(documents, "stated_lengths", None)


def tokens_of(documents: Documents) -> int:
    """The tokens of a source, with EODs; lengths are read only where its description has no sum."""
    stated = stated_lengths(documents)
    return int(documents.lengths.sum(dtype=np.int64)) if stated is None else stated.tokens


def check_lengths(documents: Documents) -> None:
    """Raise DatasetError if a source can tell that its lengths are not those that were written."""
    check = getattr(documents, "check_lengths", None)
    if check is not None:
        check()


def page_ends(documents: Documents, size: int) -> Ints:
    """`Documents.page_ends` of one file that holds tokens, and masks, end to end."""
    item, before = documents.dtype.itemsize + documents.masked, 0

    def pages(numbers: Ints) -> Ints:
        nonlocal before
        ends = before + np.cumsum(documents.lengths[numbers].astype(np.int64)) * item
        starts, before = np.append(before, ends[:-1]), int(ends[-1])
        return starts // size

    return run_ends(pages, len(documents))


def run_ends(numbers_of: Callable[[Ints], Ints], total: int) -> Ints:
    """Where runs of equal numbers end, of things that are asked for some at a time, in order.

    >>> run_ends(lambda things: things // 3, 5).tolist()
    [3, 5]
    """
    found = [np.empty(0, np.int64)]
    last = np.empty(0, np.int64)
    for first in range(0, total, _AT_ONCE):
        numbers = np.append(last, numbers_of(np.arange(first, min(first + _AT_ONCE, total))))
        found.append(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1 + first - len(last))
        last = numbers[-1:]
    return np.concatenate([*found, np.full(min(total, 1), total)])


class RangedDocuments(ABC):
    """Documents read by ranges: `[index]` and `read` follow from `tokens` and `masks`."""

    masked: bool
    dtype: np.dtype[Any]

    @property
    def side(self) -> Mapping[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        return {}

    @property
    @abstractmethod
    def lengths(self) -> NDArray[Any]:
        """See `Documents`."""

    @abstractmethod
    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`."""

    @abstractmethod
    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`."""

    def page_ends(self, size: int) -> Ints:
        """See `Documents`."""
        return page_ends(self, size)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self._document(number) for number in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no document {index}: {len(self):,} are numbered from 0")
        return self._document(index)

    def _document(self, index: int) -> Document:
        item: Document = {"tokens": self.read(index)}
        if self.masked:
            mask = self._range(self.masks, np.dtype(np.uint8), index, 0, None)
            item["loss_mask"] = mask.astype(bool)
        for name, side in self.side.items():
            item[name] = self._range(side.read, side.dtype, index, 0, None)
        return item

    def read(self, index: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Read tokens `[start, stop)` of one document, and nothing else of it."""
        return self._range(self.tokens, self.dtype.newbyteorder("<"), index, start, stop)

    def _range(
        self, method: Any, dtype: np.dtype[Any], index: int, start: int, stop: int | None
    ) -> NDArray[Any]:
        document = range(len(self))[index]
        start, stop, _ = slice(start, stop).indices(int(self.lengths[document]))
        one = (np.array([value]) for value in (document, start, max(stop - start, 0)))
        return np.frombuffer(bytearray(method(*one).views.join()), dtype)
