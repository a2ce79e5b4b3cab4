"""Rows of several blocks that are packed side by side: numpy's calls cost as much for one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, consecutive, stable_order
from jaxdata.rows.packing.windows import Assigned, RowItems

_NONE, _ALONE = -1, -2
"""the row of an item that is in none, and of one that fills a row, which has no number yet"""


class PooledRows:
    """Items, the rows that they are in, and what room is left there.

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

    def fewest(self) -> Ints:
        """(blocks,) rows that the slots of all items of a block need at least."""
        slots = np.append(self.sizes, 0)
        sums = np.add.reduceat(slots, self.bounds[:-1], dtype=np.int64)
        return np.where(np.diff(self.bounds), -(-sums // self.capacity), 0)

    def sharing(self, block: int) -> Ints:
        """The items of a block that are not as large as a row."""
        first, stop = self.bounds[block : block + 2].tolist()
        found: Ints = first + np.flatnonzero(self.row[first:stop] != _ALONE)
        return found

    def unplaced_of(self, block: int) -> Ints:
        """The items of a block that are in no row."""
        first, stop = self.bounds[block : block + 2].tolist()
        found: Ints = first + np.flatnonzero(self.row[first:stop] == _NONE)
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
        if not able.all():
            order, below, least = order[able], below[able], least[able]
        if not len(order):
            return order, order, order
        first = np.flatnonzero(np.append(True, below[1:] != below[:-1]))
        wishes = np.diff(first, append=len(below))
        turn = np.arange(len(below)) - np.repeat(first, wishes)
        at = np.maximum(below - turn, 0)
        met = at > np.repeat(np.append(0, below[first[1:] - 1]), wishes)  # the nearest of others
        met &= self._keys[at] >= least
        return order, order[met], self._without(at[met])

    def _without(self, at: Ints) -> Ints:
        """Remove some items, and return them."""
        taken: Ints = self._items[at]
        stay = np.ones(len(self._items), bool)
        stay[at] = False
        self._keys, self._items = self._keys[stay], self._items[stay]
        return taken


@dataclass(frozen=True)
class PooledBlock:
    """The rows of one of the blocks (see `Assigned`)."""

    row: Ints
    """(items,) the row of each: any numbers"""
    rows: int
    """number of rows"""

    def by_row(self) -> tuple[AnyInts, AnyInts]:
        """(rows + 1,) where each row begins, and (items,) the items of all rows."""
        return rows_in_order(self.row).by_row()


def rows_in_order(row: Ints) -> RowItems:
    """The items of rows, from the row of each item; -1 is none.

    >>> rows_in_order(np.array([7, -1, 5, 7]))
    RowItems(counts=array([1, 2]), items=array([2, 0, 3]))
    """
    placed = np.flatnonzero(row >= 0)
    numbers = row[placed]
    numbers = numbers - (numbers.min() if len(numbers) else 0)
    order = stable_order(numbers, int(numbers.max(initial=0)))
    edges = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return RowItems(np.diff(edges, append=len(order)), placed[order])


Assign = Callable[[AnyInts, int, int], Assigned]
"""(sizes, capacity, most items in a row) -> rows"""
OpenRow = tuple[int, int]
"""(slots that are left, items in it)"""
Number = TypeVar("Number", int, Ints)
Edges = list[tuple[int, int]]
"""of each block, where its things begin and end"""

_ONLINE = 24
"""items that are placed one by one at once"""
_FITS = 12
"""items that a row takes at most because they are the largest that fit"""
_TOLERATED = 32
"""rows of a block may be one in so many more than are needed"""
_LOOPED = 2048
"""items of a block that a Python loop may place"""


def place_rest(rows: PooledRows, assign: Assign) -> None:
    """Place all items that are in no row; where they are many, as `assign` does."""
    left = rows.unplaced()
    counts = rows.per_block(rows.block_of[left])
    for block in np.flatnonzero(counts > _LOOPED).tolist():
        _place_many(rows, block, assign)
    filled = (counts > _ONLINE) & (counts <= _LOOPED)
    left = left[filled[rows.block_of[left]]]
    for begins in (False, True):
        if begins:
            left = _begin_rows(rows, left)
        open_rows = rows.open_rows()
        left = rows.fill(open_rows[filled[rows.block[open_rows]]], left, _FITS, closely=False)
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


def _place_many(rows: PooledRows, block: int, assign: Assign) -> None:
    """Place the items of a block anew that are in no full row."""
    open_rows = rows.open_rows()
    rows.dissolve(open_rows[rows.block[open_rows] == block])
    left = rows.unplaced_of(block)
    made = RowItems.of(assign(rows.sizes[left], rows.capacity, rows.limit)).numbered(left)
    _add_all(rows, block, made)


def pack_anew(rows: PooledRows, assign: Assign) -> None:
    """Pack blocks as `assign` does that have many rows more than they need, if it makes fewer.

    That happens where items have few sizes, such as 26 and 49 in rows of 100.
    """
    counts = rows.row_counts()
    for block in np.flatnonzero(_too_many(counts, rows.fewest())).tolist():
        items, of_all = rows.sharing(block), int(np.diff(rows.bounds[block : block + 2])[0])
        mine = int(counts[block]) - (of_all - len(items))
        sizes = rows.sizes[items]
        large = int(np.count_nonzero(2 * sizes > rows.capacity))
        if not _too_many(mine, max(large, -(-len(items) // rows.limit))):
            continue
        made = RowItems.of(assign(sizes, rows.capacity, rows.limit)).numbered(items)
        if made.rows < mine:
            rows.dissolve(np.flatnonzero((rows.block == block) & (rows.held > 0)))
            _add_all(rows, block, made)


def _too_many(rows: Number, needed: Number) -> Any:
    """Whether rows are more than are needed, by some per cent."""
    return (rows - needed - 1) * _TOLERATED > needed


def _add_all(rows: PooledRows, block: int, made: RowItems) -> None:
    """Add whole rows to a block."""
    row = np.repeat(np.arange(made.rows), made.counts)
    _add(rows, np.full(made.rows, block), made.items, row)


def _place_online(rows: PooledRows) -> None:
    """Place the items of each block in its open rows, and in new ones."""
    left, open_rows, edges, row_edges = _by_block(rows)
    sizes, rooms, held = (
        each.tolist() for each in (rows.sizes[left], rows.room[open_rows], rows.held[open_rows])
    )
    found, begun = list[int](), list[int]()  # begun: the block of each new row
    for block, ((a, b), (c, d)) in enumerate(zip(edges, row_edges, strict=True)):
        if a == b:
            continue
        pairs = list(zip(rooms[c:d], held[c:d], strict=True))
        placed = place_online(sizes[a:b], rows.capacity, rows.limit, pairs)
        after = len(open_rows) + len(begun)  # new rows are numbered after all that are open
        found += [c + row if row < d - c else after + row - (d - c) for row in placed]
        begun += [block] * (max(placed) + 1 - (d - c))
    row = np.array(found, np.int64)
    new = row >= len(open_rows)
    rows.row[left[~new]] = open_rows[row[~new]]
    _add(rows, np.array(begun, np.int64), left[new], row[new] - len(open_rows))


def _by_block(rows: PooledRows) -> tuple[Ints, Ints, Edges, Edges]:
    """The items that are in no row, the rows with room for one, and where those of blocks lie."""
    blocks = np.arange(rows.blocks + 1)
    left = rows.unplaced()
    smallest = np.full(rows.blocks, rows.capacity + 1)
    np.minimum.at(smallest, rows.block_of[left], rows.sizes[left])
    open_rows = rows.open_rows(1)
    open_rows = open_rows[rows.room[open_rows] >= smallest[rows.block[open_rows]]]
    open_rows = open_rows[np.argsort(rows.block[open_rows], kind="stable")]
    edges, row_edges = (
        list(pairwise(np.searchsorted(each, blocks).tolist()))
        for each in (rows.block_of[left], rows.block[open_rows])
    )
    return left, open_rows, edges, row_edges


def _add(rows: PooledRows, blocks: Ints, items: Ints, row: Ints) -> None:
    """Put items in new rows of some blocks."""
    held = np.bincount(row, minlength=len(blocks))
    filled = np.bincount(row, rows.sizes[items], len(blocks))
    room = rows.capacity - filled.astype(np.int64)
    rows.row[items] = rows.begin(blocks, room, held)[row]


def place_online(
    sizes: list[int], capacity: int, limit: int, open_rows: Sequence[OpenRow] = ()
) -> list[int]:
    """Place items in the order given, each in the fullest row that has room.

    Rows mix sizes as the order does. If it needs more rows than items of any size would, the
    largest are placed first.

    Returns:
        The row of each item: those of `open_rows` come first, then new ones.

    >>> place_online([3, 5, 2, 1, 4], 8, 8, [(6, 1)])
    [0, 1, 1, 1, 2]
    """
    found = _best_fit(sizes, capacity, limit, open_rows)
    missing = sum(sizes) - sum(room for room, _ in open_rows)
    least = len(open_rows) + max(-(-missing // capacity), 0)
    if max(found, default=-1) < least:
        return found
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    other = _best_fit([sizes[item] for item in order], capacity, limit, open_rows)
    if max(other) >= max(found):
        return found
    return [row for _, row in sorted(zip(order, other, strict=True))]


def _best_fit(
    sizes: list[int], capacity: int, limit: int, open_rows: Sequence[OpenRow]
) -> list[int]:
    by_room: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # (row, items in it)
    for row, (room, held) in enumerate(open_rows):
        by_room[room].append((row, held))
    rooms, begun, found = sorted(by_room), len(open_rows), list[int]()
    for size in sizes:
        at = bisect_left(rooms, size)
        if at < len(rooms):
            room = rooms[at]
            row, held = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[at]
        else:
            room, row, held = capacity, begun, 0
            begun += 1
        found.append(row)
        if room > size and held + 1 < limit:
            if room - size not in by_room:
                insort(rooms, room - size)
            by_room[room - size].append((row, held + 1))
    return found
