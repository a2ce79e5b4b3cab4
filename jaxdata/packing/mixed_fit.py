"""Rows that mix sizes, with hardly more padding than best-fit decreasing leaves.

Best-fit decreasing sorts: items of one size lie side by side, and a row is all of long documents or
all of short ones. Here, too, an item larger than half a row begins a row, and takes the largest item
that fits, but only where that fills more than half of what is left. All other items are dealt to
rows at random, again and again: rows that come out full stay. The last items, about one in a
hundred, are left.
"""

from __future__ import annotations

import numpy as np

from jaxdata.packing.pooled_rows import PooledRows
from jaxdata.packing.random_rows import RandomRows
from jaxdata.ragged import AnyInts, Ints

_DEALS = 4
_WORTHWHILE = 2
"""a deal must have placed one item in so many for another one"""
_RARE = 200
"""rows begun by large items are dealt like others where other items are so many times as many"""
_FITS = 4
"""items that a row takes at most because they fill half of what is left"""
_FEW = 192, 100
"""items, or one item in so many, that are not worth a deal"""


def mixed_rows(
    sizes: AnyInts, bounds: AnyInts, capacity: int, limit: int, *, slack: int
) -> PooledRows:
    """Assign most items of some blocks to rows that mix sizes.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`; in random order, block after block.
        bounds: (blocks + 1,) where the items of each block begin.
        capacity: slots of a row.
        limit: most items of a row.
        slack: slots that a row may lack and still be full.
    """
    rows = PooledRows(sizes, bounds, capacity, limit, slack)
    left = rows.unplaced()
    large = 2 * sizes[left] > capacity
    rows.begin_with(left[large])
    left = left[~large]
    begun, others = rows.in_blocks(rows.block), rows.in_blocks(rows.block_of[left])
    open_rows = rows.open_rows()
    open_rows = open_rows[(begun * _RARE >= others)[rows.block[open_rows]]]
    _deal(rows, rows.fill(open_rows, left, _FITS, closely=True))
    return rows


def _deal(rows: PooledRows, left: Ints) -> None:
    """Deal items that are in no row, in each block as long as it is worthwhile."""
    counts = rows.in_blocks(rows.block_of[left])
    few = np.maximum(_FEW[0], counts // _FEW[1])
    going = counts > few
    for _ in range(_DEALS):
        if not going.all():
            left = left[going[rows.block_of[left]]]
        if not len(left):
            break
        before = np.where(going, counts, 0)
        left, counts = RandomRows(rows, left, going).close()
        going &= (counts > few) & ((before - counts) * _WORTHWHILE >= before)
