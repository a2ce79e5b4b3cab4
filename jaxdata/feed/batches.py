"""Batches: where they go, what makes them, the streams of them, and the iterator that reads one.

Of rows in a bucket, pages or exact ranges are read; what that costs is at the end.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from jaxdata.base.errors import InputError, log
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import forget_in_forks
from jaxdata.base.ragged import Ints
from jaxdata.feed.layouts import Layout, native
from jaxdata.feed.schedule import Balance, Skips, Span
from jaxdata.rows.lanes import DEAR, better_packing, downloads, spread_of
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.objectives import ROW, Objective
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.reading import HOST_BUFFERS, BufferPool, FarRanges, assemble, far_ranges, read_for
from jaxdata.rows.table import Batch, KeyedRows, RowTable, in_batch_order
from jaxdata.storage.pages.page_cache import page_cache
from jaxdata.storage.pages.paged_files import PagedFiles

T = TypeVar("T")
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
        rows = self.skips.rows(np.arange(span.first, stop))
        return in_batch_order(self.keyed[span.section], rows)


@dataclass(frozen=True)
class BatchMaker:
    """Makes this process's rows of global batches; pickled for worker processes."""

    rows: Sequence[Any]
    """of each section: a table, which is read at once; or a `MapDataset`, which gives them one by
    one, as after `rows.map(f)`"""
    share: Share
    extras: tuple[str, ...] = ()
    layout: Layout = native
    objective: Objective | None = None

    @property
    def tables(self) -> list[RowTable]:
        """Those of the rows that are tables: all or none."""
        return [rows for rows in self.rows if isinstance(rows, RowTable)]

    def together(self, span: Span) -> int:
        """The number of batches like this one that are best made in one call.

        A call has a cost for each source, however many rows it reads.
        """
        if not self.tables or (self.is_far and pages_are_behind()):
            return 1  # the latter is made of exact ranges, and waited for
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
        """Whether rows are read from a bucket, which wants to know beforehand which."""
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
        """What some batches are made of, as far as it lies in buckets."""
        assert self._by_pages
        for table, _, same in self._alike(spans):
            own, moved = self.share.own_and_moved(same)
            yield from far_ranges(table, own, self.extras)
            # Of lanes of other hosts a page would serve a row or two.
            for files, ranges in far_ranges(table, moved, self.extras) if len(moved) else ():
                yield files, ranges._replace(page=np.full_like(ranges.page, -1))

    def make(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Any]:
        """The local rows of some global batches, in order, in memory of `buffers` where it can.

        Rows beyond the last are padding, all zeros: masked, and in no segment.
        """
        made = self.arrays(spans, buffers)
        if self.objective is not None:
            made = map(self._with_targets, spans, made)
        return made if self.layout is native else map(self.layout, made)

    def _with_targets(self, span: Span, batch: Batch) -> Batch:
        """The inputs and targets of an objective."""
        assert self.objective is not None
        if "inputs" not in batch:
            raise InputError(f"objective {self.objective.name} takes packed rows, and not pairs")
        rows = self.share.rows([span])[0].clip(min=0)
        numbers = np.append(rows, np.zeros(self.share.size(span) - len(rows), np.int64))
        made = self.objective({**batch, ROW: numbers})
        del made[ROW]
        return made

    def arrays(self, spans: Sequence[Span], buffers: BufferPool = HOST_BUFFERS) -> Iterator[Batch]:
        """The same in jaxdata's own layout."""
        for rows, size, same in self._alike(spans):
            numbers = self.share.rows(same)
            if isinstance(rows, RowTable):
                yield from assemble(rows, numbers, size, self.extras, buffers)
            else:
                yield from (_one_by_one(rows, each.tolist(), size) for each in numbers)

    def _alike(self, spans: Sequence[Span]) -> Iterator[tuple[Any, int, list[Span]]]:
        """Batches of one section and size: their rows, local rows of each, and they."""
        for (section, _), alike in groupby(spans, lambda span: (span.section, span.size)):
            same = list(alike)
            yield self.rows[section], self.share.size(same[0]), same


