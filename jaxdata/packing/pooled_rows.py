"""Rows of several blocks that are packed side by side: numpy's calls cost the same for all.

A row holds items of one block, and what becomes of a block never depends on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdata.packing.size_stock import SizeStock
from jaxdata.packing.windows import RowItems
from jaxdata.ragged import AnyInts, Ints, stable_order


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
        self.block_of = np.repeat(np.arange(self.blocks, dtype=kind), np.diff(bounds))
        self.keys: AnyInts = self.block_of * kind(self.width) + sizes.astype(kind, copy=False)
        self._alone = np.flatnonzero(sizes == capacity)
        self.row: Ints = np.full(len(sizes), _NONE)
        """(items,) the row of each; -1: none"""
        self.row[self._alone] = _ALONE
        nothing = np.zeros(0, kind)
        self.block, self.room, self.held = nothing, nothing, nothing
        """(rows,) the block of each row, slots that are left, and items in it"""

    def begin(self, block: AnyInts, room: AnyInts, held: AnyInts) -> Ints:
        """New rows; returns their numbers."""
        rows: Ints = np.arange(len(self.block), len(self.block) + len(block))
        self.block = np.concatenate([self.block, block])
        self.room = np.concatenate([self.room, room])
        self.held = np.concatenate([self.held, held])
        return rows

    def begin_with(self, items: Ints) -> None:
        """Each of some items begins a row."""
        room = (self.capacity - self.sizes[items]).astype(self.room.dtype)
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

    def in_blocks(self, items_or_rows: AnyInts) -> Ints:
        """(blocks,) how many there are of each, from the block of each."""
        return np.bincount(items_or_rows, minlength=self.blocks)

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
        return items[self.row[items] == _NONE]

    def close(self) -> tuple[Ints, Ints]:
        """(items,) the row of each item, and (blocks,) how many rows each block has."""
        self.row[self._alone] = len(self.block) + np.arange(len(self._alone))
        begun = self.in_blocks(self.block[self.held > 0])
        return self.row, begun + self.in_blocks(self.block_of[self._alone])

    def of_block(self, block: int) -> NDArray[np.int64]:
        """(items of the block,) the row of each."""
        return self.row[self.bounds[block] : self.bounds[block + 1]]


@dataclass(frozen=True)
class PooledBlock:
    """The rows of one of the blocks (see `Assigned`)."""

    row: Ints
    """(items,) the row of each: any numbers, -1 for none"""
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
