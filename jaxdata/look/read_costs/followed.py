"""Which rows are traced to the bytes that they are read from: all, or those of some segments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdata.base.ragged import Ints
from jaxdata.look.read_costs.batch_hosts import BatchHosts
from jaxdata.look.read_costs.cluster import Cluster
from jaxdata.look.read_costs.touched import Files, Touched, home_bytes
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.packing.dealing import ChunkOrder
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable

PIECES = 2**21
"""most segments of rows that are traced one by one; a longer run is sampled"""
_KEYS = 2**25  # rows whose place in their batch is found
_ROWS_OF_SEGMENT = 500  # about as many hold a part of it
_LEAST_SEGMENTS, _MOST_SEGMENTS = 16, 256
_NOTHING = Touched(*[np.empty(0, np.int64)] * len(Touched._fields))


class Followed(NamedTuple):
    """The bytes that some rows are read from, and by how much to scale them up."""

    touched: Touched
    scale: dict[int, float]
    """by source; one that is absent is not traced"""
    rows: int
    """rows of the run that the result is about"""
    exact: bool
    """whether every row was traced"""
    says: str
    """which rows were traced, in words"""


def pieces_a_row(table: RowTable) -> float:
    """Segments of an average row, from a few."""
    some = np.unique(np.linspace(0, len(table) - 1, 16).astype(np.int64))
    return len(table.segments(some).row) / max(len(some), 1)


def follow(table: RowTable, files: Files, cluster: Cluster, pieces: int = PIECES) -> Followed:
    """Trace all rows if they have at most `pieces` segments, else those of some segments."""
    rows = len(table)
    if rows * pieces_a_row(table) <= pieces:
        return _first_rows(table, files, cluster, rows, "every row was followed")
    if _tables(table):
        return _Sample(table, files, cluster).followed()
    most = min(max(int(pieces / pieces_a_row(table)), cluster.batch_size), rows)
    says = f"only the first {most:,} of {rows:,} rows were followed, as if the run ended there"
    return _first_rows(table, files, cluster, most, says)


def _first_rows(table: RowTable, files: Files, cluster: Cluster, rows: int, says: str) -> Followed:
    numbers = np.arange(rows)
    step, host = BatchHosts(table, cluster, rows).locate(numbers)
    touched = files.touched(numbers, step, host)
    return Followed(touched, dict.fromkeys(range(len(table.names)), 1.0), rows, True, says)


def _tables(table: RowTable) -> dict[str, PackedRows]:
    """The sources, where they can be sampled: whole, and in a keyed order."""
    tables = table.tables if isinstance(table, Mixture) else {table.names[0]: table}
    whole = {name: each for name, each in tables.items() if isinstance(each, PackedRows)}
    keyed = len(whole) == len(tables) and all(each.settings.shuffle for each in whole.values())
    return whole if keyed and not table.amendments else {}


class _Sample:
    """Segments chosen at random, traced through every row that holds a document of them."""

    def __init__(self, table: RowTable, files: Files, cluster: Cluster) -> None:
        self._table, self._files, self._cluster = table, files, cluster
        self._hosts = BatchHosts(table, cluster, len(table))
        self._chance = np.random.default_rng(0)

    def followed(self) -> Followed:
        """The bytes of the chosen segments, and how many segments each stands for."""
        tables, page = list(_tables(self._table).values()), self._cluster.page_bytes
        used = rows_used(self._table, len(self._table))
        dealt = [k for k, each in enumerate(tables) if home_bytes(each, page) and used[k]]
        touched, scale, total = [_NOTHING], dict[int, float](), 0.0
        size = {k: used[k] / len(tables[k]) * self._files.bytes_of(k) for k in dealt}
        for k in dealt:
            rows, visits = tables[k], tables[k].visits(used[k])
            number = min(self._number(size[k] / sum(size.values())), len(visits))
            chosen = self._chance.choice(visits, number, replace=False)
            touched += [self._segment(k, rows, used[k], *each) for each in chosen.tolist()]
            begun = len(segment_starts(rows)[1:]) * len(visits) / rows.blocks
            scale[k], total = begun / len(chosen), total + begun
        says = (
            f"{len(touched) - 1:,} of {total:,.0f} segments, chosen at random, were followed "
            "through every row that holds a document of them, and figures scaled up"
        )
        return Followed(Touched.join(touched), scale, len(self._table), False, says)

    def _number(self, share: float) -> int:
        """The number of segments to trace of a source that has this share of the bytes."""
        affordable = max(_KEYS // (_ROWS_OF_SEGMENT * self._cluster.batch_size), _LEAST_SEGMENTS)
        return min(max(round(affordable * share), 1), _MOST_SEGMENTS)

    def _segment(self, source: int, rows: PackedRows, used: int, epoch: int, visit: int) -> Touched:
        """The bytes of one segment of a block, and who reads them."""
        starts, mine = segment_starts(rows), rows.block_rows(epoch, visit)
        mine = mine[mine < used]
        found = rows.segments(mine)
        segment = np.searchsorted(starts, found.document, side="right")
        chosen = self._chance.choice(np.unique(segment))
        ranks = mine[np.unique(found.row[segment == chosen])]
        numbers = np.sort(self._rows_of(source, ranks))
        step, host = self._hosts.locate(numbers)
        touched = self._files.touched(numbers, step, host)
        here = np.searchsorted(starts, touched.document, side="right") == chosen
        return touched.take(np.flatnonzero(here & (touched.source == source)))

    def _rows_of(self, source: int, ranks: Ints) -> Ints:
        if not isinstance(self._table, Mixture):
            return ranks
        found = self._table.rows_of(source, ranks)
        return found[found >= 0]


def rows_used(table: RowTable, rows: int) -> list[int]:
    """Rows of each source among the first rows of a run."""
    if isinstance(table, Mixture):
        return list(table.counts(rows).values())
    if len(table.sources) > 1:  # one after the other
        counts = table.token_counts(rows)
        return [counts[name].rows for name in table.names]
    return [rows] * len(table.names)


def segment_starts(rows: PackedRows) -> Ints:
    """The first document of each segment, and the end."""
    order = rows.planner.order
    assert isinstance(order, ChunkOrder)
    return order.starts