def _one_by_one(rows: Any, numbers: list[int], size: int) -> Batch:
    """A batch of rows that are given one by one; -1 is padding, as is what is missing."""
    found = {number: _row(rows, number) for number in numbers if number >= 0}
    like = next(iter(found.values()), None) or _row(rows, 0)
    empty = {name: np.zeros_like(value) for name, value in like.items()}
    filled = [found.get(number, empty) for number in numbers]
    filled += [empty] * (size - len(numbers))
    return {name: np.stack([row[name] for row in filled]) for name in like}


def _row(rows: Any, row: int) -> Batch:
    found: Batch | None = rows[row]
    if found is None:
        raise InputError(
            f"row {row} is None: rows cannot be filtered after packing, because steps have "
            "fixed rows; filter documents before packing, or mask the loss of the row"
        )
    return found


def make_in_groups(
    maker: BatchMaker, take: Callable[[int], list[Span]], buffers: BufferPool = HOST_BUFFERS
) -> Iterator[tuple[Span, Any]]:
    """Make batches in groups: one at first, since the trainer waits for it, then ever more.

    `take(n)` gives the next spans, at most *n*; none at the end.
    """
    count = 1
    while spans := take(count):
        yield from zip(spans, maker.make(spans, buffers), strict=True)
        count = min(2 * count, maker.together(spans[-1]))


class Stream(Iterator[T]):
    """What another iterator yields, of batches each with what its reader notes of it.

    Args:
        items: the other iterator.
        close: stops whatever makes them; calling it again does nothing.
    """

    def __init__(self, items: Iterator[T], close: Callable[[], None] = lambda: None) -> None:
        self._items, self._close = items, close

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """Stop whatever makes them."""
        self._close()


Batches = Stream[tuple[Any, Any]]
"""a batch and its span, as a rule"""


