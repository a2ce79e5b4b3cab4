"""Rows that mix sizes, with hardly more padding than best-fit decreasing leaves.

Best-fit decreasing sorts: items of one size lie side by side, and a row is all of long documents or
all of short ones. Here, too, an item larger than half a row begins a row, and takes the largest item
that fits, but only where that fills more than half of what is left. All other items are dealt to
rows at random, again and again: rows that come out full stay. The last items, about one in a
hundred, are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxdata.packing.pooled_rows import PooledRows
from jaxdata.packing.random_rows import RandomRows
from jaxdata.ragged import AnyInts

_DEALS = 4
_WORTHWHILE = 3
"""a deal must have placed one item in so many for another one"""
_RARE = 20
"""rows begun by a large item are dealt like others where they are less than one in so many"""
_FITS = 4
"""items that a row takes at most because they fill half of what is left"""
_FEW = 128, 33
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
    large = np.flatnonzero(2 * sizes > capacity)
    room = (capacity - sizes[large]).astype(rows.block.dtype)
    rows.row[large] = rows.begin(rows.block_of[large], room, np.ones_like(room))
    open_rows = rows.open_rows()
    open_rows = open_rows[~_rarely_large(rows)[rows.block[open_rows]]]
    rows.fill(open_rows, _FITS, closely=True)
    _deal(rows)
    return rows


def _rarely_large(rows: PooledRows) -> NDArray[np.bool_]:
    """Whether hardly any row of a block begins with a large item; (blocks,)."""
    ends = np.append(0, np.cumsum(rows.sizes, dtype=np.int64))
    begun = np.bincount(rows.block, minlength=rows.blocks)
    found: NDArray[np.bool_] = begun * rows.capacity * _RARE < np.diff(ends[rows.bounds])
    return found


def _deal(rows: PooledRows) -> None:
    """Deal what is in no row, in each block as long as it is worthwhile."""
    left = rows.unplaced()
    counts = np.bincount(rows.block_of[left], minlength=rows.blocks)
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
