"""The rows that a process needs of each global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from jaxdata.errors import InputError
from jaxdata.feed.schedule import Span
from jaxdata.feed.skips import Skips
from jaxdata.ragged import Ints
from jaxdata.rows.batch_order import KeyedRows, in_batch_order
from jaxdata.rows.table import Batch


class Placement(Protocol):
    """Where the batches of one size go: to this host, or to devices."""

    @property
    def rows(self) -> Ints:
        """Offsets in the global batch of the rows that are needed here, increasing."""
        ...

    @property
    def works(self) -> bool:
        """Whether `place` has work to do, which a thread can do ahead of time."""
        ...

    def place(self, batch: Batch) -> Any:
        """The batch as it is delivered, from its local rows."""
        ...


class HostPlacement:
    """Numpy batches of shard *i* of *n*: rows `[i B / n, (i + 1) B / n)` of a global batch."""

    works = False

    def __init__(self, batch_size: int, shard: tuple[int, int]) -> None:
        number, shards = shard
        if not 0 <= number < shards:
            raise InputError(f"shard=({number}, {shards}): expected (i, n) with 0 <= i < n")
        if batch_size % shards:
            raise InputError(
                f"batch_size={batch_size} cannot be divided among {shards} shards: batch_size is "
                f"that of all shards together; choose a multiple of {shards}"
            )
        each = batch_size // shards
        self.rows = np.arange(number * each, (number + 1) * each)

    def place(self, batch: Batch) -> Batch:
        return batch


@dataclass(frozen=True)
class Share:
    """The rows of each global batch that this process needs."""

    offsets: Mapping[int, Ints]
    """by batch size, the increasing offsets in the batch"""
    skips: Skips
    ends: Sequence[int]
    """ordinals at which the sections end"""
    keyed: Sequence[KeyedRows] = ()
    """of each section, what sorts the rows of a batch; none if nothing does"""
    shift: int = 0
    """rows of earlier passes: row *i* of this one is row `i + shift` of the dataset"""

    def size(self, span: Span) -> int:
        """Rows of the local batch, padding included."""
        return len(self.offsets[span.size])

    def rows(self, spans: Sequence[Span]) -> list[Ints]:
        """The local rows of batches of one size and section, without padding; int64 (rows,)."""
        if self.is_sorted(spans[0]):
            return [self._in_batch_order(span) + self.shift for span in spans]
        ordinals = np.array([[span.first] for span in spans]) + self.offsets[spans[0].size]
        rows = (self.skips.rows(ordinals) if self.skips.gaps else ordinals) + self.shift
        return [found[: self._count(span)] for found, span in zip(rows, spans, strict=True)]

    def is_sorted(self, span: Span) -> bool:
        """Whether the rows of the batch are in another order than theirs."""
        return bool(self.keyed) and self.keyed[span.section].lanes > 1

    def _in_batch_order(self, span: Span) -> Ints:
        stop = min(span.first + span.size, self.ends[span.section])
        rows = self.skips.rows(np.arange(span.first, stop))
        wanted = self.offsets[span.size][: self._count(span)]
        return in_batch_order(self.keyed[span.section], rows)[wanted]

    def _count(self, span: Span) -> int:
        offsets, end = self.offsets[span.size], self.ends[span.section]
        if span.first + span.size <= end:
            return len(offsets)
        return int(np.searchsorted(offsets, end - span.first))
