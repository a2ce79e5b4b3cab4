"""Batches made here and now, where they go, and the stream of them that a loader reads."""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import dropwhile, groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.processes import forget_in_forks
from jaxdata.base.ragged import Ints
from jaxdata.feed.layouts import Layout, native
from jaxdata.feed.schedule import Share, Span
from jaxdata.rows.arrays import HOST_BUFFERS, BufferPool, assemble, compact
from jaxdata.rows.lanes import DEAR, downloads
from jaxdata.rows.mixing.amended_rows import amended
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.mixing.phases import Amendment
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.reading import FarRanges, far_ranges, read_for
from jaxdata.rows.table import Batch, RowTable
from jaxdata.storage import PagedFiles, page_cache

_log = logging.getLogger("jaxdata")
MOST_OPEN = 7 / 8
"""of the cache: the rest is for pages fetched ahead"""


def choose_pages(tables: Mapping[str, RowTable], share: float, extras: Sequence[str] = ()) -> None:
    """Have sources read by pages as far as the cache holds what is open; the others by ranges.

    Args:
        tables: one epoch of each source, by name.
        share: of the open lanes that this host meets.
        extras: arrays that are read with the tokens.
    """
    cache = page_cache()
    room = 0 if cache is None else int(cache.most * MOST_OPEN)
    wanted = [
        (*need, name) for name, table in tables.items() for need in _needs(table, share, extras)
    ]
    for need, pages, name in sorted(wanted, key=lambda each: each[0]):
        if pages.fit(need, room):
            room -= need
        elif cache is not None:
            _log.warning(
                "%s: its rows are read from %d MB at a time, of which a cache of %d MB has no room "
                "left: they are fetched by exact ranges, with far more requests. "
                "JAXDATA_CACHE_BYTES sets the size of the cache, and chunks (pack.chunk_bytes) "
                "need little of it",
                name,
                need // 10**6,
                cache.most // 10**6,
            )


def _needs(
    table: RowTable, share: float, extras: Sequence[str]
) -> Iterator[tuple[int, PagedFiles]]:
    """Bytes that are open at a time, of what is read of a source in a bucket."""
    documents, opened = table.documents[0], table.open_bytes
    for each in read_for(documents, extras):
        if each.is_far:
            most, item = each.pages.size, each.dtype.itemsize / documents.dtype.itemsize
            yield (most if opened is None else min(most, int(opened * item * share))), each.pages


def warn_of_downloads(tables: Iterable[RowTable], hosts: int) -> None:
    """Say what hosts download, where it is far more than the dataset, and what to change.

    Args:
        tables: one epoch of each source.
        hosts: that share a batch, each with a cache of its own.
    """
    found = []
    for table in tables:
        if isinstance(table, PackedRows) and table.settings.shuffle and table.documents[0].is_far:
            times = downloads(hosts, table.lanes, table.settings.chunk_bytes or 0)
            found.append((table.stored_bytes * (times - 1), table))
    more, size = sum(extra for extra, _ in found), sum(each.stored_bytes for _, each in found)
    if not more > (DEAR - 1) * size:
        return
    _, worst = max(found, key=lambda each: each[0])
    lanes = 2 ** (hosts - 1).bit_length()
    add = f"lanes: {lanes}" if worst.settings.chunk_bytes else f"chunk_bytes: {2**20}"
    _log.warning(
        "%d hosts download %.1f times the bytes of the dataset, through pages of which each host "
        "fetches its own, most of all for %s: add %s to the section pack of the config, or to the "
        "arguments of jaxdata.pack",
        hosts,
        1 + more / size,
        worst.documents[0].name,
        add,
    )


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


class Placement(Protocol):
    """Where the batches of one size go: to this host, or to devices."""

    @property
    def rows(self) -> Ints:
        """Offsets in the global batch of the rows that are needed here, increasing."""
        ...

    @property
    def hosts(self) -> int:
        """Processes that share a batch."""
        ...

    @property
    def shards(self) -> int:
        """Parts of a batch that are worked on side by side: hosts, or groups of devices."""
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
        self.hosts, self.shards, each = shards, shards, batch_size // shards
        self.rows = np.arange(number * each, (number + 1) * each)

    def place(self, batch: Batch) -> Batch:
        return batch


