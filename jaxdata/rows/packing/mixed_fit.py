"""Rows that mix sizes, with hardly more padding than best-fit decreasing."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyInts, Ints, consecutive
from jaxdata.rows.packing.pooled_rows import PooledRows, SizeStock


class RandomRows:
    """Rows dealt from streams of items in random order: rows that are open, and new ones.

    Args:
        rows: the rows.
        stream: numbers of the items to deal, block after block.
        counts: (blocks,) how many of them are of each block; 0: it takes no part.
    """

    def __init__(self, rows: PooledRows, stream: Ints, counts: Ints) -> None:
        self._rows, self._stream = rows, stream
        self._bounds = np.append(0, np.cumsum(counts))
        self._ends = np.append(0, np.cumsum(rows.sizes[stream], dtype=np.int64))
        self._choose(counts > 0)
        self._cut()

    def _choose(self, dealt: NDArray[np.bool_]) -> None:
        """The rows to fill: those that are open, and as many new ones as the rest needs."""
        rows = self._rows
        open_rows = rows.open_rows()
        open_rows = open_rows[dealt[rows.block[open_rows]]]
        filled = np.append(0, np.cumsum(rows.room[open_rows], dtype=np.int64))
        edges = np.searchsorted(rows.block[open_rows], np.arange(rows.blocks + 1))
        rest = np.diff(self._ends[self._bounds]) - np.diff(filled[edges])
        of_block = np.diff(edges) + np.maximum(-(-rest // rows.capacity), 0)
        chosen = np.full(int(of_block.sum()), -1)
        chosen[consecutive(np.cumsum(of_block) - of_block, np.diff(edges))] = open_rows
        self._row = chosen[scattered(of_block)]
        self._of_block = of_block

    def _cut(self) -> None:
        """Fill rows up to the end nearest to full, as far as three quarters of the items go."""
        rows, ends = self._rows, self._ends
        room = np.append(rows.room, rows.capacity)[self._row]
        begin, stop = ends[self._bounds[:-1]], ends[self._bounds[1:]]
        full = np.cumsum(room, dtype=np.int64)
        before = np.append(0, full)[np.cumsum(self._of_block) - self._of_block]
        full += np.repeat(begin - before, self._of_block)
        made = full <= np.repeat(begin + 3 * (stop - begin) // 4, self._of_block)
        self._block = np.repeat(np.arange(rows.blocks), self._of_block)[made]
        self._row, full = self._row[made], full[made]
        after = np.searchsorted(ends, full)
        last = after - (full - ends[after - 1] < ends[after] - full)
        counts = rows.per_block(self._block)
        stops = np.cumsum(counts)
        self._number = np.arange(len(full)) - np.repeat(stops - counts, counts)
        self._start = np.where(self._number, np.roll(last, 1), self._bounds[self._block])
        self._count = last - self._start
        self._gap = room[made] - (ends[last] - ends[self._start])
        dealt = np.append(last, 0)[stops - 1]
        self._dealt = np.where(counts, dealt, self._bounds[:-1])

    def close(self, exchanges: int) -> tuple[Ints, Ints]:
        """Keep the rows that come out full.

        Args:
            exchanges: items of a row that are tried.

        Returns:
            All other items, and (blocks,) how many they are.
        """
        items, added = self._exchange(exchanges)
        rows, new = self._rows, self._row < 0
        held = self._count + np.append(rows.held, 0)[self._row]
        held[added] += 1
        full = (self._gap >= 0) & (self._gap <= rows.slack) & (held <= rows.limit)
        self._row[~full] = -1
        begun = full & new
        self._row[begun] = rows.begin(self._block[begun], self._gap[begun], held[begun])
        kept = self._row[full]
        rows.room[kept], rows.held[kept] = self._gap[full], held[full]
        self._place(items, added)
        return self._others()

    def _place(self, items: Ints, added: Ints) -> None:
        """Write down the row of each item; those that were not dealt have none."""
        rest = self._bounds[1:] - self._dealt
        edges = np.searchsorted(self._block, np.arange(self._rows.blocks) + 1)
        counts = np.insert(self._count, edges, rest)
        self._found = np.repeat(np.insert(self._row, edges, -1), counts)
        self._found[items] = self._row[added]
        self._rows.row[self._stream] = self._found

    def _others(self) -> tuple[Ints, Ints]:
        """The items that are in no row; in each block those that were not dealt come first."""
        left = np.flatnonzero(self._found < 0)
        edges = np.searchsorted(left, self._bounds)
        counts = np.diff(edges)
        turned = np.searchsorted(left, self._dealt) - edges[:-1]
        begin = np.stack([edges[:-1] + turned, edges[:-1]], axis=1).ravel()
        sizes = np.stack([counts - turned, turned], axis=1).ravel()
        return self._stream[left[consecutive(begin, sizes)]], counts

    def _exchange(self, exchanges: int) -> tuple[Ints, Ints]:
        """Fill gaps; returns the places of the items that were added, and the dealt rows."""
        rows = self._rows
        reserve = consecutive(self._dealt, self._bounds[1:] - self._dealt)
        keys = rows.keys[self._stream[reserve]]
        stock = SizeStock(keys, reserve, rows.blocks * rows.width)
        gaps = np.flatnonzero((self._gap < 0) | (self._gap > rows.slack))
        short = self._gap[gaps] > 0
        over, gaps = gaps[~short], gaps[short]
        added, places, gaps = self._take(stock, gaps, None)
        gaps = np.sort(np.concatenate([over, gaps]))
        for attempt in range(exchanges):
            gaps = gaps[self._count[gaps] > attempt]
            turn = (self._number[gaps] + attempt) % self._count[gaps]
            _, _, gaps = self._take(stock, gaps, self._start[gaps] + turn)
        return places, added

    def _take(self, stock: SizeStock, gaps: Ints, place: Ints | None) -> tuple[Ints, Ints, Ints]:
        """Take items for some rows, in exchange for those at some places.

        Returns:
            The rows that got one, the places where it was, and the other rows.
        """
        rows, stream = self._rows, self._stream
        given = 0 if place is None else rows.sizes[stream[place]]
        wanted = given + self._gap[gaps]
        wanted[(wanted < 0) | (wanted > rows.capacity)] = 0
        keys = self._block[gaps] * rows.width + wanted
        _, met, found = stock.take(keys.astype(rows.keys.dtype), rows.slack)
        self._gap[gaps[met]] = wanted[met] - rows.sizes[stream[found]]
        if place is not None:
            stream[place[met]], stream[found] = stream[found], stream[place[met]]
        others = np.ones(len(gaps), bool)
        others[met] = False
        return gaps[met], found, gaps[others]


def scattered(counts: AnyInts) -> Ints:
    """A fixed order of the things of each group in which neighbours lie far apart.

    >>> scattered(np.array([5, 2])).tolist()
    [0, 3, 1, 4, 2, 5, 6]
    """
    first = np.cumsum(counts) - counts
    step = np.array([_step(count) for count in counts.tolist()], np.int64)
    start, count = np.repeat(first, counts), np.repeat(counts, counts)
    place = np.arange(len(start)) - start
    found: Ints = start + place * np.repeat(step, counts) % count
    return found


@lru_cache(2**12)
def _step(count: int) -> int:
    """About the golden section of `count`, without a common factor."""
    step = max(count * 618 // 1000, 1)
    while gcd(step, count) > 1:
        step += 1
    return step


class Effort(NamedTuple):
    """How long items are dealt to rows."""

    deals: int
    """at most"""
    worthwhile: int
    """a deal must have placed one item in so many for another one"""
    few: int
    """so few items are not worth a deal; nor is one in a hundred"""
    exchanges: int
    """items of a row that are tried in exchange for one that fills its gap"""


_NEARLY, _FULL = Effort(4, 2, 192, 3), Effort(8, 8, 64, 6)
_SLACK = 512
"""a row may lack one slot in so many, where it need not be full"""
_RARE = 200
"""rows begun by large items are dealt like others where other items are so many times as many"""
_FITS = 4
"""items that a row takes at most because they fill half of what is left"""


def mixed_rows(
    sizes: AnyInts, bounds: AnyInts, capacity: int, limit: int, *, full: bool = False
) -> PooledRows:
    """Assign most items of some blocks to rows that mix sizes.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`; in random order, block after block.
        bounds: (blocks + 1,) where the items of each block begin.
        capacity: slots of a row.
        limit: most items of a row.
        full: whether rows that lack a slot are still open.
    """
    rows = PooledRows(sizes, bounds, capacity, limit, 0 if full else capacity // _SLACK)
    small = 2 * sizes <= capacity
    rows.begin_with(np.flatnonzero(~small & (sizes < capacity)))
    left = np.flatnonzero(small)
    begun, others = rows.per_block(rows.block), np.diff(np.searchsorted(left, bounds))
    open_rows = rows.open_rows()
    open_rows = open_rows[(begun * _RARE >= others)[rows.block[open_rows]]]
    left = rows.fill(open_rows, left, _FITS, closely=True)
    _deal(rows, left, _FULL if full else _NEARLY)
    return rows


def _deal(rows: PooledRows, left: Ints, effort: Effort) -> None:
    """Deal items that are in no row, in each block as long as it is worthwhile."""
    counts = np.diff(np.searchsorted(left, rows.bounds))
    few = np.maximum(effort.few, counts // 100)
    going = counts > few
    for _ in range(effort.deals):
        if not going.all():
            left = left[going[rows.block_of[left]]]
        if not len(left):
            break
        before = np.where(going, counts, 0)
        left, counts = RandomRows(rows, left, before).close(effort.exchanges)
        going &= (counts > few) & ((before - counts) * effort.worthwhile >= before)
