"""Megatron's `eod_mask_loss`: no loss where the input is an EOD."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents, Gathered, RangedDocuments, SideArray, side_arrays
from jaxdata.ragged import Ints


def masked_after_ends(documents: Documents, eod_id: int | None) -> Documents:
    """The documents without loss after their ends, or with an `eod_id` after each of these."""
    return FirstTokensMasked(documents) if eod_id is None else AfterEodMasked(documents, eod_id)


class _Masked(RangedDocuments):
    """Documents with masks beyond those that they store (see `Documents`)."""

    masked = True

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.name, self.fingerprint = documents.name, documents.fingerprint
        self.dtype, self.store = documents.dtype, documents.store

    @property
    def lengths(self) -> NDArray[Any]:
        return self._documents.lengths

    @property
    def side(self) -> Mapping[str, SideArray]:
        """Those of the documents."""
        return side_arrays(self._documents)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self._documents.tokens(documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        mask = np.ones(counts.sum(), np.uint8)
        if self._documents.masked:
            stored = self._documents.masks(documents, starts, counts).views.join()
            mask &= np.frombuffer(stored, np.uint8)
        mask[self._without_loss(documents, starts, counts)] = 0
        return Gathered.cut(mask, counts)

    @abstractmethod
    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:
        """The tokens of the ranges, numbered end to end, that have no loss as targets."""


class FirstTokensMasked(_Masked):
    """Documents whose first token has no loss as a target.

    Its input is the last token of the previous document, an EOD, known from the lengths.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstTokensMasked, (self._documents,)

    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:  # noqa: ARG002
        first: Ints = np.cumsum(counts) - counts
        masked: Ints = first[(starts == 0) & (counts > 0)]
        return masked


class AfterEodMasked(_Masked):
    """Documents where what follows an EOD has no loss as a target, wherever documents end.

    What a token follows is the token before it in the ranges asked for, end to end: ranges of a
    segment are asked for in order, and its first token is no target.
    """

    def __init__(self, documents: Documents, eod_id: int) -> None:
        super().__init__(documents)
        self._eod_id = eod_id

    def __reduce__(self) -> tuple[Any, ...]:
        return AfterEodMasked, (self._documents, self._eod_id)

    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:
        stored = self._documents.tokens(documents, starts, counts).views.join()
        tokens = np.frombuffer(stored, self.dtype.newbyteorder("<"))
        after: Ints = 1 + np.flatnonzero(tokens[:-1] == self._eod_id)
        return after
