"""The last items of each block, placed one by one: a Python loop, for few items."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from jaxdata.packing.pooled_rows import PooledRows
from jaxdata.packing.windows import Assigned, RowItems
from jaxdata.ragged import AnyInts, Ints

Assign = Callable[[AnyInts, int, int], Assigned]
"""(sizes, capacity, most items in a row) -> rows"""
OpenRow = tuple[int, int]
"""(slots that are left, items in it)"""

_LOOPED = 2048
"""items of a block that a Python loop may place"""


def place_rest(rows: PooledRows, assign: Assign) -> None:
    """Place all items that are in no row; where they are many, as `assign` does."""
    blocks = np.arange(rows.blocks + 1)
    left = rows.unplaced()
    open_rows = rows.open_rows(int(rows.sizes[left].min(initial=rows.capacity)))
    open_rows = open_rows[np.argsort(rows.block[open_rows], kind="stable")]
    edges = np.searchsorted(rows.block_of[left], blocks).tolist()
    row_edges = np.searchsorted(rows.block[open_rows], blocks).tolist()
    both = zip(pairwise(edges), pairwise(row_edges), strict=True)
    for block, (of_left, of_rows) in enumerate(both):
        mine = left[slice(*of_left)]
        if len(mine) > _LOOPED:
            _place_many(rows, block, assign)
        elif len(mine):
            _place_few(rows, block, mine, open_rows[slice(*of_rows)])


def _place_many(rows: PooledRows, block: int, assign: Assign) -> None:
    """Place the items of a block anew that are in no full row."""
    open_rows = rows.open_rows()
    rows.dissolve(open_rows[rows.block[open_rows] == block])
    first = int(rows.bounds[block])
    left = first + np.flatnonzero(rows.of_block(block) < 0)
    made = RowItems.of(assign(rows.sizes[left], rows.capacity, rows.limit)).numbered(left)
    _add(rows, block, made.items, np.repeat(np.arange(made.rows), made.counts))


def _place_few(rows: PooledRows, block: int, left: Ints, open_rows: Ints) -> None:
    """Place the items of a block in its open rows, and in new ones."""
    sizes = rows.sizes[left]
    open_rows = open_rows[rows.room[open_rows] >= sizes.min()]
    pairs = zip(rows.room[open_rows].tolist(), rows.held[open_rows].tolist(), strict=True)
    row = np.array(place_online(sizes, rows.capacity, rows.limit, list(pairs)))
    new = row >= len(open_rows)
    rows.row[left[~new]] = open_rows[row[~new]]
    _add(rows, block, left[new], row[new] - len(open_rows))


def _add(rows: PooledRows, block: int, items: Ints, row: Ints) -> None:
    """Put items in new rows of a block."""
    held = np.bincount(row)
    room = rows.capacity - np.bincount(row, rows.sizes[items]).astype(rows.room.dtype)
    numbers = rows.begin(np.full(len(held), block, rows.block.dtype), room, held)
    rows.row[items] = numbers[row]


def place_online(
    sizes: AnyInts, capacity: int, limit: int, open_rows: Sequence[OpenRow] = ()
) -> list[int]:
    """Place items in the order given, each in the fullest row that has room.

    Rows mix sizes as the order does. If it needs more rows than items of any size would, the
    largest are placed first.

    Returns:
        The row of each item: those of `open_rows` come first, then new ones.

    >>> place_online(np.array([3, 5, 2, 1, 4]), 8, 8, [(6, 1)])
    [0, 1, 0, 0, 2]
    """
    found = _best_fit(sizes.tolist(), capacity, limit, open_rows)
    missing = int(sizes.sum(dtype=np.int64)) - sum(room for room, _ in open_rows)
    least = len(open_rows) + max(-(-missing // capacity), 0)
    if max(found, default=-1) < least:
        return found
    order = np.argsort(-sizes, kind="stable")
    other = _best_fit(sizes[order].tolist(), capacity, limit, open_rows)
    if max(other) >= max(found):
        return found
    return [row for _, row in sorted(zip(order.tolist(), other, strict=True))]


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
