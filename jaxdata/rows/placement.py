"""Which window lies in which row: best-fit decreasing, and longest-first with cropping.

Both plan in histograms: items of one size are placed together, so that the Python steps grow with
the number of different sizes, not with the number of documents.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.windows import expand

__all__ = ["Placement", "place_best_fit", "place_crop"]

Placement = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(item, row, slots): which window lies in which row, with how many slots; in order of placing."""


@dataclass
class _Runs:
    """Placements of equal items: ``each`` items into each of ``count`` rows from ``first`` on."""

    first: list[int]
    count: list[int]
    each: list[int]
    slots: list[int]

    def add(self, first: int, count: int, each: int, slots: int) -> None:
        self.first.append(first)
        self.count.append(count)
        self.each.append(each)
        self.slots.append(slots)

    def rows_and_slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(row, slots) of every item, in order of placing."""
        run, number = expand(np.asarray(self.count, np.int64))
        row = np.asarray(self.first, np.int64)[run] + number
        each = np.asarray(self.each, np.int64)[run]
        return np.repeat(row, each), np.repeat(np.asarray(self.slots, np.int64)[run], each)


def _by_size(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Iterator[tuple[int, int]]]:
    """Items from the largest to the smallest, equal ones in their order; and (size, count)."""
    order = np.argsort(-sizes, kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    return order, zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True)


def place_best_fit(sizes: NDArray[np.int64], capacity: int, limit: int) -> Placement:
    """Best-fit decreasing: each item into the fullest row that still takes it.

    Open rows are kept in groups (first row, rows, items in each) by the room left in them. The
    fullest row with room for an item takes as many items of that size as fit before another row
    is the fullest, so a group is filled in one step.
    """
    order, classes = _by_size(sizes)
    open_rows: dict[int, list[tuple[int, int, int]]] = {}
    rooms: list[int] = []
    runs, rows = _Runs([], [], [], []), 0
    smallest = int(sizes.min()) if len(sizes) else 0

    def leave(room: int, first: int, count: int, held: int) -> None:
        if count and room >= smallest and held < limit:
            if room not in open_rows:
                open_rows[room] = []
                insort(rooms, room)
            open_rows[room].append((first, count, held))

    for size, count in classes:
        while count:
            place = bisect_left(rooms, size)
            if place < len(rooms):
                room = rooms[place]
                first, free, held = open_rows[room].pop()
                if not open_rows[room]:
                    del open_rows[room], rooms[place]
            else:
                room, first, free, held = capacity, rows, count, 0
            each = min(room // size, limit - held)
            full = min(free, count // each)
            rest = min(count - full * each, each) if full < free else 0
            used = full + (rest > 0)
            runs.add(first, full, each, size)
            runs.add(first + full, int(rest > 0), rest, size)
            leave(room - each * size, first, full, held + each)
            leave(room - rest * size, first + full, int(rest > 0), held + rest)
            if first == rows:
                rows += used
            else:
                leave(room, first + used, free - used, held)
            count -= full * each + rest
    return order, *runs.rows_and_slots()


def place_crop(sizes: NDArray[np.int64], capacity: int, limit: int) -> Placement:
    """Fill row by row with the longest that fits; when none does, crop the shortest.

    Source: nanochat's and autoresearch's loader, with the block in place of its buffer. The next
    row is the same in sizes as long as no size it needs has run out: such rows are placed at once.
    """
    order, classes = _by_size(sizes)
    left = dict(classes)
    taken = dict.fromkeys(left, 0)
    begin = dict(zip(left, np.cumsum([0, *left.values()]).tolist(), strict=False))
    present = sorted(left)
    runs, rows = _Runs([], [], [], []), 0
    items: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    while present:
        pattern = _crop_pattern(present, left, capacity, limit)
        need: dict[int, int] = {}
        for size, each, _ in pattern:
            need[size] = need.get(size, 0) + each
        again = min(left[size] // each for size, each in need.items())
        for size, each, slots in pattern:
            runs.add(rows, again, each, slots)
            items.append(np.arange(again * each) + begin[size] + taken[size])
            taken[size] += again * each
        for size, each in need.items():
            left[size] -= again * each
            if not left[size]:
                del present[bisect_left(present, size)]
        rows += again
    return order[np.concatenate(items)], *runs.rows_and_slots()


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
