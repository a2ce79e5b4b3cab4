"""The order in which documents are assigned to blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from jaxdata.documents.base import Documents, stated_lengths
from jaxdata.packing.plan_cache import cached_table
from jaxdata.packing.settings import PackSettings
from jaxdata.ragged import Ints, consecutive
from jaxdata.seeds import Permutation, derive

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
        number = int(np.searchsorted(self._firsts, span[0], side="right")) - 1
        whole = tuple(self._firsts[number : number + 2].tolist()) == span
        return self._block(number) if whole else super().documents_of(span)

    def position(self, document: int) -> int:
        segment = int(np.searchsorted(self.starts, document, side="right")) - 1
        block = int(self._order.inverse(segment)) // self._pool
        return int(self._firsts[block] + np.flatnonzero(self._block(block) == document)[0])

    def _block(self, number: int) -> Ints:
        """The documents of a block."""
        first = number * self._pool
        segments = self._order(np.arange(first, min(first + self._pool, len(self._order))))
        counts = self.starts[segments + 1] - self.starts[segments]
        found = consecutive(self.starts[segments], counts)
        key = derive(self.settings.seed, "pool", self.documents.name, number)
        return found[Permutation(len(found), key)(np.arange(len(found)))]
