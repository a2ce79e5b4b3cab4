"""Rows that mix sizes, with hardly more padding than best-fit decreasing leaves.

Best-fit decreasing sorts: items of one size lie side by side, and a row is all of long documents or
all of short ones. Its rows stay only where they could hardly be others: where each item takes more
than half of the room that it finds. All other items are dealt to rows at random, again and again:
rows that come out full stay. The last items, about one in a hundred, are returned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jaxdata.packing.random_rows import RandomRows
from jaxdata.packing.windows import Assigned, RowItems
from jaxdata.ragged import AnyInts, Ints

Assign = Callable[[AnyInts, int, int], Assigned]
"""(sizes, capacity, most items in a row) -> rows"""

_DEALS = 8
_WORTHWHILE = 0.1
"""share of the slots that a deal must have filled for another one"""
_RARE = 0.05
"""share of rows with an item larger than half a row below which no row is forced"""
_FEW = 64, 0.01
"""items, or share of the items, that are not worth a deal"""


def mixed_rows(
    assign: Assign, sizes: AnyInts, capacity: int, limit: int, *, full: bool = False
) -> tuple[RowItems, Ints]:
    """Assign most items to rows that mix sizes.

    Args:
        assign: best-fit decreasing.
        sizes: (items,) slots of each, 1 to `capacity`; in random order.
        capacity: slots of a row.
        limit: most items of a row.
        full: whether rows of `assign` that have room are made again, too.

    Returns:
        The rows, and the items that are in none: few where sizes fit together.
    """
    stay, left = _forced_rows(assign, sizes, capacity, limit, full=full)
    parts, few = [stay], max(_FEW[0], int(len(left) * _FEW[1]))
    for _ in range(_DEALS):
        if len(left) <= few:
            break
        dealt, left = RandomRows(sizes, capacity, left).full_rows(limit)
        parts.append(dealt)
        if dealt.rows * capacity < _WORTHWHILE * int(sizes[left].sum(dtype=np.int64)):
            break
    return RowItems.chain(parts), left


def _forced_rows(
    assign: Assign, sizes: AnyInts, capacity: int, limit: int, *, full: bool
) -> tuple[RowItems, Ints]:
    """The rows that could hardly be others, and the items that are in none."""
    led = np.count_nonzero(2 * sizes > capacity) * capacity
    if led < _RARE * int(sizes.sum(dtype=np.int64)):
        return RowItems.of_lists([]), np.arange(len(sizes))
    rows = RowItems.of(assign(sizes, capacity, limit))
    stay = _are_forced(rows, sizes, capacity, full=full)
    return rows.take(stay), np.sort(rows.take(~stay).items)


def _are_forced(rows: RowItems, sizes: AnyInts, capacity: int, *, full: bool) -> NDArray[np.bool_]:
    """Whether each item of a row takes more than half of the room that it finds; (rows,)."""
    if not rows.rows:
        return np.zeros(0, bool)
    slots = sizes[rows.items]
    ends = np.cumsum(slots)
    first = np.cumsum(rows.counts) - rows.counts
    before = np.append(0, ends)[first]
    room = np.repeat(before + capacity, rows.counts) - (ends - slots)
    forced = np.logical_and.reduceat(2 * slots > room, first)
    return forced & (ends[first + rows.counts - 1] - before == capacity) if full else forced
