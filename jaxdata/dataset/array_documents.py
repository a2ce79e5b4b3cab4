"""Documents that others gave, in memory or as an object of theirs; the check of their values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import DatasetError, InputError, JaxdataError
from jaxdata.base.ragged import ByteRanges, Ints
from jaxdata.base.wording import counted
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.dataset.manifest import as_type, check_side

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


_TOKENS_AT_ONCE = 2**20  # tokens


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
        documents = [_array("tokens", number, ids) for number, ids in enumerate(tokens)]
        self.lengths = np.array([len(document) for document in documents], np.uint32)
        counts = self.lengths.astype(np.int64)
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
        for number, (array, length) in enumerate(zip(arrays, self.lengths.tolist(), strict=True)):
            if array.shape != (length,):
                raise InputError(
                    f"document {number}: {length} tokens, {what} of shape {array.shape}"
                )
        return arrays

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all tokens, masks and side arrays."""
        content = hashlib.sha256()
        for array in (self.lengths, self._tokens, self._masks):
            for first in range(0, len(array), _TOKENS_AT_ONCE):
                content.update(array[first : first + _TOKENS_AT_ONCE].astype(np.int64).tobytes())
        for name, values in self._side.items():
            content.update(f"{name} {values.dtype}".encode())
            content.update(values.tobytes())
        return content.hexdigest()

    @cached_property
    def side(self) -> Mapping[str, Documents]:
        """Side arrays by name: the same documents, with values in place of tokens."""
        return {name: self._of_values(values) for name, values in self._side.items()}

    def _of_values(self, values: NDArray[Any]) -> ArrayDocuments:
        found = copy(self)
        found.dtype, found._tokens = values.dtype, values
        found.masked, found._side = False, {}
        return found

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


class CustomDocuments(Documents):
    """The documents of an object with `lengths` and `[index]` (see `Documents`).

    Args:
        source: `source[i]` is an array of `source.lengths[i]` tokens, or `{"tokens": …}` and
            optionally `"loss_mask"`. Its `name`, `fingerprint` and `loss_tokens` (all targets with
            loss) are used if it has them; without one, the fingerprint covers all lengths and a
            sample of the documents. So is its `side`, `{"weight": "float32"}`: names of more arrays
            of its items, of one value a token, and their dtypes.
    """

    def __init__(self, source: Any) -> None:
        self._source, self._field = source, "tokens"
        self.name = str(getattr(source, "name", "documents"))
        self.lengths = self._whole_lengths()
        self.dtype = np.dtype("<u4")
        self.loss_tokens = getattr(source, "loss_tokens", None)
        first = source[0] if len(self) else None
        self.masked = isinstance(first, Mapping) and "loss_mask" in first
        self._items_have_masks = self.masked
        self._side: Mapping[str, Any] = getattr(source, "side", {})
        for name, dtype in self._side.items():
            check_side(name, dtype)

    @property
    def _called(self) -> str:
        """The source in errors."""
        return f"{type(self._source).__name__} {self.name!r}"

    def _whole_lengths(self) -> NDArray[np.uint32]:
        given = np.asarray(self._source.lengths)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iuf"):
            raise InputError(
                f"{self._called}: lengths are of shape {given.shape} and dtype {given.dtype}; "
                "expected a number of tokens for each document"
            )
        lengths = as_type(given, np.dtype(np.uint32))
        if lengths is None:
            wrong = next(n for n, one in enumerate(given) if as_type(one, np.dtype("u4")) is None)
            raise InputError(
                f"{self._called}: the length of document {wrong} is {given[wrong]}; expected a "
                "whole number from 0 to 4294967295"
            )
        if hasattr(self._source, "__len__") and len(self._source) != len(lengths):
            raise InputError(
                f"{self._called}: {len(lengths)} lengths, {len(self._source)} documents; expected "
                "a length for each"
            )
        return lengths

    @cached_property
    def side(self) -> Mapping[str, Documents]:
        """Side arrays by name: the same documents, with values in place of tokens."""
        return {name: self._of_values(name, dtype) for name, dtype in self._side.items()}

    def _of_values(self, name: str, dtype: Any) -> CustomDocuments:
        found = copy(self)
        found._field, found.dtype = name, np.dtype(dtype).newbyteorder("<")
        found.masked, found._side = False, {}
        return found

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

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        given = GivenRanges(self._called, documents, starts, counts)
        if self._field != "tokens":
            return self._values(given)
        stored = np.concatenate([np.empty(0, np.uint8), *self._ranges("tokens", given)])
        return Gathered.cut(given.as_ids(stored, self.dtype), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        given = GivenRanges(self._called, documents, starts, counts)
        stored = np.concatenate([np.empty(0, np.uint8), *self._ranges("loss_mask", given)])
        return Gathered.cut(given.as_mask(stored), counts)

    def _values(self, given: GivenRanges) -> Gathered:
        parts, ranges = [np.empty(0, self.dtype)], self._ranges(self._field, given)
        for document, part in zip(given.documents.tolist(), ranges, strict=True):
            values = as_type(part, self.dtype)  # one by one: together, they may all become floats
            if values is None:
                raise DatasetError(
                    f"{self._called}: {self._field!r} of document {document} holds a number that "
                    f"{self.dtype.name} does not hold; give another dtype in its `side`"
                )
            parts.append(values)
        return Gathered.cut(np.concatenate(parts), given.counts)

    def _ranges(self, field: str, given: GivenRanges) -> Iterator[NDArray[Any]]:
        columns = given.documents.tolist(), given.starts.tolist(), given.counts.tolist()
        for document, start, count in zip(*columns, strict=True):
            yield self._array(field, document)[start : start + count]

    def _array(self, field: str, document: int) -> NDArray[Any]:
        item = self._source[document]
        found = item if isinstance(item, Mapping) else {"tokens": item}
        if field not in found:
            raise DatasetError(f"{self._called}: document {document} has no {field!r}")
        if "loss_mask" in found and not self._items_have_masks:
            raise DatasetError(
                f"{self._called}: document {document} has a 'loss_mask', document 0 has none; "
                "expected all or none"
            )
        array, values = np.asarray(found[field]), _values_of(field)
        if array.shape != (self.lengths[document],):
            size = f"{array.size} {values}" if array.ndim == 1 else f"the shape {array.shape}"
            raise DatasetError(
                f"{self._called}: document {document} has {size}, expected "
                f"{self.lengths[document]} by its lengths; lengths and items must agree"
            )
        if len(array) and array.dtype.kind not in ("iuf" if field == "tokens" else "biuf"):
            raise DatasetError(
                f"{self._called}: document {document} has {values} of dtype {array.dtype}; "
                "expected numbers"
            )
        return array


def _values_of(field: str) -> str:
    return "tokens" if field == "tokens" else f"values of {field!r}"
