"""Documents dealt to blocks, which are packed together: settings by size, and the order.

A small source is dealt by single documents, a larger one by chunks of neighbours, so that what a
host reads lies together.
"""

from abc import ABC, abstractmethod

import numpy as np

from jaxdata.base.ragged import Ints, by_value, consecutive
from jaxdata.base.seeds import Permutation, derive, shuffled_groups
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.rows.packing.settings import PackSettings

BLOCK_DOCUMENTS = 65_536
"""single documents that are packed together"""
_SMALL_BYTES = 2**31
_CHUNK_BYTES, _BLOCK_BYTES = 2**20, 2**23
_BLOCKS_A_LANE, _LEAST_LANES, _MOST_LANES = 8, 2**8, 2**12
"""The least are for sources that are dealt by chunks for their size: with fewer, the place in the
corpus of a batch of 512 rows says more than 0.3 of the next one's (`tools/bench/shuffle.py`)."""


def resolved(documents: Documents, settings: PackSettings) -> PackSettings:
    """The settings with numbers where they leave the choice; unshuffled rows have one lane."""
    if not settings.shuffle:
        same = {"chunk_bytes": 0, "block_bytes": None, "lanes": 1, "reshuffle": "rows"}
        return settings.model_copy(update=same)
    chunk, block, lanes = settings.chunk_bytes, settings.block_bytes, settings.lanes
    stored = _stored_bytes(documents)
    if chunk is None:
        chunk = _CHUNK_BYTES if stored >= _SMALL_BYTES else 0
    if block is None and chunk:
        block = _BLOCK_BYTES
    if lanes is None:
        blocks = stored // block if chunk and block else 0
        least = min(blocks, _LEAST_LANES) if stored >= _SMALL_BYTES else 0
        most = min(max(blocks // _BLOCKS_A_LANE, least), _MOST_LANES)
        lanes = 2 ** max(most.bit_length() - 1, 0)
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


def order_of(documents: Documents, settings: PackSettings) -> "DocumentOrder":
    """The order of the documents of a source under `resolved` settings."""
    return (ChunkOrder if settings.chunk_bytes else SingleOrder)(documents, settings)


class DocumentOrder(ABC):
    """Documents by their position in an order, and the blocks that the order is cut into."""

    bounds: Ints
    """(blocks + 1,) the position where each block begins"""

    def documents_of(self, first: int, stop: int) -> Ints:
        """The documents of blocks `[first, stop)`, end to end."""
        return self.documents_at(np.arange(*self.bounds[[first, stop]]))

    @abstractmethod
    def documents_at(self, positions: Ints) -> Ints:
        """Documents at some positions; int64 (positions,)."""

    @abstractmethod
    def position(self, document: int) -> int:
        """The inverse of `documents_at`."""


class SingleOrder(DocumentOrder):
    """Single documents in a keyed order, or in that of the dataset; so many to a block."""

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        total, size = len(documents), BLOCK_DOCUMENTS
        if settings.block_bytes is not None:
            stored = max(_stored_bytes(documents), 1)
            size = max(settings.block_bytes * total // stored, 1)
        self.bounds = np.append(np.arange(0, total, size), total)
        key = derive(settings.seed, "deal", documents.name)
        self._order = Permutation(total, key) if settings.shuffle else None

    def documents_at(self, positions: Ints) -> Ints:
        return positions if self._order is None else self._order(positions)

    def position(self, document: int) -> int:
        return document if self._order is None else int(self._order.inverse(document))


class ChunkOrder(DocumentOrder):
    """Chunks in a keyed order, so many to a block, whose documents come in a keyed order.

    A chunk is the documents whose first byte lies in the same page of `chunk_bytes`; a block has
    `block_bytes` of chunks.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self._names = settings.seed, "pool", documents.name
        size = settings.chunk_bytes or _CHUNK_BYTES
        self._chunks = max((settings.block_bytes or _BLOCK_BYTES) // size, 1)
        """of a block"""

        def cut() -> Ints:
            return np.append(0, documents.page_ends(size))

        def holds(starts: Ints) -> bool:
            ends = starts.ndim == 1 and starts[[0, -1]].tolist() == [0, len(documents)]
            return ends and bool((np.diff(starts) > 0).all())

        self.starts = cached_table(documents, {"chunks": size}, cut, holds)
        """(chunks + 1,) the first document of each chunk"""
        key = derive(settings.seed, "segments", documents.name)
        self._order = Permutation(len(self.starts) - 1, key)
        chunks = self._order(np.arange(len(self._order)))
        ends = np.append(0, np.cumsum(np.diff(self.starts)[chunks]))
        self.bounds = np.append(ends[: -1 : self._chunks], ends[-1])

    def documents_of(self, first: int, stop: int) -> Ints:
        places = np.arange(first * self._chunks, min(stop * self._chunks, len(self._order)))
        chunks = self._order(places)
        counts = self.starts[chunks + 1] - self.starts[chunks]
        found = consecutive(self.starts[chunks], counts)
        keys = [derive(*self._names, number) for number in range(first, stop)]
        return found[shuffled_groups(np.diff(self.bounds[first : stop + 1]), keys)]

    def documents_at(self, positions: Ints) -> Ints:
        found = np.empty_like(positions)
        block = np.searchsorted(self.bounds, positions, side="right") - 1
        for number, mine in by_value(block):
            here = self.documents_of(number, number + 1)
            found[mine] = here[positions[mine] - self.bounds[number]]
        return found

    def position(self, document: int) -> int:
        chunk = int(np.searchsorted(self.starts, document, side="right")) - 1
        block = int(self._order.inverse(chunk)) // self._chunks
        here = self.documents_of(block, block + 1)
        return int(self.bounds[block] + np.flatnonzero(here == document)[0])