class StreamReader(ABC):
    """An iterator over a stream, which is opened when it is needed; threads may share it.

    The stream closes with the iterator, at its end, and where an error or Ctrl-C breaks it off. A
    forked copy of the process opens its own: threads and worker processes stay with the original.

    Args:
        on_devices: whether batches are placed on devices of JAX, which a forked copy cannot use.
    """

    _what = "loader"
    _ended = _is_closed = _is_forked = False
    _finalizer: Any = None
    _stream: Any = None
    """ends the stream, if one is open"""

    def __init__(self, on_devices: bool) -> None:
        super().__init__()
        self._on_devices = on_devices
        self.lock = threading.RLock()
        """Held by a thread while it reads or moves; hold it to do several things at once. A
        signal handler may take the state meanwhile."""
        forget_in_forks(self)

    @abstractmethod
    def _open(self) -> Batches:
        """Open a stream from here on; it must not refer to this iterator, with which it closes."""

    @abstractmethod
    def _advance(self, note: Any) -> None:
        """Record that a batch was delivered."""

    def _end(self) -> BaseException:
        """What is raised at the end."""
        return StopIteration()

    def __next__(self) -> Any:
        with self.lock:
            self._check_open()
            try:
                if self._ended:
                    raise StopIteration
                note, batch = next(self._opened())
                self._advance(note)
            except BaseException as error:  # Ctrl-C too, when a batch may be half received
                self._let_go()
                if isinstance(error, Exception):
                    self._check_open()  # another thread closed it meanwhile
                if isinstance(error, StopIteration):
                    end, self._ended = self._end(), True
                    raise end from None
                raise
            return batch

    def start_prefetch(self) -> None:
        """Start to make batches before the first is requested."""
        with self.lock:
            self._check_open()
            self._opened()

    def _opened(self) -> Batches:
        if self._on_devices and self._is_forked:
            raise InputError(
                "JAX cannot be used in a forked process, and this iterator places batches on its "
                "devices: start the process with 'spawn', or use shard=(i, n) for numpy batches"
            )
        if self._finalizer is None:
            self._stream = self._open()
            self._finalizer = weakref.finalize(self, self._stream.close)
        return self._stream  # type: ignore[no-any-return]

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Discard batches made ahead, before the next row changes."""
        with self.lock:
            self._check_open()
            self._let_go()
            self._ended = False
            yield

    def close(self) -> None:
        """Stop threads and worker processes; it cannot be used afterwards."""
        self._is_closed = True
        self._let_go()  # a thread that waits for a batch lets go of the lock
        with self.lock:
            self._let_go()

    def forget(self) -> None:
        """In a forked copy: leave the stream to the original."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self.lock, self._is_forked, self._finalizer = threading.RLock(), True, None

    def _let_go(self) -> None:
        if (finalizer := self._finalizer) is not None:
            finalizer()
            self._finalizer = self._stream = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise InputError(f"this {self._what} is closed: make another")

    def __reduce__(self) -> Any:
        raise InputError(
            f"a {type(self).__name__} is not copied or pickled, as it has threads and a place in a "
            "run: make another one in the same way, and call its set_state(first.get_state())"
        )

    def __del__(self) -> None:  # noqa: B027
        """Do nothing, unlike grain: a stream closes when nothing refers to its iterator."""


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
    needs = [need for name, table in tables.items() for need in _needs(name, table, share, extras)]
    for need, name, pages in sorted(needs, key=lambda each: each[0]):
        if pages.fit(need, room):
            room -= need
        elif cache is not None:
            log.warning(
                "%s: its rows are read from %d MB at a time, of which a cache of %d MB has no room "
                "left: they are fetched by exact ranges, with far more requests. "
                "JAXDATA_CACHE_BYTES sets the size of the cache, and chunks (pack.chunk_bytes) "
                "need little of it",
                *(name, need // 10**6, cache.most // 10**6),
            )


def _needs(
    name: str, table: RowTable, share: float, extras: Sequence[str]
) -> Iterator[tuple[int, str, PagedFiles]]:
    """Bytes that are open at a time, of what is read of a source in a bucket."""
    documents, opened = table.documents[0], table.open_bytes
    for each in read_for(documents, extras):
        if each.is_far:
            most, item = each.pages.size, each.dtype.itemsize / documents.dtype.itemsize
            need = most if opened is None else min(most, int(opened * item * share))
            yield need, name, each.pages


def pages_are_behind() -> bool:
    """Whether pages that are wanted now come too late, as where many lanes begin at once."""
    cache = page_cache()
    return cache is not None and cache.is_behind


def warn_of_downloads(rows: RowTable, hosts: int, batch_size: int) -> None:
    """Say what hosts download, where it is far more than the dataset, and what to change.

    Args:
        rows: of the run. Where single documents are dealt, every host is taken to need every page.
        hosts: that share a batch, each with a cache of its own.
        batch_size: rows of the global batch.
    """
    extra, size, worst = 0.0, 0, (0.0, "", "")
    counts = rows.counts(len(rows)) if isinstance(rows, Mixture) else {}
    spread = spread_of(counts.values(), batch_size)
    for table in rows.sources.values():
        if isinstance(table, PackedRows) and table.settings.shuffle and table.documents[0].is_far:
            stored, lacks, times = table.stored_bytes, "chunk_bytes", float(hosts)
            if table.settings.chunk_bytes:
                lacks, times = "lanes", downloads(hosts, table.lanes, table.blocks or 1, spread)
            more, add = stored * (times - 1), f"{lacks}: {better_packing(hosts)[lacks]}"
            extra, size = extra + more, size + stored
            worst = max(worst, (more, table.documents[0].name, add), key=lambda each: each[0])
    if extra > (DEAR - 1) * size:
        log.warning(
            "%d hosts download %.1f times the bytes of the dataset, through pages of which each "
            "host fetches its own, most of all for %s: add %s to the section pack of the config, "
            "or to the arguments of jaxdata.pack",
            *(hosts, 1 + extra / size, *worst[1:]),
        )
