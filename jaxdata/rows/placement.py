"""Which window lies in which row: what every packer says, and longest-first with cropping."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.windows import consecutive, stable_order

__all__ = ["Placement", "falling", "place_crop", "size_classes"]

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Placement:
    """Which item lies in which row, run by run: `each` items in each of `count` rows."""

    runs: NDArray[np.int64]
    """(runs, 5): first row, count, items that each row holds before, each, and the slots of every
    item; in order of placing"""
    rows: int
    """number of rows"""
    items: Callable[[], Ints]
    """gives (items,): the number of each item, in order of placing"""

    def slots(self) -> Ints:
        """(items,) slots of each, in order of placing."""
        _, count, _, each, slots = self.runs.T
        return np.repeat(slots, count * each)

    def lay_out(self) -> tuple[Ints, Ints]:
        """Rows laid end to end: (rows + 1,) where they begin, (items,) where each item comes."""
        first, count, held, each, _ = self.runs.T
        begun, ended = (np.bincount(at, each, self.rows + 1) for at in (first, first + count))
        in_row = np.cumsum(begun - ended).astype(np.int64)
        row_starts = np.cumsum(in_row) - in_row
        # Row by row of every run, and then item by item of every row:
        row = consecutive(first, count)
        items = np.repeat(each, count)
        begin = row_starts[row] + np.repeat(held, count)
        return row_starts, consecutive(begin, items)


def falling(sizes: Ints) -> Ints:
    """Numbers of the items from the largest to the smallest, equal ones in their order."""
    largest = int(sizes.max(initial=0))
    return stable_order(largest - sizes, largest)


def size_classes(sizes: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different sizes, falling, and how many items have each."""
    if int(sizes.max(initial=0)) >= 2**20:
        values, counts = np.unique(sizes, return_counts=True)
        return values[::-1].astype(np.int64), counts[::-1]
    counts = np.bincount(sizes)[::-1]
    values = np.flatnonzero(counts)
    return len(counts) - 1 - values, counts[values]


def place_crop(sizes: Ints, capacity: int, limit: int) -> Placement:
    """Fill row by row with the longest that fits; when none does, crop the shortest.

    Source: nanochat's and autoresearch's loader, with the block in place of its buffer. The next
    row is the same in sizes as long as no size it needs has run out: such rows are placed at once.
    """
    left = dict(zip(*(column.tolist() for column in size_classes(sizes)), strict=True))
    taken = dict.fromkeys(left, 0)
    begin = dict(zip(left, np.cumsum([0, *left.values()]).tolist(), strict=False))
    present = sorted(left)
    runs, rows = array("q"), 0
    picked: list[Ints] = [np.empty(0, np.int64)]
    while present:
        pattern = _crop_pattern(present, left, capacity, limit)
        need: dict[int, int] = {}
        for size, each, _ in pattern:
            need[size] = need.get(size, 0) + each
        again = min(left[size] // each for size, each in need.items())
        held = 0
        for size, each, slots in pattern:
            runs.extend((rows, again, held, each, slots))
            held += each
            picked.append(np.arange(again * each) + begin[size] + taken[size])
            taken[size] += again * each
        for size, each in need.items():
            left[size] -= again * each
            if not left[size]:
                del present[bisect_left(present, size)]
        rows += again
    chosen = np.concatenate(picked)
    return Placement(
        np.frombuffer(runs, np.int64).reshape(-1, 5), rows, lambda: falling(sizes)[chosen]
    )


def _crop_pattern(
    present: list[int], left: dict[int, int], capacity: int, limit: int
) -> list[tuple[int, int, int]]:
    """The next row as (size, items, slots of each)."""
    pattern: list[tuple[int, int, int]] = []
    room, held, place = capacity, 0, len(present)
    while place and room and held < limit:
        place = bisect_left(present, room + 1, 0, place)
        if not place:
            break
        size = present[place - 1]
        each = min(room // size, left[size], limit - held)
        pattern.append((size, each, size))
        room, held, place = room - each * size, held + each, place - 1
    used = {size: each for size, each, _ in pattern}
    shortest = next((size for size in present if left[size] > used.get(size, 0)), None)
    if room and held < limit and shortest is not None:
        pattern.append((shortest, 1, room))
    return pattern
