"""Custom sources: any object with lengths and token arrays, as documents to pack."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents, Gathered, RangedDocuments, SideArray
from jaxdata.documents.token_ids import as_ids
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.side_rules import as_type, check_side
from jaxdata.ragged import Ints

_SAMPLED = 64


def as_documents(docs: Any) -> Documents:
    """Return documents as they are, or wrap an object with `lengths` and items; else InputError."""
    if hasattr(docs, "lengths") and hasattr(docs, "tokens"):
        documents: Documents = docs
        return documents
    if hasattr(docs, "lengths") and hasattr(docs, "__getitem__"):
        return CustomDocuments(docs)
    raise InputError(
        f"cannot pack a {type(docs).__name__}: expected a source with lengths, as "
        "dataset.source(split, name) gives it, jaxdata.ArrayDocuments([tokens, …]), or an object "
        "with `lengths` whose items are arrays of tokens"
    )


class CustomDocuments(RangedDocuments):
    """The documents of an object with `lengths` and `[index]` (see `Documents`).

    Args:
        source: `source[i]` is an array of `source.lengths[i]` tokens, or `{"tokens": …}` and
            optionally `"loss_mask"`. Its `name`, `fingerprint` and `loss_tokens` (all targets with
            loss) are used if it has them; without one, the fingerprint covers all lengths and a
            sample of the documents. So is its `side`, `{"weight": "float32"}`: names of more arrays
            of its items, of one value a token, and their dtypes.
    """

    store = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._lengths = np.asarray(source.lengths).astype(np.uint32)
        self.name = str(getattr(source, "name", "documents"))
        self.dtype = np.dtype("<u4")
        self.loss_tokens = getattr(source, "loss_tokens", None)
        first = source[0] if len(self) else None
        self.masked = isinstance(first, Mapping) and "loss_mask" in first
        for name, dtype in getattr(source, "side", {}).items():
            check_side(name, dtype)

    @cached_property
    def side(self) -> dict[str, SideArray]:
        """Arrays of one value a token beside the tokens, by name."""
        declared = getattr(self._source, "side", {}).items()
        dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in declared}
        return {n: SideArray(dtype, partial(self._values, n, dtype)) for n, dtype in dtypes.items()}

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return self._lengths

    @cached_property
    def fingerprint(self) -> str:
        """The source's own, else a digest of all lengths and an even sample of documents."""
        if hasattr(self._source, "fingerprint"):
            return str(self._source.fingerprint)
        content = hashlib.sha256(self._lengths.tobytes())
        for number in np.unique(np.linspace(0, len(self) - 1, _SAMPLED).astype(int)).tolist():
            for array in self[number].values() if len(self) else ():
                content.update(array.tobytes())
        return content.hexdigest()

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        stored = self._ranges("tokens", documents, starts, counts)
        origin = f"{type(self._source).__name__} {self.name!r}"
        return as_ids(stored, self.dtype, origin, (documents, starts, counts))

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        stored = self._ranges("loss_mask", documents, starts, counts)
        return Gathered.cut(stored.astype(bool).view(np.uint8), counts)

    def _values(
        self, name: str, dtype: np.dtype[Any], documents: Ints, starts: Ints, counts: Ints
    ) -> Gathered:
        values = as_type(self._ranges(name, documents, starts, counts), dtype)
        if values is None:
            raise DatasetError(
                f"{type(self._source).__name__} {self.name!r}: {name!r} holds a number that "
                f"{dtype.name} does not hold; give another dtype in its `side`"
            )
        return Gathered.cut(values, counts)

    def _ranges(self, field: str, documents: Ints, starts: Ints, counts: Ints) -> NDArray[Any]:
        ranges = zip(documents.tolist(), starts.tolist(), counts.tolist(), strict=True)
        parts = [self._array(field, d)[start : start + count] for d, start, count in ranges]
        return np.concatenate([np.empty(0, np.uint8), *parts])

    def _array(self, field: str, document: int) -> NDArray[Any]:
        item = self._source[document]
        if isinstance(item, Mapping) and field not in item:
            raise DatasetError(
                f"{type(self._source).__name__} {self.name!r}: document {document} has no {field!r}"
            )
        array = np.asarray(item[field] if isinstance(item, Mapping) else item)
        if array.shape != (self._lengths[document],):
            values = "tokens" if field == "tokens" else f"values of {field!r}"
            found = f"{array.size} {values}" if array.ndim == 1 else f"the shape {array.shape}"
            raise DatasetError(
                f"{type(self._source).__name__} {self.name!r}: document {document} has {found}, "
                f"expected {self._lengths[document]} by its lengths; lengths and items must agree"
            )
        return array
