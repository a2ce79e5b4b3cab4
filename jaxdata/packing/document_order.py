"""The order in which documents are assigned to blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from jaxdata.documents.base import Documents, stated_lengths
from jaxdata.packing.plan_cache import cached_table
from jaxdata.packing.settings import PackSettings
from jaxdata.ragged import Ints, consecutive
from jaxdata.seeds import Permutation, derive, shuffled_groups

_SMALL_BYTES = 2**31
_SEGMENT_BYTES = 2**20
_POOLS_A_LANE, _MAX_LANES = 8, 9  # 2**9 lanes
Span = tuple[int, int]
"""(first, stop): positions in the shuffled order of documents"""


def resolved(documents: Documents, settings: PackSettings) -> PackSettings:
    """The settings with numbers where they leave the choice; unshuffled rows have one lane."""
    if settings.order == 1 or None not in (settings.segment_bytes, settings.lanes):
        return settings
    if not settings.shuffle:
        return replace(settings, segment_bytes=0, lanes=1)
    stated = stated_lengths(documents)
    tokens = stated.tokens if stated else int(np.asarray(documents.lengths).sum(dtype=np.int64))
    size = tokens * (documents.dtype.itemsize + documents.masked)
    segment, lanes = settings.segment_bytes, settings.lanes
    if segment is None:
        segment = _SEGMENT_BYTES if size >= _SMALL_BYTES else 0
    if lanes is None:
        pools = size // settings.pool_bytes if segment else 0
        lanes = 2 ** min(max((pools // _POOLS_A_LANE).bit_length() - 1, 0), _MAX_LANES)
    return replace(settings, segment_bytes=segment, lanes=lanes)


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


class SegmentOrder(DocumentOrder):
    """Segments in a keyed order, so many to a block, whose documents come in a keyed order.

    A segment is the documents whose first byte lies in the same page of `segment_bytes`; a block is
    a pool of segments of `pool_bytes` in all.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.documents, self.settings = documents, settings

    @property
    def _segment_bytes(self) -> int:
        return self.settings.segment_bytes or _SEGMENT_BYTES

    @cached_property
    def starts(self) -> Ints:
        """(segments + 1,) the first document of each segment."""
        size = self._segment_bytes
        return cached_table(
            self.documents, {"segments": size}, lambda: self._cut(size), self._holds
        )

    def _cut(self, size: int) -> Ints:
        return np.append(0, self.documents.page_ends(size))

    def _holds(self, starts: Ints) -> bool:
        """Whether kept starts can be those of the documents."""
        ends = (
            starts.ndim == 1 and len(starts) and (starts[0], starts[-1]) == (0, len(self.documents))
        )
        return bool(ends and (np.diff(starts) > 0).all())

    @cached_property
    def _order(self) -> Permutation:
        key = derive(self.settings.seed, "segments", self.documents.name)
        return Permutation(len(self.starts) - 1, key)

    @property
    def _pool(self) -> int:
        """Segments of a block."""
        return max(self.settings.pool_bytes // self._segment_bytes, 1)

    @cached_property
    def _firsts(self) -> Ints:
        """(blocks + 1,) the position where each block begins."""
        segments = self._order(np.arange(len(self._order)))
        counts = np.diff(self.starts)[segments]
        ends = np.append(0, np.cumsum(counts))
        return np.append(ends[: -1 : self._pool], ends[-1])

    def spans(self) -> list[Span]:
        return list(pairwise(self._firsts.tolist()))

    def documents_at(self, positions: Ints) -> Ints:
        found = np.empty_like(positions)
        block = np.searchsorted(self._firsts, positions, side="right") - 1
        for number in np.unique(block).tolist():
            mine = np.flatnonzero(block == number)
            found[mine] = self._block(number)[positions[mine] - self._firsts[number]]
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
        segment = int(np.searchsorted(self.starts, document, side="right")) - 1
        block = int(self._order.inverse(segment)) // self._pool
        return int(self._firsts[block] + np.flatnonzero(self._block(block) == document)[0])

    def _block(self, number: int) -> Ints:
        """The documents of a block."""
        return self._blocks(number, number + 1)

    def _blocks(self, first: int, stop: int) -> Ints:
        """The documents of some blocks, end to end."""
        places = np.arange(first * self._pool, min(stop * self._pool, len(self._order)))
        segments = self._order(places)
        counts = self.starts[segments + 1] - self.starts[segments]
        found = consecutive(self.starts[segments], counts)
        names = self.settings.seed, "pool", self.documents.name
        keys = [derive(*names, number) for number in range(first, stop)]
        return found[shuffled_groups(np.diff(self._firsts[first : stop + 1]), keys)]
