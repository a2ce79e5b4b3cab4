"""Anybody's data source of token arrays, as documents that can be packed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import DatasetError
from jaxdata.rows.documents import Pieces, RangedDocuments
from jaxdata.rows.ids import as_ids

__all__ = ["AdaptedDocuments"]

Ints = NDArray[np.int64]
_SAMPLED = 64


class AdaptedDocuments(RangedDocuments):
    """The documents of an object with `lengths` and `[index]` (see `Documents`).

    Args:
        source: `source[i]` is an array of tokens, or `{"tokens": …}` and maybe `"loss_mask"`, of
            `source.lengths[i]` tokens. Its `name` and `fingerprint` are taken if it has them; else
            the fingerprint is over all lengths and some documents.
    """

    store = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._lengths = np.asarray(source.lengths).astype(np.uint32)
        self.name = str(getattr(source, "name", "documents"))
        self.dtype = np.dtype("<u4")
        first = source[0] if len(self) else None
        self.masked = isinstance(first, Mapping) and "loss_mask" in first

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens of each document, uint32 (documents,)."""
        return self._lengths

    @cached_property
    def fingerprint(self) -> str:
        """The source's own; else over the lengths and some documents, evenly spread."""
        if hasattr(self._source, "fingerprint"):
            return str(self._source.fingerprint)
        content = hashlib.sha256(self._lengths.tobytes())
        for number in np.unique(np.linspace(0, len(self) - 1, _SAMPLED).astype(int)).tolist():
            for array in self[number].values() if len(self) else ():
                content.update(array.tobytes())
        return content.hexdigest()

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        stored = self._ranges("tokens", documents, starts, counts)
        origin = f"{type(self._source).__name__} {self.name!r}"
        return as_ids(
            stored, self.dtype, origin=origin, documents=documents, starts=starts, counts=counts
        )

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        stored = self._ranges("loss_mask", documents, starts, counts)
        return Pieces.cut(stored.astype(bool).view(np.uint8), counts)

    def _ranges(self, field: str, documents: Ints, starts: Ints, counts: Ints) -> NDArray[Any]:
        ranges = zip(documents.tolist(), starts.tolist(), counts.tolist(), strict=True)
        parts = [self._array(field, d)[start : start + count] for d, start, count in ranges]
        return np.concatenate([np.empty(0, np.uint8), *parts])

    def _array(self, field: str, document: int) -> NDArray[Any]:
        item = self._source[document]
        array = np.asarray(item[field] if isinstance(item, Mapping) else item)
        if array.shape != (self._lengths[document],):
            found = f"{array.size} tokens" if array.ndim == 1 else f"the shape {array.shape}"
            raise DatasetError(
                f"{type(self._source).__name__} {self.name!r}: document {document} has {found}, "
                f"its lengths say {self._lengths[document]}; lengths and items must agree"
            )
        return array
