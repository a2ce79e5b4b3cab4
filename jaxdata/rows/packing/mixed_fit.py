"""Rows that mix sizes, with hardly more padding than best-fit decreasing.

The items of several blocks are placed side by side, since numpy's calls cost as much for one: those
larger than half a row begin rows, which take the largest that fits; the others are dealt to rows in
random order, rows that come out full are kept, and what is left is placed one by one. The blocks
share arrays; the keys of items and the counts of rows keep them apart.
"""

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.ragged import AnyInts, Bools, Ints, consecutive, stable_order
from jaxdata.rows.packing.bins import OpenRow, assign_best_fit, best_fit

_NONE, _ALONE = -1, -2
"""the row of an item that is in none, and of one that fills a row, which has no number yet"""


class PooledRows:
    """Items of several blocks, the rows that they are in, and what room is left there.

    Args:
        sizes: (items,) slots of each item, 1 to `capacity`, block after block.
        bounds: (blocks + 1,) where the items of each block begin.
        capacity: slots of a row.
        limit: most items of a row.
        slack: slots that a row may lack and still be full.
    """

    def __init__(
        self, sizes: AnyInts, bounds: AnyInts, capacity: int, limit: int, slack: int
    ) -> None:
        self.sizes, self.capacity, self.limit, self.slack = sizes, capacity, limit, slack
        self.bounds, self.blocks = bounds, len(bounds) - 1
        # A key is a size in a block; less `slack`, it is still no key of the block before.
        self.width = capacity + slack + 1
        kind = np.int32 if self.blocks * self.width < 2**31 else np.int64
        self.block_of: AnyInts = np.repeat(np.arange(self.blocks, dtype=kind), np.diff(bounds))
        self.keys: AnyInts = self.block_of * kind(self.width) + sizes.astype(kind, copy=False)
        self._alone = np.flatnonzero(sizes == capacity)
        self.row: Ints = np.full(len(sizes), _NONE)
        """(items,) the row of each; -1: none"""
        self.row[self._alone] = _ALONE
        self.block: AnyInts = np.zeros(0, kind)
        """(rows,) the block of each"""
        self.room: AnyInts = np.zeros(0, kind)
        """(rows,) slots that are left"""
        self.held: AnyInts = np.zeros(0, kind)
        """(rows,) items in each; 0: the row is no more"""

    def begin(self, block: AnyInts, room: AnyInts, held: AnyInts) -> Ints:
        """New rows; returns their numbers."""
        rows: Ints = np.arange(len(self.block), len(self.block) + len(block))
        kind = self.block.dtype
        self.block = np.concatenate([self.block, block.astype(kind, copy=False)])
        self.room = np.concatenate([self.room, room.astype(kind, copy=False)])
        self.held = np.concatenate([self.held, held.astype(kind, copy=False)])
        return rows

    def begin_with(self, items: Ints) -> None:
        """Each of some items begins a row."""
        room = self.capacity - self.sizes[items]
        self.row[items] = self.begin(self.block_of[items], room, np.ones_like(room))

    def add(self, blocks: AnyInts, items: Ints, row: Ints) -> None:
        """Put items in new rows, numbered from 0, of some blocks."""
        held = np.bincount(row, minlength=len(blocks))
        filled = np.bincount(row, self.sizes[items], len(blocks))
        room = self.capacity - filled.astype(np.int64)
        self.row[items] = self.begin(blocks, room, held)[row]

    def unplaced(self) -> Ints:
        """The items that are in no row."""
        return np.flatnonzero(self.row == _NONE)

    def open_rows(self, room: int | None = None) -> Ints:
        """Rows that can take more: that have `room` and more; None: that are not full."""
        least = self.slack + 1 if room is None else room
        return np.flatnonzero((self.room >= least) & (self.held < self.limit) & (self.held > 0))

    def dissolve(self, rows: AnyInts) -> None:
        """Take the items of some rows out again."""
        gone = np.zeros(len(self.block) + 2, bool)  # the last two: `_ALONE` and `_NONE`
        gone[rows] = True
        self.row[gone[self.row]] = _NONE
        self.room[rows], self.held[rows] = self.capacity, 0

    def per_block(self, block: AnyInts) -> Ints:
        """(blocks,) how often each block occurs."""
        return np.bincount(block, minlength=self.blocks)

    def fill(self, rows: AnyInts, items: Ints, rounds: int, *, closely: bool) -> Ints:
        """Some rows take the largest item that fits, again and again.

        Args:
            rows: their numbers; open rows.
            items: that are in no row.
            rounds: items that a row takes at most.
            closely: only items that fill more than half of what is left of a row.

        Returns:
            The items that are left.
        """
        stock = SizeStock(self.keys[items], items, self.blocks * self.width)
        for _ in range(rounds):
            if not len(rows):
                break
            room = self.room[rows]
            wanted = self.block[rows] * self.keys.dtype.type(self.width) + room
            able, met, taken = stock.take(wanted, (room - 1) // (2 if closely else 1))
            row = rows[met]
            self.row[taken] = row
            self.room[row] -= self.sizes[taken]
            self.held[row] += 1
            rows = rows[able]
            rows = rows[(self.room[rows] > self.slack) & (self.held[rows] < self.limit)]
        left: Ints = items[self.row[items] == _NONE]
        return left

    def close(self) -> tuple[Ints, Ints]:
        """(items,) the row of each item, and (blocks,) how many rows each block has."""
        self.row[self._alone] = len(self.block) + np.arange(len(self._alone))
        return self.row, self.row_counts()

    def row_counts(self) -> Ints:
        """(blocks,) rows of each block."""
        begun = self.per_block(self.block[self.held > 0])
        return begun + self.per_block(self.block_of[self._alone])

    def items_of(self, block: int, *, placed: bool) -> Ints:
        """The items of a block that are not as large as a row: all, or those in no row."""
        first, stop = self.bounds[block : block + 2].tolist()
        row = self.row[first:stop]
        found: Ints = first + np.flatnonzero((row != _ALONE) if placed else (row == _NONE))
        return found


class SizeStock:
    """Items, sorted by key: the size of an item in a block (`PooledRows.keys`).

    Args:
        keys: (items,) the key of each.
        items: (items,) their numbers.
        largest: no key, and no wish, is larger.
    """

    def __init__(self, keys: AnyInts, items: Ints, largest: int) -> None:
        order = stable_order(keys, largest)
        self._largest = largest
        # The first is no item, and below all others.
        lowest = np.full(1, np.iinfo(keys.dtype).min, keys.dtype)
        self._keys: AnyInts = np.concatenate([lowest, keys[order]])
        self._items: Ints = np.append(-1, items[order])

    def take(self, wanted: AnyInts, slack: AnyInts | int) -> tuple[Ints, Ints, Ints]:
        """Take for each wish the item of the wanted key, or the nearest one below.

        Of wishes whose nearest item is the same, the first takes it, the next the one below, as far
        as that is not the nearest of another wish; all others may ask again.

        Args:
            wanted: (wishes,) keys.
            slack: the key may be so much lower; a number, or one for each wish.

        Returns:
            The wishes that can be met at all; those that are met; and the items that they get.
        """
        order: Ints = stable_order(wanted, self._largest).astype(np.int64, copy=False)
        most = wanted[order]
        least = most - (slack if isinstance(slack, int) else slack[order])
        below = np.searchsorted(self._keys, most, side="right") - 1  # 0: there is none
        able = self._keys[below] >= least
        order, below, least = order[able], below[able], least[able]
        if not len(order):
            return order, order, order
        first = np.flatnonzero(np.append(True, below[1:] != below[:-1]))
        wishes = np.diff(first, append=len(below))
        turn = np.arange(len(below)) - np.repeat(first, wishes)
        at = np.maximum(below - turn, 0)
        met = at > np.repeat(np.append(0, below[first[1:] - 1]), wishes)  # the nearest of others
        met &= self._keys[at] >= least
        taken: Ints = self._items[at[met]]
        self._keys = np.delete(self._keys, at[met])
        self._items = np.delete(self._items, at[met])
        return order, order[met], taken


_SLACK = 512
"""a row may lack one slot in so many, where it need not be full"""
_RARE = 200
"""rows begun by large items are dealt like others where other items are so many times as many"""
_FITS, _FITS_LAST = 4, 12
"""items that a row takes at most because they fill half of what is left; because they fit"""
_ONLINE = 24
"""items that are placed one by one at once"""
_LOOPED = 2048
"""items of a block that a Python loop may place"""
_TOLERATED = 32
"""rows of a block may be one in so many more than are needed"""


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


def assign_mixed(sizes: AnyInts, bounds: AnyInts, capacity: int, limit: int) -> PooledRows:
    """Place the items of some blocks, in random order, so that rows mix sizes."""
    rows = mixed_rows(sizes, bounds, capacity, limit)
    _place_rest(rows)
    _pack_anew(rows)
    return rows


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
        left = left[going[rows.block_of[left]]]
        if not len(left):
            break
        before = np.where(going, counts, 0)
        left, counts = RandomRows(rows, left, before).close(effort.exchanges)
        going &= (counts > few) & ((before - counts) * effort.worthwhile >= before)


def _place_rest(rows: PooledRows) -> None:
    """Place all items that are in no row; where they are many, by best-fit decreasing."""
    left = rows.unplaced()
    counts = rows.per_block(rows.block_of[left])
    open_rows = rows.open_rows()
    for block in np.flatnonzero(counts > _LOOPED).tolist():
        rows.dissolve(open_rows[rows.block[open_rows] == block])
        items = rows.items_of(block, placed=False)
        _add_best_fit(rows, block, items)
    filled = (counts > _ONLINE) & (counts <= _LOOPED)
    left = left[filled[rows.block_of[left]]]
    for begins in (False, True):
        if begins:
            left = _begin_rows(rows, left)
        open_rows = rows.open_rows()
        left = rows.fill(open_rows[filled[rows.block[open_rows]]], left, _FITS_LAST, closely=False)
    _place_online(rows)


def _begin_rows(rows: PooledRows, left: Ints) -> Ints:
    """The largest items begin rows: as many as all are sure to fill; returns the others."""
    left = left[stable_order(rows.keys[left], rows.blocks * rows.width)]
    edges = np.searchsorted(rows.block_of[left], np.arange(rows.blocks + 1))
    slots = np.append(0, np.cumsum(rows.sizes[left], dtype=np.int64))[edges]
    begun = np.diff(slots) // rows.capacity
    largest = consecutive(edges[1:] - begun, begun)
    rows.begin_with(left[largest])
    return np.delete(left, largest)


def _too_many(rows: Any, needed: Any) -> Any:
    """Whether rows, of a block or of each, are more than are needed, by some per cent."""
    return (rows - needed - 1) * _TOLERATED > needed


def _pack_anew(rows: PooledRows) -> None:
    """Pack by best-fit decreasing what has many rows more than it needs, if that makes fewer.

    That happens where items have few sizes, such as 26 and 49 in rows of 100.
    """
    counts = rows.row_counts()
    slots = np.append(0, np.cumsum(rows.sizes, dtype=np.int64))[rows.bounds]
    fewest = -(-np.diff(slots) // rows.capacity)
    for block in np.flatnonzero(_too_many(counts, fewest)).tolist():
        items, of_all = rows.items_of(block, placed=True), int(np.diff(rows.bounds)[block])
        mine = int(counts[block]) - (of_all - len(items))
        sizes = rows.sizes[items]
        large = int(np.count_nonzero(2 * sizes > rows.capacity))
        if not _too_many(mine, max(large, -(-len(items) // rows.limit))):
            continue
        if assign_best_fit(sizes, rows.capacity, rows.limit).rows < mine:
            rows.dissolve(np.flatnonzero((rows.block == block) & (rows.held > 0)))
            _add_best_fit(rows, block, items)


def _add_best_fit(rows: PooledRows, block: int, items: Ints) -> None:
    """Place items of a block in new rows by best-fit decreasing."""
    made = assign_best_fit(rows.sizes[items], rows.capacity, rows.limit)
    counts, order = made.by_row()
    rows.add(np.full(made.rows, block), items[order], np.repeat(np.arange(made.rows), counts))


def _place_online(rows: PooledRows) -> None:
    """Place the items of each block in its open rows, and in new ones."""
    left, open_rows = rows.unplaced(), rows.open_rows(1)
    smallest = np.full(rows.blocks, rows.capacity + 1)
    np.minimum.at(smallest, rows.block_of[left], rows.sizes[left])
    open_rows = open_rows[rows.room[open_rows] >= smallest[rows.block[open_rows]]]
    open_rows = open_rows[np.argsort(rows.block[open_rows], kind="stable")]
    edges, row_edges = (
        np.searchsorted(of_block, np.arange(rows.blocks + 1)).tolist()
        for of_block in (rows.block_of[left], rows.block[open_rows])
    )
    sizes, rooms, held = (
        each.tolist() for each in (rows.sizes[left], rows.room[open_rows], rows.held[open_rows])
    )
    found, begun = list[int](), list[int]()  # begun: the block of each new row
    for block in range(rows.blocks):
        if not (items := sizes[slice(*edges[block : block + 2])]):
            continue
        a, b = row_edges[block : block + 2]
        pairs = list(zip(rooms[a:b], held[a:b], strict=True))
        placed = place_online(items, rows.capacity, rows.limit, pairs)
        after = len(open_rows) + len(begun) - (b - a)  # new rows are numbered after all open ones
        found += [row + (a if row < b - a else after) for row in placed]
        begun += [block] * (max(placed) + 1 - (b - a))
    row = np.array(found, np.int64)
    new = row >= len(open_rows)
    rows.row[left[~new]] = open_rows[row[~new]]
    rows.add(np.array(begun, np.int64), left[new], row[new] - len(open_rows))


def place_online(
    sizes: list[int], capacity: int, limit: int, open_rows: list[OpenRow] | tuple[()] = ()
) -> list[int]:
    """Place items in the order given, each in the fullest row that has room.

    Rows mix sizes as the order does. If it needs more rows than items of any size would, the
    largest are placed first.

    Returns:
        The row of each item: those of `open_rows` come first, then new ones.

    >>> place_online([3, 5, 2, 1, 4], 8, 8, [(6, 1)])
    [0, 1, 1, 1, 2]
    """
    once = [1] * len(sizes)
    runs, made = best_fit(sizes, once, capacity, limit, open_rows)
    missing = sum(sizes) - sum(room for room, _ in open_rows)
    if made > len(open_rows) + max(-(-missing // capacity), 0):
        order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
        largest_first = [sizes[item] for item in order]
        other, fewer = best_fit(largest_first, once, capacity, limit, open_rows)
        if fewer < made:
            return [row for _, row in sorted(zip(order, other[:, 0].tolist(), strict=True))]
    found: list[int] = runs[:, 0].tolist()
    return found


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

    def _choose(self, dealt: Bools) -> None:
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
        self._dealt = np.where(counts, np.append(last, 0)[stops - 1], self._bounds[:-1])

    def close(self, exchanges: int) -> tuple[Ints, Ints]:
        """Keep the rows that come out full.

        Args:
            exchanges: items of a row that are tried.

        Returns:
            All other items, and (blocks,) how many they are; in each block those that were not
            dealt come first.
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
        # Of each block the rows that were dealt, and then what was not dealt: in no row.
        edges = np.searchsorted(self._block, np.arange(rows.blocks) + 1)
        counts = np.insert(self._count, edges, self._bounds[1:] - self._dealt)
        found = np.repeat(np.insert(self._row, edges, -1), counts)
        found[items] = self._row[added]
        rows.row[self._stream] = found
        left = np.flatnonzero(found < 0)
        edges, middle = np.searchsorted(left, self._bounds), np.searchsorted(left, self._dealt)
        begin = np.stack([middle, edges[:-1]], axis=1).ravel()
        stop = np.stack([edges[1:], middle], axis=1).ravel()
        return self._stream[left[consecutive(begin, stop - begin)]], np.diff(edges)

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
        return gaps[met], found, np.delete(gaps, met)


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
