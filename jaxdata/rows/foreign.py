"""Datasets of other tools as sources: their files are read where they lie, by memory maps."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.format.foreign import GPT2_EOD, Layout, beside, read_layout, source_name
from jaxdata.format.storage import LocalStore
from jaxdata.rows.documents import Documents, Pieces, RangedDocuments
from jaxdata.rows.ids import as_ids
from jaxdata.rows.sources import Sources

if TYPE_CHECKING:
    from jaxdata.tokenizers import Tokenizer

__all__ = ["ForeignDataset", "ForeignDocuments"]

Ints = NDArray[np.int64]


class ForeignDataset(Sources):
    """Another tool's dataset: split `train`, one source. Made by `open_dataset`."""

    def __init__(self, spec: str, *, tokenizer: str | None, eod_id: int | None) -> None:
        self.url, self._tokenizer = spec, tokenizer
        if eod_id is None and tokenizer is not None:
            eod_id = self.tokenizer.eod_id
        if eod_id is None and spec.startswith("nanogpt:"):
            eod_id = GPT2_EOD
        self._eod_id = eod_id
        self._open("")  # what is missing or damaged is known now

    @property
    def names(self) -> Collection[str]:
        """`"train/<source>"`, nothing else."""
        return [f"train/{source_name(self.url)}"]

    @property
    def eod_id(self) -> int | None:
        """What was given, the tokenizer's, or for nanogpt GPT-2's."""
        return self._eod_id

    def _open(self, _: str) -> Documents:
        return ForeignDocuments(self.url, self._eod_id)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given."""
        from jaxdata import tokenizers

        if self._tokenizer is None:
            raise InputError(
                f"{self.url} does not say which tokenizer made it: give it to decode, as "
                f"open_dataset({self.url!r}, tokenizer='tiktoken:gpt2') or `tokenizer:` in a config"
            )
        return tokenizers.load(self._tokenizer)


class ForeignDocuments(RangedDocuments):
    """The documents of another tool's dataset (see `Documents`).

    Args:
        spec: `"<kind>:<path>"`.
        eod_id: the token that ends documents, for nanogpt.
        sequences: of megatron, sequences instead of documents.
    """

    def __init__(self, spec: str, eod_id: int | None = None, sequences: bool = False) -> None:
        self._given = (spec, eod_id, sequences)
        self._layout: Layout = read_layout(spec, eod_id=eod_id, sequences=sequences)
        self.name = f"train/{source_name(spec)}"
        self.store = beside(spec)
        self.masked = self._layout.masked
        # int32 as uint32: the same bytes, once it is known that no id is negative.
        self.dtype = np.dtype("<u2" if self._layout.dtype.itemsize < 4 else "<u4")
        # Numbers that are in any case what they should be are handed out as they lie there.
        self._as_is = self._layout.dtype == self.dtype
        parts = self._layout.parts
        self._files = LocalStore(parts[0].tokens.parent)
        self._names = [part.tokens.name for part in parts]
        self._mask_names = [part.mask.name for part in parts if part.mask is not None]

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignDocuments, self._given

    def __repr__(self) -> str:
        return f"ForeignDocuments({self._layout.spec!r}, {len(self):,} documents)"

    @property
    def lengths(self) -> NDArray[Any]:
        """Tokens of each document, (documents,) uint32 (uint64 where one is longer)."""
        return self._layout.lengths

    @property
    def fingerprint(self) -> str:
        """Over sizes, samples, lengths and masked prefixes."""
        return self._layout.fingerprint

    @property
    def sequences(self) -> ForeignDocuments:
        """The sequences that Megatron's documents consist of, as documents."""
        spec, eod_id, _ = self._given
        return ForeignDocuments(spec, eod_id, sequences=True)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`; views of the memory maps where the files have uint16 or uint32."""
        part, offset = self._layout.place(documents)
        item = self._layout.dtype.itemsize
        begin = offset + starts * item
        found = self._files.gather(self._names, part, begin, begin + counts * item)
        if self._as_is:
            return Pieces(found, np.arange(len(documents)))
        stored = np.frombuffer(found.join(), self._layout.dtype)
        return as_ids(
            stored,
            self.dtype,
            origin=self._layout.spec,
            documents=documents,
            starts=starts,
            counts=counts,
        )

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Pieces:
        """See `Documents`."""
        if self._mask_names:
            part, offset = self._layout.place(documents)
            begin = offset // self._layout.dtype.itemsize + starts
            found = self._files.gather(self._mask_names, part, begin, begin + counts)
            return Pieces(found, np.arange(len(documents)))
        assert self._layout.leads is not None
        hidden = np.clip(self._layout.leads[documents] - starts, 0, counts)
        zeros_and_ones = np.stack([hidden, counts - hidden], axis=1).ravel()
        mask = np.repeat(np.tile(np.array([0, 1], np.uint8), len(counts)), zeros_and_ones)
        return Pieces.cut(mask, counts)
