"""Custom sources: any object with lengths and token arrays, as documents to pack."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.ragged import Ints
from jaxdata.dataset.array_documents import GivenRanges
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.dataset.manifest import as_type, check_side

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
