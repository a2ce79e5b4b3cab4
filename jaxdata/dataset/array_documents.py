"""Documents that others gave, in memory or as an object of theirs; the check of their values."""

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError, JaxdataError, counted, shortened
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, ByteRanges, Ints
from jaxdata.dataset.documents import DerivedDocuments, Document, Documents, Gathered
from jaxdata.dataset.manifest import as_type, check_side

LARGEST_ID = 2**31 - 1  # rows are int32
_HELD_BYTES = 2**26
"""of what was read last: windows of long documents, and masks, are mostly read soon after"""


class GivenRanges(NamedTuple):
    """Ranges of documents that others gave; their values are checked end to end."""

    origin: str
    """what errors call the documents"""
    documents: Ints
    starts: Ints
    counts: Ints
    error: type[JaxdataError] = DatasetError
    """what is raised where a value is wrong; it names the document and the token"""

    def as_ids(self, stored: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
        """Check that numbers are token ids, and cast them."""
        right = (stored >= 0) & (stored <= LARGEST_ID)
        if stored.dtype.kind == "f":
            right &= stored == np.floor(stored)
        self._check("token", stored, right, f"a whole number from 0 to {LARGEST_ID}")
        return stored.astype(dtype)

    def as_mask(self, stored: AnyArray) -> NDArray[np.uint8]:
        """Check that numbers are 0 or 1, and cast them."""
        self._check("the mask of token", stored, (stored == 0) | (stored == 1), "0 or 1")
        return stored.astype(np.uint8)

    def _check(self, what: str, stored: AnyArray, right: Any, expected: str) -> None:
        wrong = np.flatnonzero(~right)
        if len(wrong):
            ends = np.cumsum(self.counts)
            at = int(np.searchsorted(ends, wrong[0], side="right"))
            token = int(self.starts[at] + wrong[0] - (ends[at] - self.counts[at]))
            raise self.error(
                f"{self.origin}: {what} {token} of document {self.documents[at]} is "
                f"{stored[wrong[0]]}; expected {expected}"
            )


def as_numbers(
    values: ArrayLike, field: str, of: str, length: int | None, error: type[JaxdataError]
) -> AnyArray:
    """The numbers that somebody gave as a field of a document, which errors call `of`.

    There are `length` of them (None: any number); those of `tokens` are no flags.
    """
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise error(f"{of}: its {field} are no array: {problem}") from None
    if array.ndim != 1 or length not in (None, len(array)):
        expected = "a list of numbers" if length is None else f"{length} values"
        raise error(f"{of}: its {field} are of shape {array.shape}; expected {expected}")
    if len(array) and array.dtype.kind not in ("iuf" if field == "tokens" else "biuf"):
        raise error(f"{of}: its {field} are of dtype {array.dtype}; expected numbers")
    return array


def _joined(arrays: Sequence[AnyArray], dtype: Any = np.uint8) -> AnyArray:
    return np.concatenate([np.empty(0, dtype), *arrays])


class ArrayDocuments(Documents):
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

    def __init__(
        self,
        tokens: Sequence[ArrayLike],
        masks: Sequence[ArrayLike] | None = None,
        name: str = "documents",
        side: Mapping[str, Sequence[ArrayLike]] = MappingProxyType({}),
    ) -> None:
        self.name, self.masked = name, masks is not None
        documents = self._arrays("tokens", tokens)
        self.lengths = np.array([len(document) for document in documents], np.uint32)
        counts = self.lengths.astype(np.int64)
        self._first = np.cumsum(counts) - counts
        numbers, starts = np.arange(len(counts)), np.zeros_like(counts)
        given = GivenRanges(f"{type(self).__name__} {name!r}", numbers, starts, counts, InputError)
        ids = given.as_ids(_joined(documents), np.dtype(np.uint32))
        self.dtype = np.dtype(np.uint16 if int(ids.max(initial=0)) < 2**16 else np.uint32)
        self._tokens = ids.astype(self.dtype.newbyteorder("<"))
        self._masks = np.empty(0, np.uint8)
        if masks is not None:
            self._masks = given.as_mask(_joined(self._arrays("masks", masks, counts)))
        self._side = {name: self._of_side(name, arrays, counts) for name, arrays in side.items()}
        self.side = {name: self._of_values(values) for name, values in self._side.items()}

    def _arrays(
        self, field: str, given: Sequence[ArrayLike], lengths: Ints | None = None
    ) -> list[AnyArray]:
        """The arrays of a field, in each document as long as its tokens."""
        sizes = [None] * len(given) if lengths is None else lengths.tolist()
        if len(given) != len(sizes):
            raise InputError(f"{field} of {counted(len(given), 'document')}, tokens of {len(self)}")
        return [
            as_numbers(values, field, f"document {number}", size, InputError)
            for number, (values, size) in enumerate(zip(given, sizes, strict=True))
        ]

    def _of_side(self, name: str, given: Sequence[ArrayLike], lengths: Ints) -> AnyArray:
        """The values of a side array, whose documents have one dtype; it is not guessed."""
        arrays = [array for array in self._arrays(repr(name), given, lengths) if len(array)]
        dtypes = sorted({array.dtype for array in arrays}, key=str) or [np.dtype(np.int64)]
        for dtype in dtypes:
            check_side(name, dtype)
        if len(dtypes) > 1:
            raise InputError(
                f"{name!r} is of {' and of '.join(map(str, dtypes))}: give arrays of one dtype"
            )
        return _joined(arrays, dtypes[0]).astype(dtypes[0].newbyteorder("<"))

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens, masks and side arrays."""
        content = hashlib.sha256()
        for array in (self.lengths, self._tokens, self._masks):
            content.update(array.astype(np.int64).data)
        for name, values in self._side.items():
            content.update(f"{name} {values.dtype}".encode())
            content.update(values.data)
        return content.hexdigest()

    def _of_values(self, values: AnyArray) -> "ArrayDocuments":
        found = copy(self)
        found.dtype, found._tokens, found.masked = values.dtype, values, False
        return found

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._tokens, documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._slices(self._masks, documents, starts, counts)

    def _slices(self, values: AnyArray, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        begin = (self._first[documents] + starts) * values.itemsize
        memory = values.data.cast("B")
        views = ByteRanges([memory], np.zeros_like(begin), begin, begin + counts * values.itemsize)
        return Gathered(views, np.arange(len(documents)))


_SAMPLED = 64


def as_documents(docs: Any) -> Documents:
    """Return documents as they are, or wrap an object with `lengths` and items; else InputError."""
    if isinstance(docs, Documents):
        return docs
    if hasattr(docs, "lengths") and hasattr(docs, "__getitem__"):
        return CustomDocuments(docs)
    raise InputError(
        f"cannot pack a {type(docs).__name__}: expected a source with lengths, as "
        "dataset.source(split, name) gives it, jaxdata.ArrayDocuments([tokens, …]), or an object "
        "with `lengths` whose items are arrays of tokens"
    )


def _is_right(name: str, values: AnyArray, dtype: np.dtype[Any]) -> bool:
    """Whether an array needs no closer look, as most do not."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if name != "tokens":
        return kind == "b" if name == "loss_mask" else values.dtype == dtype
    if kind == "u" and size < 4:
        return True
    ids = kind in "iu" and len(values) > 0
    return ids and bool(values.min() >= 0 and values.max() <= LARGEST_ID)


class _Held(threading.local):
    """What was read last, in each thread for itself: windows are asked for by turns."""

    def __init__(self) -> None:
        self.items: dict[int, Document] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()

    def add(self, number: int, item: Document) -> None:
        """Keep a document; those that have been there longest make room."""
        self.items[number] = item
        self._bytes += sum(array.nbytes for array in item.values())
        while self._bytes > _HELD_BYTES:
            oldest = self.items.pop(next(iter(self.items)))
            self._bytes -= sum(array.nbytes for array in oldest.values())


class ItemDocuments(Documents):
    """Documents that come whole from a user's object or function, and are checked as they come."""

    called: str
    """what errors call them"""
    error: type[JaxdataError] = DatasetError
    """what is raised where one is not as it should be"""
    dtypes: Mapping[str, np.dtype[Any]]
    """the arrays that each has, and their types"""

    def __init__(self) -> None:
        self._held = _Held()

    @abstractmethod
    def items(self, numbers: Ints) -> Iterator[tuple[int, Mapping[str, ArrayLike]]]:
        """Some documents with their numbers, as they come."""

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.values("tokens", documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.values("loss_mask", documents, starts, counts)

    def values(self, name: str, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """Ranges of one array; documents are held for the others, which are asked for next."""
        wanted = np.unique(documents).tolist()
        held = {n: item for n in wanted if (item := self._held.items.get(n)) is not None}
        fresh = self.items(np.array([n for n in wanted if n not in held], np.int64))
        order = np.argsort(documents, kind="stable")
        parts, last, item = dict[int, AnyArray](), None, Document()
        columns = (each[order].tolist() for each in (documents, starts, counts))
        for place, document, start, count in zip(order.tolist(), *columns, strict=True):
            if last != document:
                last = document
                if (known := held.get(document)) is None:
                    item = self._checked(*next(fresh))
                    if len(item) > 1 or count < len(item[name]):  # more of it is asked for
                        self._held.add(document, item)
                else:
                    item = known
            part = item[name][start : start + count]
            # Copied: a window must not hold all of a book in memory.
            parts[place] = part.copy() if count < len(item[name]) else part
        ordered = (parts[place] for place in range(len(parts)))
        return Gathered.cut(np.concatenate([np.empty(0, self.dtypes[name]), *ordered]), counts)

    def _checked(self, number: int, given: Mapping[str, ArrayLike]) -> Document:
        """A document's arrays, in the types that they have in all."""
        if given.keys() != self.dtypes.keys():
            names, expected = (", ".join(sorted(each)) for each in (given, self.dtypes))
            raise self.error(
                f"{self.called}: document {number} has {names}; expected {expected}, as the first"
            )
        item, length = Document(), int(self.lengths[number])
        for name, dtype in self.dtypes.items():
            values: Any = given[name]
            known = isinstance(values, np.ndarray) and values.shape == (length,)
            if not known or not _is_right(name, values, dtype):
                values = self._typed(number, name, values, length)
            item[name] = values.astype(dtype, copy=False)
        return item

    def _typed(self, number: int, name: str, values: ArrayLike, length: int) -> AnyArray:
        of = f"{self.called}: document {number}"
        array = as_numbers(values, name, of, length, self.error)
        which, start, count = (np.array([value]) for value in (number, 0, length))
        given, dtype = GivenRanges(self.called, which, start, count, self.error), self.dtypes[name]
        if name == "tokens":
            return given.as_ids(array, dtype)
        typed = given.as_mask(array) if name == "loss_mask" else as_type(array, dtype)
        if typed is None:
            raise self.error(f"{of}: its {name} hold a number that {dtype.name} does not hold")
        return typed


class ItemSide(DerivedDocuments):
    """A side array of documents that come whole."""

    def __init__(self, items: ItemDocuments, name: str, dtype: np.dtype[Any]) -> None:
        check_side(name, dtype)
        super().__init__(items)
        self._items, self._array, self.side = items, name, {}
        self.dtype, self.masked = dtype, False

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._items.values(self._array, documents, starts, counts)


class CustomDocuments(ItemDocuments):
    """The documents of an object with `lengths` and `[index]` (see `Documents`).

    Args:
        source: `source[i]` is an array of `source.lengths[i]` tokens, or `{"tokens": …}` and
            optionally `"loss_mask"`. Its `name` and `fingerprint` are used if it has them; without
            one, the fingerprint covers all lengths and a sample of the documents. So is its
            `side`, `{"weight": "float32"}`: names of more arrays of its items, of one value a
            token, and their dtypes.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self._source = source
        self.name = str(getattr(source, "name", "documents"))
        self.called = f"{type(source).__name__} {self.name!r}"
        self.lengths = self._whole_lengths()
        self.dtype = np.dtype("<u4")
        first = source[0] if len(self) else None
        self.masked = isinstance(first, Mapping) and "loss_mask" in first
        given: Mapping[str, Any] = getattr(source, "side", {})
        side = {name: np.dtype(each).newbyteorder("<") for name, each in given.items()}
        masks = {"loss_mask": np.dtype(np.uint8)} if self.masked else {}
        self.dtypes = {"tokens": self.dtype, **masks, **side}
        self.side = {name: ItemSide(self, name, dtype) for name, dtype in side.items()}

    def _whole_lengths(self) -> NDArray[np.uint32]:
        given = self._source.lengths
        numbers = as_numbers(given, "lengths", self.called, None, InputError)
        lengths = as_type(numbers, np.dtype(np.uint32))
        count = len(self._source) if hasattr(self._source, "__len__") else len(numbers)
        if lengths is None or len(lengths) != count:
            raise InputError(
                f"{self.called}: expected as lengths a whole number from 0 to 4294967295 for each "
                f"of its {counted(count, 'document')}; they are {shortened(str(given), 100)}"
            )
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """The source's own, else a digest of all lengths and an even sample of documents."""
        if hasattr(self._source, "fingerprint"):
            return str(self._source.fingerprint)
        content = hashlib.sha256(self.lengths.tobytes())
        for number in np.unique(np.linspace(0, len(self) - 1, _SAMPLED).astype(int)).tolist():
            for array in self[number].values() if len(self) else ():
                content.update(array.tobytes())
        return content.hexdigest()

    def items(self, numbers: Ints) -> Iterator[tuple[int, Mapping[str, ArrayLike]]]:
        names = {*self.dtypes, "loss_mask"}  # whatever else it has is nobody's business
        for number in numbers.tolist():
            item = self._source[number]
            if isinstance(item, Mapping):
                yield number, {name: item[name] for name in item if name in names}
            else:
                yield number, {"tokens": item}
