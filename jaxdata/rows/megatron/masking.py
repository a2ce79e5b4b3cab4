"""Megatron's `eod_mask_loss`: no loss for what is predicted from an EOD."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.documents import Documents, Pieces, RangedDocuments

__all__ = ["FirstTokensMasked"]

Ints = NDArray[np.int64]


class FirstTokensMasked(RangedDocuments):
    """Documents whose first token has no loss where it is a target (see `Documents`).

    It is the target of the last token of the document before, an EOD: known from the lengths.
    """

    masked = True

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.name, self.fingerprint = documents.name, documents.fingerprint
        self.dtype, self.store = documents.dtype, documents.store

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstTokensMasked, (self._documents,)

    @property
    def lengths(self) -> NDArray[Any]:
        """See `Documents`."""
        return self._documents.lengths

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        return self._documents.tokens(documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        mask = np.ones(counts.sum(), np.uint8)
        if self._documents.masked:
            stored = self._documents.masks(documents, starts, counts).views.join()
            mask &= np.frombuffer(stored, np.uint8)
        first = np.cumsum(counts) - counts
        mask[first[(starts == 0) & (counts > 0)]] = 0
        return Pieces.cut(mask, counts)
