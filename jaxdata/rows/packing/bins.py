"""Items placed in rows by best fit: groups of one size at a time, or one by one."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, consecutive, descending_order, size_classes
from jaxdata.rows.packing.block_plan import RowItems

OpenRow = tuple[int, int]
"""(slots that are left, items in it)"""


@dataclass(frozen=True)
class BinAssignment:
    """Items assigned to rows, run by run: `each` items to each of `count` rows."""

    runs: Ints
    """(runs, 5): first row, count, items already in each row, each, slots of every item; in order
    of placing"""
    rows: int
    """number of rows"""
    items: Callable[[], AnyInts]
    """gives (items,): the number of each item, in order of placing"""

    def slots(self) -> AnyInts:
        """(items,) slots of each, in order of placing."""
        _, count, _, each, slots = self.runs.T
        return np.repeat(slots, count * each)

    def by_row(self) -> RowItems:
        """The items of each row, in order of placing."""
        first, count, held, each, _ = self.runs.T
        begun, ended = (np.bincount(at, each, self.rows + 1) for at in (first, first + count))
        counts = np.cumsum(begun - ended).astype(np.int64)
        row_starts = np.cumsum(counts) - counts
        # Row by row of every run, and then item by item of every row:
        row = consecutive(first, count)
        begin = row_starts[row] + np.repeat(held, count)
        item = np.empty(int(counts.sum()), np.int64)
        item[consecutive(begin, np.repeat(each, count))] = self.items()
        return RowItems(counts[:-1], item)


def assign_best_fit(sizes: AnyInts, capacity: int, limit: int) -> BinAssignment:
    """Best-fit decreasing: place each item, largest first, into the fullest row with room for it.

    The Python steps grow with the number of different sizes, not with the number of items.
    """
    values, counts = size_classes(sizes)
    runs, rows = best_fit(values.tolist(), counts.tolist(), capacity, limit)
    return BinAssignment(runs, rows, partial(descending_order, sizes))


def best_fit(
    sizes: Sequence[int],
    counts: Sequence[int],
    capacity: int,
    limit: int,
    open_rows: Sequence[OpenRow] = (),
) -> tuple[Ints, int]:
    """Place items, `counts` of each size, in the order given into the fullest row that has room.

    That row takes as many of one size as fit, so that a whole group of equal rows is filled in one
    step. New rows are numbered after `open_rows`.

    Returns:
        The runs of `BinAssignment`, and the number of rows.
    """
    runs, made = list[int](), len(open_rows)
    # Rows that can take more, by room: (first row, rows, items in each).
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for row, (room, held) in enumerate(open_rows):
        groups.setdefault(room, []).append((row, 1, held))
    rooms = sorted(groups)
    for size, count in zip(sizes, counts, strict=True):
        left, at = count, bisect_left(rooms, size)
        while left:
            if at < len(rooms):
                room = rooms[at]
                there = groups[room]
                first, rows, held = there.pop()
            else:  # new ones
                room, there, first, rows, held = capacity, [], made, left, 0
            each = min(room // size, limit - held)
            if left < rows * each:  # split the group into the rows filled now and the others
                now, each = left // each or 1, min(each, left)
                if now < rows:
                    there.append((first + now, rows - now, held))
                rows = now
            if first == made:
                made += rows
            elif not there:
                del groups[room], rooms[at]
            runs += (first, rows, held, each, size)
            left -= rows * each
            room -= each * size
            held += each
            if room and held < limit:
                if room in groups:
                    groups[room].append((first, rows, held))
                else:
                    groups[room] = [(first, rows, held)]
                    insort(rooms, room)
                    at += room < size
    # By way of an array, four times as fast as numpy takes Python's integers.
    return np.frombuffer(array("q", runs), np.int64).reshape(-1, 5), made
