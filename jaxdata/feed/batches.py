"""What makes this process's rows of global batches, and where they go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed.balance import Balance
from jaxdata.feed.bucket_reads import choose_pages
from jaxdata.feed.layouts import Layout, native
from jaxdata.feed.schedule import Skips, Span
from jaxdata.rows.arrays import HOST_BUFFERS, BufferPool, assemble, compact
from jaxdata.rows.mixing.amended_rows import Amendment, amended
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.reading import FarRanges, far_ranges
from jaxdata.rows.table import Batch, KeyedRows, RowTable, in_batch_order

# Rows that are planned and located in one pass, and their limits: a pass costs about 0.1 ms and
# 0.25 ms for each source, and the first batch waits for the first pass.
_ROWS_PER_SOURCE = 256
_ROWS_PER_LANE = 32
_MIN_SOURCES = 4
_MAX_ROWS = 16_384
_MAX_FAR_ROWS = 512
"""of a bucket: the first of a group must not wait long for the pages of all"""
_MAX_SORTED = 65_536
"""rows of global batches, where these are sorted"""


class Placement:
    """Where the batches of one size go: to this host, or to devices."""

    rows: Ints
    """offsets in the global batch of the rows that are needed here, increasing"""
    hosts: int
    """processes that share a batch"""
    shards: int
    """parts of a batch that are worked on side by side: hosts, or groups of devices"""
    works = False
    """whether `place` has work to do, which a thread can do ahead of time"""

    def place(self, batch: Any) -> Any:
        """The batch as it is delivered, from its local rows."""
        return batch


class HostPlacement(Placement):
    """Numpy batches of shard *i* of *n*: rows `[i B / n, (i + 1) B / n)` of a global batch."""

    def __init__(self, batch_size: int, shard: tuple[int, int]) -> None:
        number, shards = shard
        if not 0 <= number < shards:
            raise InputError(f"shard=({number}, {shards}): expected (i, n) with 0 <= i < n")
        if batch_size % shards:
            raise InputError(
                f"batch_size={batch_size} cannot be divided among {shards} shards: batch_size is "
                f"that of all shards together; choose a multiple of {shards}"
            )
        self.hosts, self.shards, each = shards, shards, batch_size // shards
        self.rows = np.arange(number * each, (number + 1) * each)


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
    balance: Balance | None = None
    """deals rows, which are in that order, to the parts of a batch"""

    def size(self, span: Span) -> int:
        """Rows of the local batch, padding included."""
        return len(self.offsets[span.size])

    def rows(self, spans: Sequence[Span]) -> list[Ints]:
        """The local rows of batches of one size and section; int64 (rows,).

        Without the padding after the last; -1 is a row of padding between others.
        """
        (_, size, section), wanted = spans[0], self.offsets[spans[0].size]
        if not self.is_sorted(spans[0]):
            ordinals = np.array([[span.first] for span in spans]) + wanted
            rows = self.skips.rows(ordinals) + self.shift
            there = ordinals < self.ends[section]
            return [found[here] for found, here in zip(rows, there, strict=True)]
        whole = [self._sorted(span) for span in spans]
        if self.balance is None:
            return [found[wanted[wanted < len(found)]] + self.shift for found in whole]
        dealt = self.balance.deal(self.keyed[section], whole, size, self.shift)[:, wanted]
        return list(np.where(dealt < 0, -1, dealt + self.shift))

    def is_sorted(self, span: Span) -> bool:
        """Whether the rows of the batch are in another order than theirs."""
        return self.balance is not None or self._has_lanes(span)

    def own_and_moved(self, spans: Sequence[Span]) -> tuple[Ints, Ints]:
        """The local rows of all batches, and apart those of lanes that other processes read."""
        rows = np.concatenate(self.rows(spans))
        rows = rows[rows >= 0]
        if self.balance is None or not self._has_lanes(spans[0]):
            return rows, rows[:0]
        own = np.isin(rows, np.concatenate(replace(self, balance=None).rows(spans)))
        return rows[own], rows[~own]

    def _has_lanes(self, span: Span) -> bool:
        return bool(self.keyed) and self.keyed[span.section].lanes > 1

    def _sorted(self, span: Span) -> Ints:
        """The rows of a whole batch, by lane."""
        stop = min(span.first + span.size, self.ends[span.section])
        return in_batch_order(
            self.keyed[span.section], self.skips.rows(np.arange(span.first, stop))
        )


class BatchMaker(ABC):
    """Makes this process's rows of global batches; pickled for worker processes."""

    layout: Layout
    is_far = False
    """whether rows are read from a bucket, which wants to know beforehand which"""

    def together(self, _span: Span) -> int:
        """The number of batches like this one that are best made in one call."""
        return 1

    def far_ranges(self, _spans: Sequence[Span]) -> Iterator[FarRanges]:
        """What some batches are made of, as far as it lies in buckets."""
        return iter(())

    def make(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Any]:
        """The local rows of some global batches, in order, in memory of `buffers` where it can.

        Rows beyond the last are padding, all zeros: masked, and in no segment.
        """
        made = self.arrays(spans, buffers)
        return made if self.layout is native else map(self.layout, made)

    @abstractmethod
    def arrays(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Batch]:
        """The same in jaxdata's own layout."""


