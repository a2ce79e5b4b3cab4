"""Documents of one source: lengths for the planner, ranges of tokens for rows.

`Documents` is the contract; `ArrayDocuments` holds them in memory. Token ids and masks of others
are checked one by one.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError, JaxdataError
from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.base.wording import counted
from jaxdata.dataset.manifest import check_side
from jaxdata.storage import PagedFiles, PageRanges, Store

_DOCUMENTS_AT_ONCE = 2**20  # documents
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
    for first in range(0, total, _DOCUMENTS_AT_ONCE):
        numbers = np.append(
            last, numbers_of(np.arange(first, min(first + _DOCUMENTS_AT_ONCE, total)))
        )
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


LARGEST_ID = 2**31 - 1  # rows are int32


class GivenRanges(NamedTuple):
    """Ranges of documents that others gave; their values are checked end to end."""

    origin: str
    """what errors call the documents"""
    documents: Ints
    starts: Ints
    counts: Ints
    error: type[JaxdataError] = DatasetError
    """what is raised where a value is wrong; it names the document and the token"""

    def as_ids(self, stored: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Check that numbers are token ids, and cast them."""
        right = (stored >= 0) & (stored <= LARGEST_ID)
        if stored.dtype.kind == "f":
            right &= stored == np.floor(stored)
        self._check("token", stored, right, f"a whole number from 0 to {LARGEST_ID}")
        return stored.astype(dtype)

    def as_mask(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        """Check that numbers are 0 or 1, and cast them."""
        self._check("the mask of token", stored, (stored == 0) | (stored == 1), "0 or 1")
        return stored.astype(np.uint8)

    def _check(self, what: str, stored: NDArray[Any], right: Any, expected: str) -> None:
        wrong = np.flatnonzero(~right)
        if len(wrong):
            ends = np.cumsum(self.counts)
            at = int(np.searchsorted(ends, wrong[0], side="right"))
            token = int(self.starts[at] + wrong[0] - (ends[at] - self.counts[at]))
            raise self.error(
                f"{self.origin}: {what} {token} of document {self.documents[at]} is "
                f"{stored[wrong[0]]}; expected {expected}"
            )


class Places(NamedTuple):
    """Ranges of bytes that hold some ranges of tokens; int64 (places,) each."""

    owner: Ints
    """number of the range of tokens that each belongs to"""
    file: Ints
    start: Ints
    stop: Ints

    @classmethod
    def join(cls, *parts: Places) -> Places:
        """All places of several lookups."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Placed(Protocol):
    """Documents whose files and bytes are known."""

    @property
    def file_sizes(self) -> Ints:
        """Bytes of each file up to the end of its last document; int64 (files,)."""
        ...

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """The file of some documents, and the byte in it where each begins."""
        ...

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """The bytes of tokens `[starts[k], starts[k] + counts[k])` of `documents[k]`.

        Those of their stored masks are among them.
        """
        ...


class OneFile:
    """Documents as one file that holds the tokens, and masks, of each, end to end.

    So they are numbered into pages by `page_ends`, unless they know their files.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._item, self._masked = documents.dtype.itemsize, documents.masked

    @cached_property
    def _edges(self) -> Ints:
        """(documents + 1,) the byte where each document begins, and the end."""
        numbers = np.arange(len(self._documents))
        lengths = np.asarray(self._documents.lengths[numbers], np.int64)
        return np.append(0, np.cumsum(lengths * (self._item + self._masked)))

    @property
    def file_sizes(self) -> Ints:
        """See `Placed`."""
        return self._edges[-1:]

    def first_bytes(self, documents: Ints) -> tuple[Ints, Ints]:
        """See `Placed`."""
        return np.zeros_like(documents), self._edges[documents]

    def places(self, documents: Ints, starts: Ints, counts: Ints) -> Places:
        """See `Placed`."""
        owner, file = np.arange(len(documents)), np.zeros_like(documents)
        begin = self._edges[documents] + starts * self._item
        tokens = Places(owner, file, begin, begin + counts * self._item)
        if not self._masked:
            return tokens
        lengths = np.asarray(self._documents.lengths[documents], np.int64)
        begin = self._edges[documents] + lengths * self._item + starts
        return Places.join(tokens, Places(owner, file, begin, begin + counts))


def placed(documents: Documents) -> Placed:
    """The documents themselves where they know their files, else as one file."""
    known: Any = documents
    return known if hasattr(known, "places") else OneFile(documents)


_TOKENS_AT_ONCE = 2**20  # tokens


class ArrayDocuments(RangedDocuments):
    """Documents in memory, for tests and small experiments.

    Args:
        tokens: the ids of each document.
        masks: for each token, whether it has loss as a target.
        name: `"<split>/<source>"`.
        side: more arrays of one value a token, whole numbers or floats of 8 to 64 bits, by name,
            each of one dtype: a Loader adds those that its `extras` name to its batches.

    Raises:
        InputError: an id is not a whole number from 0 to 2³¹−1, a mask is not of 0 and 1, or masks
            or side arrays are not of as many documents, and values, as there are tokens.

    >>> docs = ArrayDocuments([[5, 6, 0], [7, 0]], side={"weight": [[0.5, 2, 0], [1.0, 0]]})
    >>> docs.lengths.tolist(), docs[1]["tokens"].tolist(), docs[1]["weight"].tolist()
    ([3, 2], [7, 0], [1.0, 0.0])
    """

    store = None

    def __init__(
        self,
        tokens: Sequence[ArrayLike],
        masks: Sequence[ArrayLike] | None = None,
        name: str = "documents",
        side: Mapping[str, Sequence[ArrayLike]] = MappingProxyType({}),
    ) -> None:
        self.name, self.masked = name, masks is not None
        documents = [_array("tokens", number, ids) for number, ids in enumerate(tokens)]
        self._lengths = np.array([len(document) for document in documents], np.uint32)
        counts = self._lengths.astype(np.int64)
        self._first = np.cumsum(counts) - counts
        numbers, starts = np.arange(len(counts)), np.zeros_like(counts)
        given = GivenRanges(f"{type(self).__name__} {name!r}", numbers, starts, counts, InputError)
        ids = given.as_ids(_joined("tokens", documents), np.dtype(np.uint32))
        self.dtype = np.dtype(np.uint16 if int(ids.max(initial=0)) < 2**16 else np.uint32)
        self._tokens = ids.astype(self.dtype.newbyteorder("<"))
        self._masks = np.empty(0, np.uint8)
        if masks is not None:
            self._masks = given.as_mask(_joined("masks", self._beside("masks", masks)))
        self._side = {name: self._side_of(name, arrays) for name, arrays in side.items()}

    def _side_of(self, name: str, given: Sequence[ArrayLike]) -> NDArray[Any]:
        """Check a side array, whose documents have one dtype; it is not guessed."""
        check_side(name)
        arrays = self._beside(repr(name), given)
        typed = [number for number, array in enumerate(arrays) if len(array)]
        dtype = arrays[typed[0]].dtype if typed else np.dtype(np.int64)
        check_side(name, dtype)
        for number in typed:
            if (other := arrays[number].dtype) != dtype:
                raise InputError(
                    f"{name!r} of document {number} is of {other}, of document {typed[0]} of "
                    f"{dtype}; give arrays of one dtype"
                )
        joined = np.concatenate([np.empty(0, dtype), *(arrays[number] for number in typed)])
        return joined.astype(dtype.newbyteorder("<"))

    def _beside(self, what: str, given: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Arrays of one value for each token."""
        arrays = [_array(what, number, values) for number, values in enumerate(given)]
        if len(arrays) != len(self):
            raise InputError(f"{what} of {counted(len(arrays), 'document')}, tokens of {len(self)}")
        for number, (array, length) in enumerate(zip(arrays, self._lengths.tolist(), strict=True)):
            if array.shape != (length,):
                raise InputError(
                    f"document {number}: {length} tokens, {what} of shape {array.shape}"
                )
        return arrays

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return self._lengths

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens, masks and side arrays."""
        content = hashlib.sha256()
        for array in (self._lengths, self._tokens, self._masks):
            for first in range(0, len(array), _TOKENS_AT_ONCE):
                content.update(array[first : first + _TOKENS_AT_ONCE].astype(np.int64).tobytes())
        for name, values in self._side.items():
            content.update(f"{name} {values.dtype}".encode())
            content.update(values.tobytes())
        return content.hexdigest()

    @property
    def side(self) -> dict[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        return {
            name: SideArray(values.dtype, partial(self._slices, values))
            for name, values in self._side.items()
        }

    def __repr__(self) -> str:
        return (
            f"ArrayDocuments({self.name!r}, {len(self):,} documents, {len(self._tokens):,} tokens)"
        )

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._tokens, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._masks, documents, starts, counts)

    def _slices(
        self, values: NDArray[Any], documents: Ints, starts: Ints, counts: Ints
    ) -> Gathered:
        begin = (self._first[documents] + starts) * values.itemsize
        memory = values.data.cast("B")
        views = ByteRanges([memory], np.zeros_like(begin), begin, begin + counts * values.itemsize)
        return Gathered(views, np.arange(len(documents)))


def _array(what: str, number: int, values: ArrayLike) -> NDArray[Any]:
    """The values of a document."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"document {number}: {what} are no array: {error}") from None
    if array.ndim != 1 and what == "tokens":
        raise InputError(
            f"document {number}: tokens of shape {array.shape}; expected a list of ids"
        )
    return array


def _joined(what: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of numbers end to end."""
    for number, array in enumerate(arrays):
        if len(array) and array.dtype.kind not in ("biuf" if what == "masks" else "iuf"):
            raise InputError(
                f"document {number}: {what} are of dtype {array.dtype}; expected numbers"
            )
    return np.concatenate([np.empty(0, np.uint8), *arrays])