class BatchMaker(ABC):
    """Makes this process's rows of global batches; pickled for worker processes."""

    layout: Layout

    @property
    def is_far(self) -> bool:
        """Whether rows are read from a bucket, which wants to know beforehand which."""
        return False

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
        balance = self.share.balance and self.share.balance.of(tables)
        share = replace(self.share, ends=ends, keyed=tables, balance=balance)
        return replace(self, tables=tables, share=share)

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
    def is_far(self) -> bool:
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
        for (section, _), alike in groupby(spans, lambda span: (span.section, span.size)):
            same, table = list(alike), self.tables[section]
            own, moved = self.share.own_and_moved(same)
            yield from far_ranges(table, own, self.extras)
            # Of lanes of other hosts a page would serve a row or two.
            for files, ranges in far_ranges(table, moved, self.extras) if len(moved) else ():
                yield files, ranges._replace(home=np.zeros_like(ranges.home))

    def arrays(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Batch]:
        for (section, _), alike in groupby(spans, lambda span: (span.section, span.size)):
            same = list(alike)
            table, size = self.tables[section], self.share.size(same[0])
            rows = self.share.rows(same)
            if self.on_host:
                yield from assemble(table, rows, size, self.extras, buffers)
            else:
                yield from compact(table, rows, size, self.extras)


def note_moved_rows(maker: TableBatches, spans: Sequence[Span]) -> None:
    """Say what rows cost that balance moves to this host from lanes that other hosts read."""
    rows = ranges = 0
    for span in spans:
        _, moved = maker.share.own_and_moved([span])
        found = far_ranges(maker.tables[span.section], moved, maker.extras) if len(moved) else ()
        rows, ranges = rows + len(moved), ranges + sum(len(each.start) for _, each in found)
    if rows:
        _log.info(
            "balance moves %.1f of this host's %d rows of a batch here from lanes that other hosts "
            "read: they are fetched by exact ranges, %.1f a batch",
            rows / len(spans),
            maker.share.size(spans[0]),
            ranges / len(spans),
        )


@dataclass(frozen=True)
class DatasetBatches(BatchMaker):
    """Batches of rows that a `MapDataset` gives one by one, as after `rows.map(f)`."""

    rows: Any
    share: Share
    layout: Layout = native

    def arrays(self, spans: Sequence[Span], _: Any = None) -> Iterator[Batch]:
        for span in spans:
            numbers = self.share.rows([span])[0].tolist()
            rows = [self._row(number) if number >= 0 else None for number in numbers]
            like = next((row for row in rows if row is not None), None) or self._row(0)
            yield _stack(rows, like, self.share.size(span))

    def _row(self, row: int) -> Batch:
        found: Batch | None = self.rows[row]
        if found is None:
            raise InputError(
                f"row {row} is None: rows cannot be filtered after packing, because steps have "
                "fixed rows; filter documents before packing, or mask the loss of the row"
            )
        return found


def _stack(rows: list[Batch | None], like: Batch, size: int) -> Batch:
    empty = {name: np.zeros_like(value) for name, value in like.items()}
    complete = [empty if row is None else row for row in rows] + [empty] * (size - len(rows))
    return {name: np.stack([row[name] for row in complete]) for name in like}


def prefetch(maker: BatchMaker, spans: Sequence[Span]) -> int:
    """Begin to fetch what some batches are made of; returns its bytes."""
    size = 0
    for files, ranges in maker.far_ranges(spans):
        files.prefetch(ranges)
        size += ranges.nbytes
    return size


