"""The files of other tools that documents can be written as: what each can hold, and its index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.format.foreign import gpts, megatron
from jaxdata.rows.documents import Documents

__all__ = ["FORMATS", "Exported", "Ranges"]

Ints = NDArray[np.int64]


class Ranges(NamedTuple):
    """Ranges of documents, in order; int64 (ranges,) each."""

    document: Ints
    start: Ints
    tokens: Ints


class Exported(ABC):
    """Files being written of documents: told of all tokens in order, then asked for the index.

    Args:
        documents: what is exported.
        eod_id: the token that ends documents.
    """

    index_suffix: ClassVar[str | None] = ".idx"
    """of the index; None where there is none, and the tokens are all"""
    holds_masks: ClassVar[bool] = False

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        self.documents, self._eod_id = documents, eod_id
        self.lengths = documents.lengths
        if documents.masked and not self.holds_masks:
            raise InputError(
                f"{documents.name} stores loss masks, which this format cannot hold; export it "
                "as gpts if only first tokens are masked"
            )

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in the file."""

    def add(self, ranges: Ranges, tokens: NDArray[Any]) -> None:
        """Look at the next tokens; raises InputError where the file would not say the same."""
        largest = np.iinfo(self.dtype).max
        if len(tokens) and tokens.max() > largest:
            at = _document(ranges, int(tokens.argmax()))
            raise InputError(
                f"document {at} of {self.documents.name} has the id {tokens.max()}; the format "
                f"holds ids up to {largest}"
            )

    @abstractmethod
    def index(self) -> Iterator[bytes]:
        """The bytes of the index, piece by piece."""


class _Megatron(Exported):
    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        longest = int(self.lengths.max(initial=0))
        if longest >= 2**31:
            raise InputError(f"a document of {longest:,} tokens: the format holds up to 2^31 - 1")

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.documents.dtype.itemsize == 2 else "<i4")

    def index(self) -> Iterator[bytes]:
        return megatron.index_parts(self.lengths, self.dtype)


class _Gpts(Exported):
    holds_masks = True

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        self._leads = np.zeros(len(documents), np.uint16)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.documents.dtype.newbyteorder("<")

    def add(self, ranges: Ranges, tokens: NDArray[Any]) -> None:
        super().add(ranges, tokens)
        if self.documents.masked:
            self._add_masks(ranges)

    def _add_masks(self, ranges: Ranges) -> None:
        """Count masked tokens, which all have to come first in their document."""
        mask = np.frombuffer(self.documents.masks(*ranges).views.join(), np.uint8)
        owner = np.repeat(np.arange(len(ranges.tokens)), ranges.tokens)
        hidden = np.bincount(owner, mask == 0, len(ranges.tokens)).astype(np.int64)
        before = np.cumsum(ranges.tokens) - ranges.tokens
        expected = np.arange(len(mask)) - before[owner] >= hidden[owner]
        leads = self._leads[ranges.document].astype(np.int64) + hidden
        wrong = (hidden > 0) & (leads != ranges.start + hidden) | (leads > 65_535)
        wrong[owner[(mask > 0) != expected]] = True
        if wrong.any():
            raise InputError(
                f"document {ranges.document[wrong.argmax()]} of {self.documents.name} has a loss "
                "mask that is not some first tokens, up to 65,535: GPT-Simple's files hold no other"
            )
        self._leads[ranges.document] = leads

    def index(self) -> Iterator[bytes]:
        return gpts.index_parts(self.lengths, self._leads, self.dtype)


class _NanoGpt(Exported):
    index_suffix = None

    def __init__(self, documents: Documents, eod_id: int | None) -> None:
        super().__init__(documents, eod_id)
        if eod_id is None:
            raise InputError(
                "nanoGPT's files tell documents by their EOD: give its id, --eod-id or eod_id="
            )
        if not self.lengths.all():
            raise self._no_end(int(np.argmin(self.lengths)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2")

    def add(self, ranges: Ranges, tokens: NDArray[Any]) -> None:
        super().add(ranges, tokens)
        ends = np.cumsum(ranges.tokens) - 1
        lengths = self.lengths[ranges.document].astype(np.int64)
        whole = ranges.start + ranges.tokens == lengths
        is_end = np.zeros(len(tokens), bool)
        is_end[ends[whole]] = True
        if ranges.document[-1] == len(self.lengths) - 1 and tokens[-1] != self._eod_id:
            is_end[-1] = False  # the last document may lack it: the file ends there
        wrong = np.flatnonzero((tokens == self._eod_id) != is_end)
        if len(wrong):
            raise self._no_end(_document(ranges, int(wrong[0])))

    def _no_end(self, document: int) -> InputError:
        return InputError(
            f"document {document} of {self.documents.name} does not end with its only EOD, "
            f"{self._eod_id}: nanoGPT's files tell documents by it; give another --eod-id, or "
            "export as megatron or gpts"
        )

    def index(self) -> Iterator[bytes]:
        return iter(())


FORMATS: dict[str, type[Exported]] = {"megatron": _Megatron, "gpts": _Gpts, "nanogpt": _NanoGpt}


def _document(ranges: Ranges, token: int) -> int:
    """The document that a token of the ranges, end to end, lies in."""
    at = np.searchsorted(np.cumsum(ranges.tokens), token, side="right")
    return int(ranges.document[at])
