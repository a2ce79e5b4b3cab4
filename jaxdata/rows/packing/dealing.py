"""Documents dealt to blocks, which are packed together: settings by size, and the order.

A small source is dealt by single documents, a larger one by chunks of neighbours, so that what a
host reads lies together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from jaxdata.base.ragged import Ints, consecutive
from jaxdata.base.seeds import Permutation, derive, shuffled_groups
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.rows.packing.settings import PackSettings

BLOCK_DOCUMENTS = 65_536
"""single documents that are packed together"""
_SMALL_BYTES = 2**31
_CHUNK_BYTES, _BLOCK_BYTES = 2**20, 2**23
_BLOCKS_A_LANE, _MOST_LANES = 8, 2**12
Span = tuple[int, int]
"""(first, stop): positions in the shuffled order of documents"""


def resolved(documents: Documents, settings: PackSettings) -> PackSettings:
    """The settings with numbers where they leave the choice; unshuffled rows have one lane."""
    if not settings.shuffle:
        same = {"chunk_bytes": 0, "block_bytes": None, "lanes": 1, "reshuffle": "rows"}
        return settings.model_copy(update=same)
    chunk, block, lanes = settings.chunk_bytes, settings.block_bytes, settings.lanes
    if chunk is None:
        chunk = _CHUNK_BYTES if _stored_bytes(documents) >= _SMALL_BYTES else 0
    if block is None and chunk:
        block = _BLOCK_BYTES
    if lanes is None:
        blocks = _stored_bytes(documents) // block if chunk and block else 0
        lanes = min(2 ** max((blocks // _BLOCKS_A_LANE).bit_length() - 1, 0), _MOST_LANES)
    found = {"chunk_bytes": chunk, "block_bytes": block, "lanes": lanes}
    return settings.model_copy(update=found)


def of_epoch(settings: PackSettings, documents: Documents, epoch: int) -> PackSettings:
    """The settings that deal the documents of an epoch; of the first, those of all."""
    if settings.reshuffle == "rows":
        return settings
    seed = derive(settings.seed, "epoch", documents.name, epoch) if epoch else settings.seed
    return settings.model_copy(update={"seed": seed, "reshuffle": "rows"})


def _stored_bytes(documents: Documents) -> int:
    return documents.total_tokens * (documents.dtype.itemsize + documents.masked)


def order_of(documents: Documents, settings: PackSettings) -> DocumentOrder:
    """The order of the documents of a source under `resolved` settings."""
    return (ChunkOrder if settings.chunk_bytes else SingleOrder)(documents, settings)


class DocumentOrder(ABC):
    """Documents by their position in an order, and the blocks that the order is cut into."""

    @abstractmethod
    def spans(self) -> list[Span]:
        """The blocks."""

    @abstractmethod
    def documents_at(self, positions: Ints) -> Ints:
        """Documents at some positions; int64 (positions,)."""

    @abstractmethod
    def position(self, document: int) -> int:
        """The inverse of `documents_at`."""

    def documents_of(self, span: Span) -> Ints:
        """The documents of a block."""
        return self.documents_at(np.arange(*span))

    def documents_of_each(self, spans: Sequence[Span]) -> tuple[Ints, Ints]:
        """The documents of consecutive blocks, end to end, and (blocks,) how many each has."""
        counts = np.array([stop - first for first, stop in spans], np.int64)
        documents = self.documents_at(np.arange(spans[0][0], spans[-1][1]))
        return documents, counts


class SingleOrder(DocumentOrder):
    """Single documents in a keyed order, or in that of the dataset; so many to a block."""

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self._total, self._shuffle = len(documents), settings.shuffle
        self._block = BLOCK_DOCUMENTS
        if settings.block_bytes is not None:
            size = max(_stored_bytes(documents), 1)
            self._block = max(settings.block_bytes * self._total // size, 1)
        key = derive(settings.seed, "deal", documents.name)
        self._order = Permutation(self._total, key)

    def spans(self) -> list[Span]:
        starts = range(0, self._total, self._block)
        return [(first, min(first + self._block, self._total)) for first in starts]

    def documents_at(self, positions: Ints) -> Ints:
        return self._order(positions) if self._shuffle else positions

    def position(self, document: int) -> int:
        return int(self._order.inverse(document)) if self._shuffle else document


class ChunkOrder(DocumentOrder):
    """Chunks in a keyed order, so many to a block, whose documents come in a keyed order.

    A chunk is the documents whose first byte lies in the same page of `chunk_bytes`; a block has
    `block_bytes` of chunks.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.documents, self.settings = documents, settings
        self._chunk_bytes = settings.chunk_bytes or _CHUNK_BYTES
        self._chunks = max((settings.block_bytes or _BLOCK_BYTES) // self._chunk_bytes, 1)
        """of a block"""

    @cached_property
    def starts(self) -> Ints:
        """(chunks + 1,) the first document of each chunk."""
        documents, size = self.documents, self._chunk_bytes

        def holds(starts: Ints) -> bool:
            ends = starts.ndim == 1 and starts[[0, -1]].tolist() == [0, len(documents)]
            return ends and bool((np.diff(starts) > 0).all())

        def cut() -> Ints:
            return np.append(0, documents.page_ends(size))

        return cached_table(documents, {"chunks": size}, cut, holds)

    @cached_property
    def _order(self) -> Permutation:
        key = derive(self.settings.seed, "segments", self.documents.name)
        return Permutation(len(self.starts) - 1, key)

    @cached_property
    def _firsts(self) -> Ints:
        """(blocks + 1,) the position where each block begins."""
        chunks = self._order(np.arange(len(self._order)))
        counts = np.diff(self.starts)[chunks]
        ends = np.append(0, np.cumsum(counts))
        return np.append(ends[: -1 : self._chunks], ends[-1])

    def spans(self) -> list[Span]:
        return list(pairwise(self._firsts.tolist()))

    def documents_at(self, positions: Ints) -> Ints:
        found = np.empty_like(positions)
        block = np.searchsorted(self._firsts, positions, side="right") - 1
        for number in np.unique(block).tolist():
            mine = np.flatnonzero(block == number)
            here = self._blocks(number, number + 1)
            found[mine] = here[positions[mine] - self._firsts[number]]
        return found

    def documents_of(self, span: Span) -> Ints:
        return self.documents_of_each([span])[0]

    def documents_of_each(self, spans: Sequence[Span]) -> tuple[Ints, Ints]:
        first = int(np.searchsorted(self._firsts, spans[0][0], side="right")) - 1
        edges = self._firsts[first : first + len(spans) + 1]
        if list(pairwise(edges.tolist())) != list(spans):  # blocks that `MAX_WINDOWS` ends
            return super().documents_of_each(spans)
        return self._blocks(first, first + len(spans)), np.diff(edges)

    def position(self, document: int) -> int:
        chunk = int(np.searchsorted(self.starts, document, side="right")) - 1
        block = int(self._order.inverse(chunk)) // self._chunks
        here = self._blocks(block, block + 1)
        return int(self._firsts[block] + np.flatnonzero(here == document)[0])

    def _blocks(self, first: int, stop: int) -> Ints:
        """The documents of some blocks, end to end."""
        places = np.arange(first * self._chunks, min(stop * self._chunks, len(self._order)))
        chunks = self._order(places)
        counts = self.starts[chunks + 1] - self.starts[chunks]
        found = consecutive(self.starts[chunks], counts)
        names = self.settings.seed, "pool", self.documents.name
        keys = [derive(*names, number) for number in range(first, stop)]
        return found[shuffled_groups(np.diff(self._firsts[first : stop + 1]), keys)]