def make_in_groups(
    maker: BatchMaker,
    take: Callable[[int], list[Span]],
    buffers: BufferPool = HOST_BUFFERS,
) -> Iterator[tuple[Span, Batch]]:
    """Make batches in groups: one at first, since the trainer waits for it, then ever more.

    `take(n)` gives the next spans, at most *n*; none at the end.
    """
    count = 1
    while spans := take(count):
        yield from zip(spans, maker.make(spans, buffers), strict=True)
        count = min(2 * count, maker.together(spans[-1]))


class Stream(Protocol):
    """An iterator of batches, each with its span, that can be closed."""

    def __next__(self) -> tuple[Span, Any]: ...

    def close(self) -> None:
        """Stop, and end every thread and process; calling it again does nothing."""
        ...


class OpenStream:
    """The stream that an iterator reads: opened when it is needed, read by a thread at a time.

    It closes with the iterator. A forked copy of the process has none, and opens its own: threads
    and worker processes stay with the original.

    Args:
        on_devices: whether batches are placed on devices of JAX, which a forked copy cannot use.
    """

    def __init__(self, on_devices: bool = False) -> None:
        self._on_devices, self._forked = on_devices, False
        self.lock = threading.RLock()
        """held to read or move; again by a signal handler, which may take the state meanwhile"""
        self._stream: Stream | None = None
        self._finalizer: Any = None
        forget_in_forks(self)

    def get(self, open_stream: Callable[[], Stream]) -> Stream:
        """The stream, opened if there is none."""
        if self._on_devices and self._forked:
            raise InputError(
                "JAX cannot be used in a forked process, and this iterator places batches on its "
                "devices: start the process with 'spawn', or use shard=(i, n) for numpy batches"
            )
        if self._stream is None:
            self._stream = open_stream()
            # The stream does not refer to this object, so it closes when the iterator is gone.
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream

    def next(self, open_stream: Callable[[], Stream], advance: Callable[[Any], None]) -> Any:
        """The next batch, after `advance(span)`; the end, or an interruption, closes the stream."""
        try:
            span, batch = next(self.get(open_stream))
            advance(span)
        except BaseException:  # Ctrl-C too, which may come while a batch is half received
            self.close()
            raise
        return batch

    def close(self) -> None:
        """Close the stream, whoever has the lock: a thread that waits for a batch gets none."""
        if (finalizer := self._finalizer) is not None:
            finalizer()
            self._stream = self._finalizer = None

    def forget(self) -> None:
        """In a forked copy: leave the stream to the original."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self.lock, self._forked = threading.RLock(), True
        self._stream = self._finalizer = None


class Change(NamedTuple):
    """Other rows from one on that no stream has begun: what was begun is the same."""

    amend: Callable[[BatchMaker], BatchMaker]
    """picklable"""
    spans: Iterator[Span]
    """the batches after those delivered"""


class DirectStream:
    """Batches made when they are requested; another thread may change those not yet begun."""

    def __init__(self, maker: BatchMaker, spans: Iterator[Span]) -> None:
        self._maker, self._last = maker, -1
        self._changes: deque[Change] = deque()
        self._batches = self._begin(spans)

    def _begin(self, spans: Iterator[Span]) -> Iterator[tuple[Span, Batch]]:
        return make_in_groups(self._maker, lambda count: list(islice(spans, count)))

    def change(self, change: Change) -> None:
        """Make the next batch, and all that follow, by another recipe."""
        self._changes.append(change)

    def __next__(self) -> tuple[Span, Batch]:
        while self._changes:
            amend, spans = self._changes.popleft()
            self._maker = amend(self._maker)
            self._batches = self._begin(dropwhile(lambda span: span.first <= self._last, spans))
        span, batch = next(self._batches)
        self._last = span.first
        return span, batch

    def close(self) -> None:
        """Do nothing: nothing is open."""


class PlacedStream:
    """Another stream, each batch passed through `place`, with nothing made ahead."""

    def __init__(self, stream: Stream, place: Callable[[Span, Any], Any]) -> None:
        self._stream, self._place = stream, place
        self.close = stream.close

    def __next__(self) -> tuple[Span, Any]:
        span, batch = next(self._stream)
        return span, self._place(span, batch)
