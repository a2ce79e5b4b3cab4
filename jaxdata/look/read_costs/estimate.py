"""The read costs of a run, from its plan alone: no token is read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.look.read_costs.batch_hosts import BatchHosts
from jaxdata.look.read_costs.cluster import Cluster
from jaxdata.look.read_costs.costs import Costs, ReadCosts, SourceCosts, Way
from jaxdata.look.read_costs.fetches import Fetches, most_held, page_fetches, range_fetches, spilled
from jaxdata.look.read_costs.followed import PIECES, Followed, follow, pieces_a_row, rows_used
from jaxdata.look.read_costs.scattered import scattered_pages
from jaxdata.look.read_costs.touched import Files, Touched, home_bytes
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable

_MOST_TO_MEAN = 1.25  # at most 1.2 where both are known
_FIRST_ROWS = 512  # of the first batch, that are looked up


class _Requests(NamedTuple):
    """All requests for the bytes that rows are read from."""

    pages: Fetches
    spilled: Fetches
    ranges: Fetches

    @classmethod
    def of(cls, touched: Touched, files: Files, cluster: Cluster) -> _Requests:
        gap = cluster.gap_bytes
        pages = page_fetches(touched, files.sizes, cluster.page_bytes)
        return cls(pages, range_fetches(spilled(touched), gap), range_fetches(touched, gap))

    def take(self, source: int) -> _Requests:
        return _Requests(*(each.take(np.flatnonzero(each.source == source)) for each in self))

    def largest(self) -> tuple[int, int]:
        """Bytes of the host that fetches most, by pages and by ranges."""
        by_pages = [(each.host, each.size) for each in (self.pages, self.spilled)]
        host, size = (np.concatenate(column) for column in zip(*by_pages, strict=True))
        return _largest(host, size), _largest(self.ranges.host, self.ranges.size)


def _largest(host: Ints, size: Ints) -> int:
    return int(np.bincount(host, size, 1).max())


def read_costs(table: RowTable, cluster: Cluster, pieces: int = PIECES) -> ReadCosts:
    """What a run costs to read for some hosts, by pages that are cached and by exact ranges.

    Args:
        table: the rows of the run, as `rows.table` of `jaxdata.pack` and `mix`.
        cluster: hosts, batch size, and how they fetch.
        pieces: a run of more segments of rows than that is sampled.
    """
    if not len(table):
        raise InputError("the run has no rows: there is nothing to read")
    return _Estimate(table, cluster, pieces).costs()


class _Estimate:
    """The figures of one run."""

    def __init__(self, table: RowTable, cluster: Cluster, pieces: int) -> None:
        self._table, self._cluster = table, cluster
        self._files = Files(table, cluster.page_bytes)
        self._followed: Followed = follow(table, self._files, cluster, pieces)
        self._hosts = BatchHosts(table, cluster, self._followed.rows)
        self._requests = _Requests.of(self._followed.touched, self._files, cluster)
        self._first = self._first_batch()
        self._used = rows_used(table, self._followed.rows)
        self._exact = self._followed.exact

    def costs(self) -> ReadCosts:
        """Of each source, and in total."""
        sources = {name: self._source(k) for k, name in enumerate(self._table.names)}
        return ReadCosts(
            cluster=self._cluster,
            steps=self._hosts.steps,
            sources=sources,
            total=self._total(list(sources.values())),
            exact=self._exact,
            says=self._followed.says,
        )

    def _first_batch(self) -> _Requests:
        """The requests of some hosts for the first batch."""
        rows = np.arange(min(self._cluster.batch_size, self._followed.rows))
        step, host = self._hosts.locate(rows)
        count = max(_FIRST_ROWS * self._cluster.hosts // self._cluster.batch_size, 1)
        some = np.unique(np.linspace(0, self._cluster.hosts - 1, count).astype(int))
        mine = np.flatnonzero(np.isin(host, some))
        touched = self._files.touched(rows[mine], step[mine], host[mine])
        return _Requests.of(touched, self._files, self._cluster)

    def _source(self, number: int) -> SourceCosts:
        sources = list(self._table.sources.values())
        table = sources[number] if sources else self._table
        packed = table if isinstance(table, PackedRows) else None
        rows, epochs = self._used[number], self._used[number] / max(len(table), 1)
        pages, ranges, held = self._ways(number, table, epochs)
        page_bytes = self._cluster.page_bytes
        return SourceCosts(
            rows=rows,
            epochs=epochs,
            file_bytes=self._files.bytes_of(number),
            pages=pages,
            ranges=ranges,
            held_pages=held,
            held_bytes=min(held * page_bytes, self._files.bytes_of(number)),
            lanes=table.lanes,
            chunk_bytes=(packed and packed.settings.chunk_bytes) or 0,
            shares_pages=not home_bytes(table, page_bytes),
        )

    def _ways(self, number: int, table: RowTable, epochs: float) -> tuple[Way, Way, float]:
        """Both ways of fetching a source, and the pages of it that a host holds."""
        first = self._first.take(number).largest()
        if number not in self._followed.scale:
            return self._scattered(number, table, epochs, first)
        scale, mine = self._followed.scale[number], self._requests.take(number)
        gets = len(mine.pages.size) + len(mine.spilled.size)
        size = int(mine.pages.size.sum() + mine.spilled.size.sum())
        exact = Way(scale * len(mine.ranges.size), scale * int(mine.ranges.size.sum()), first[1])
        return Way(scale * gets, scale * size, first[0]), exact, self._held(mine.pages, scale)

    def _held(self, pages: Fetches, scale: float) -> float:
        if self._exact:
            return most_held(pages, np.ones_like(pages.size))
        steps = int((pages.last - pages.first + 1).sum())
        mean = scale * steps / self._hosts.steps / self._cluster.hosts
        return _MOST_TO_MEAN * mean

    def _scattered(
        self, number: int, table: RowTable, epochs: float, first: tuple[int, int]
    ) -> tuple[Way, Way, float]:
        size, page = self._files.bytes_of(number), self._cluster.page_bytes
        count = -(-size // page)
        pieces = pieces_a_row(table) * len(table)
        found = scattered_pages(count, pieces / count, self._cluster.hosts, epochs)
        pages = Way(found.fetched, found.fetched * size / count, first[0])
        return pages, Way(pieces * epochs, size * epochs, first[1]), found.held

    def _total(self, sources: list[SourceCosts]) -> Costs:
        first = self._first.largest()
        size = float(sum(each.file_bytes for each in sources))
        read = sum(each.file_bytes * each.epochs for each in sources)
        held = float(sum(each.held_pages for each in sources))
        held_bytes = float(sum(each.held_bytes for each in sources))
        if self._exact:
            pages = self._requests.pages
            held = most_held(pages, np.ones_like(pages.size))
            held_bytes = most_held(pages, pages.size)
        return Costs(
            rows=self._followed.rows,
            epochs=read / max(size, 1),
            file_bytes=size,
            pages=_sum([each.pages for each in sources], first[0]),
            ranges=_sum([each.ranges for each in sources], first[1]),
            held_pages=held,
            held_bytes=held_bytes,
        )


def _sum(ways: list[Way], first_batch_bytes: int) -> Way:
    """Requests and bytes of all sources; their first batches are of different hosts."""
    gets, size = sum(each.gets for each in ways), sum(each.bytes for each in ways)
    return Way(gets, size, first_batch_bytes)
