"""What Megatron finds in tokens: no loss after EODs (`eod_mask_loss`), and none of pads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.documents.base import Documents, Gathered, RangedDocuments, SideArray, side_arrays
from jaxdata.megatron.settings import GptSettings
from jaxdata.ragged import Ints


def masked_as(documents: Documents, settings: GptSettings) -> Documents:
    """The documents with the masks that `eod_mask_loss` and `pad_id` make."""
    eod_id, pad_id = settings.eod_id, settings.pad_id
    if settings.eod_mask_loss and eod_id is None:
        documents = FirstTokensMasked(documents)
    elif settings.eod_mask_loss and eod_id is not None:
        documents = AfterEodMasked(documents, eod_id)
    return documents if pad_id is None else PadsMasked(documents, pad_id)


def unpadded(documents: Documents) -> Documents:
    """The documents with the pads that :class:`PadsMasked` takes out: EODs may have id 0."""
    return documents.documents if isinstance(documents, PadsMasked) else documents


class _Masked(RangedDocuments):
    """Documents with masks beyond those that they store (see `Documents`)."""

    masked = True

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.name, self.fingerprint = documents.name, documents.fingerprint
        self.dtype, self.store = documents.dtype, documents.store

    @property
    def lengths(self) -> NDArray[Any]:
        return self.documents.lengths

    @property
    def side(self) -> Mapping[str, SideArray]:
        """Those of the documents."""
        return side_arrays(self.documents)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        return self.documents.tokens(documents, starts, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        mask = np.ones(counts.sum(), np.uint8)
        if self.documents.masked:
            stored = self.documents.masks(documents, starts, counts).views.join()
            mask &= np.frombuffer(stored, np.uint8)
        mask[self._without_loss(documents, starts, counts)] = 0
        return Gathered.cut(mask, counts)

    def _joined(self, documents: Ints, starts: Ints, counts: Ints) -> NDArray[Any]:
        stored = self.documents.tokens(documents, starts, counts).views.join()
        return np.frombuffer(stored, self.dtype.newbyteorder("<"))

    @abstractmethod
    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:
        """The tokens of the ranges, numbered end to end, that have no loss as targets."""


class FirstTokensMasked(_Masked):
    """Documents whose first token has no loss as a target.

    Its input is the last token of the previous document, an EOD, known from the lengths.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstTokensMasked, (self.documents,)

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
        return AfterEodMasked, (self.documents, self._eod_id)

    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:
        tokens = self._joined(documents, starts, counts)
        after: Ints = 1 + np.flatnonzero(tokens[:-1] == self._eod_id)
        return after


class PadsMasked(_Masked):
    """Documents whose pads have no loss as targets, and are 0."""

    def __init__(self, documents: Documents, pad_id: int) -> None:
        super().__init__(documents)
        self._pad_id = pad_id

    def __reduce__(self) -> tuple[Any, ...]:
        return PadsMasked, (self.documents, self._pad_id)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        tokens = self._joined(documents, starts, counts)
        return Gathered.cut(
            np.where(tokens == self._pad_id, 0, tokens).astype(tokens.dtype), counts
        )

    def _without_loss(self, documents: Ints, starts: Ints, counts: Ints) -> Ints:
        found: Ints = np.flatnonzero(self._joined(documents, starts, counts) == self._pad_id)
        return found
