"""Rows of several blocks side by side: the items that are in none, and the room that is left.

numpy's calls cost as much for one block as for ten, so the blocks share arrays; the keys of items
and the counts of rows keep them apart.
"""

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, stable_order

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

    def fewest(self) -> Ints:
        """(blocks,) rows that the slots of all items of a block need at least."""
        slots = np.append(0, np.cumsum(self.sizes, dtype=np.int64))[self.bounds]
        return -(-np.diff(slots) // self.capacity)

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
