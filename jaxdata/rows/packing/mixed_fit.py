"""Rows that mix sizes, with hardly more padding than best-fit decreasing.

The items of several blocks are placed side by side, since numpy's calls cost as much for one: those
larger than half a row begin rows, which take the largest that fits; the others are dealt to rows in
random order, rows that come out full are kept, and what is left is placed one by one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, consecutive, stable_order
from jaxdata.rows.packing.block_plan import RowItems
from jaxdata.rows.packing.pooled_rows import PooledRows, RandomRows


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


Assign = Callable[[AnyInts, int, int], RowItems]
"""(sizes, capacity, most items in a row) -> rows"""
OpenRow = tuple[int, int]
"""(slots that are left, items in it)"""
Number = TypeVar("Number", int, Ints)
Edges = list[tuple[int, int]]
"""of each block, where its things begin and end"""

_ONLINE = 24
"""items that are placed one by one at once"""
_FITS_LAST = 12
"""items that a row takes at most because they are the largest that fit"""
_TOLERATED = 32
"""rows of a block may be one in so many more than are needed"""
_LOOPED = 2048
"""items of a block that a Python loop may place"""


def place_rest(rows: PooledRows, assign: Assign) -> None:
    """Place all items that are in no row; where they are many, as `assign` does."""
    left = rows.unplaced()
    counts = rows.per_block(rows.block_of[left])
    open_rows = rows.open_rows()
    for block in np.flatnonzero(counts > _LOOPED).tolist():
        rows.dissolve(open_rows[rows.block[open_rows] == block])
        items = rows.items_of(block, placed=False)
        _add_rows(rows, block, items, assign(rows.sizes[items], rows.capacity, rows.limit))
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


def pack_anew(rows: PooledRows, assign: Assign) -> None:
    """Pack blocks as `assign` does that have many rows more than they need, if it makes fewer.

    That happens where items have few sizes, such as 26 and 49 in rows of 100.
    """
    counts = rows.row_counts()
    for block in np.flatnonzero(_too_many(counts, rows.fewest())).tolist():
        items, of_all = rows.items_of(block, placed=True), int(np.diff(rows.bounds)[block])
        mine = int(counts[block]) - (of_all - len(items))
        sizes = rows.sizes[items]
        large = int(np.count_nonzero(2 * sizes > rows.capacity))
        if not _too_many(mine, max(large, -(-len(items) // rows.limit))):
            continue
        made = assign(sizes, rows.capacity, rows.limit)
        if made.rows < mine:
            rows.dissolve(np.flatnonzero((rows.block == block) & (rows.held > 0)))
            _add_rows(rows, block, items, made)


def _too_many(rows: Number, needed: Number) -> Any:
    """Whether rows are more than are needed, by some per cent."""
    return (rows - needed - 1) * _TOLERATED > needed


def _add_rows(rows: PooledRows, block: int, items: Ints, made: RowItems) -> None:
    """Add whole rows of some items to a block."""
    row = np.repeat(np.arange(made.rows), made.counts)
    _add(rows, np.full(made.rows, block), items[made.items], row)


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
