"""Rows that mix sizes, with hardly more padding than best-fit decreasing leaves.

Best-fit decreasing sorts: items of one size lie side by side, and a row is all of long documents or
all of short ones. Here, too, an item larger than half a row begins a row, which takes the largest
item that fits; but only where that fills more than half of what is left. All other items are dealt
to rows at random, again and again: rows that come out full stay. The last items, one or a few in a
hundred, are left.

It is numpy over many blocks at once, since each call costs as much as a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdata.packing.pooled_rows import PooledRows
from jaxdata.packing.random_rows import RandomRows
from jaxdata.ragged import AnyInts, Ints


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