@dataclass(frozen=True)
class TableBatches(BatchMaker):
    """Batches assembled at once from a row table."""

    tables: Sequence[RowTable]
    """the rows of each section"""
    share: Share
    extras: tuple[str, ...] = ()
    on_host: bool = True
    """False for compact batches, which devices expand"""
    layout: Layout = native

    def amended(self, row: int, changes: Amendment, ends: Sequence[int]) -> TableBatches:
        """The same up to `row` of a mixture, with the new `ends` of its sections."""
        mixed = self.tables[0]
        assert isinstance(mixed, Mixture)
        tables = [table for _, table in amended(mixed, row, changes).sections()]
        return replace(self, tables=tables, share=replace(self.share, ends=ends, keyed=tables))

    def together(self, span: Span) -> int:
        """See `BatchMaker`; a call has a cost for each source, however many rows it reads."""
        table = self.tables[0]
        sources = max(len(table.documents), _MIN_SOURCES)
        rows = min(max(_ROWS_PER_SOURCE * sources, _ROWS_PER_LANE * table.lanes), _MAX_ROWS)
        rows = min(rows, _MAX_FAR_ROWS) if self.is_far else rows
        count = rows // max(1, self.share.size(span))
        if self.share.is_sorted(span):
            count = min(count, _MAX_SORTED // span.size)
        return max(1, count)

    @cached_property
    def is_far(self) -> bool:  # type: ignore[override]
        return any(documents.is_far for table in self.tables for documents in table.documents)

    @cached_property
    def _by_pages(self) -> bool:
        """Whether it was chosen what is read by pages."""
        tables = {name: each for table in self.tables for name, each in table.sources.items()}
        size, offsets = next(iter(self.share.offsets.items()))
        sorts = any(each.lanes > 1 for each in self.share.keyed)
        choose_pages(tables, len(offsets) / size if sorts else 1.0, self.extras)
        return True

    def far_ranges(self, spans: Sequence[Span]) -> Iterator[FarRanges]:
        assert self._by_pages
        for table, _, same in self._alike(spans):
            own, moved = self.share.own_and_moved(same)
            yield from far_ranges(table, own, self.extras)
            # Of lanes of other hosts a page would serve a row or two.
            for files, ranges in far_ranges(table, moved, self.extras) if len(moved) else ():
                yield files, ranges._replace(home=np.zeros_like(ranges.home))

    def arrays(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Batch]:
        for table, size, same in self._alike(spans):
            rows = self.share.rows(same)
            if self.on_host:
                yield from assemble(table, rows, size, self.extras, buffers)
            else:
                yield from compact(table, rows, size, self.extras)

    def _alike(self, spans: Sequence[Span]) -> Iterator[tuple[RowTable, int, list[Span]]]:
        """Batches of one section and size: their table, local rows of each, and they."""
        for (section, _), alike in groupby(spans, lambda span: (span.section, span.size)):
            same = list(alike)
            yield self.tables[section], self.share.size(same[0]), same


@dataclass(frozen=True)
class DatasetBatches(BatchMaker):
    """Batches of rows that a `MapDataset` gives one by one, as after `rows.map(f)`."""

    rows: Any
    share: Share
    layout: Layout = native

    def arrays(self, spans: Sequence[Span], _: Any = None) -> Iterator[Batch]:
        for span in spans:
            numbers = self.share.rows([span])[0].tolist()
            found = {number: self._row(number) for number in numbers if number >= 0}
            like = next(iter(found.values()), None) or self._row(0)
            empty = {name: np.zeros_like(value) for name, value in like.items()}
            filled = [found.get(number, empty) for number in numbers]
            filled += [empty] * (self.share.size(span) - len(numbers))
            yield {name: np.stack([row[name] for row in filled]) for name in like}

    def _row(self, row: int) -> Batch:
        found: Batch | None = self.rows[row]
        if found is None:
            raise InputError(
                f"row {row} is None: rows cannot be filtered after packing, because steps have "
                "fixed rows; filter documents before packing, or mask the loss of the row"
            )
        return found
