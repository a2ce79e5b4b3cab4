"""Which window lies in which row: best-fit decreasing, and longest-first with cropping.

Both plan in histograms: items of one size are placed together, so that the Python steps grow with
the number of different sizes, not with the number of documents.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.windows import expand, stable_order

__all__ = ["Placement", "place_best_fit", "place_crop"]

Placement = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(item, row, slots): which window lies in which row, with how many slots; in order of placing."""


class _Runs:
    """Placements of equal items: `each` items into each of `count` rows from `first` on."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self.add = self._numbers.extend
        """add((first, count, each, slots))"""

    def rows_and_slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(row, slots) of every item, in order of placing."""
        first, count, each, slots = np.frombuffer(self._numbers, np.int64).reshape(-1, 4).T
        run, number = expand(count)
        return np.repeat(first[run] + number, each[run]), np.repeat(slots[run], each[run])


def _by_size(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Iterator[tuple[int, int]]]:
    """Items from the largest to the smallest, equal ones in their order; and (size, count)."""
    largest = int(sizes.max(initial=0))
    order = stable_order(largest - sizes, largest)
    if largest < 2**20:
        counts = np.bincount(sizes)
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(sizes, return_counts=True)
    return order, zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True)


class _OpenRows:
    """Rows that can take more: groups (first row, rows, items in each) by the room left in them."""

    def __init__(self, smallest: int, limit: int) -> None:
        self._smallest, self._limit = smallest, limit
        self._groups: dict[int, list[tuple[int, int, int]]] = {}
        self.rooms: list[int] = []
        """the rooms there are, increasing"""

    def take(self, place: int) -> tuple[int, int, int]:
        """Take out a group with room `rooms[place]`."""
        room = self.rooms[place]
        groups = self._groups[room]
        group = groups.pop()
        if not groups:
            del self._groups[room], self.rooms[place]
        return group

    def put(self, room: int, first: int, rows: int, held: int) -> None:
        """Keep a group, unless nothing that is still to come fits into it."""
        if room < self._smallest or held >= self._limit:
            return
        if room not in self._groups:
            self._groups[room] = []
            insort(self.rooms, room)
        self._groups[room].append((first, rows, held))


def place_best_fit(sizes: NDArray[np.int64], capacity: int, limit: int) -> Placement:
    """Best-fit decreasing: each item into the fullest row that still takes it.

    The fullest row with room for an item takes as many of its size as fit before another row is
    the fullest, so that a whole group of equal rows is filled in one step.
    """
    order, classes = _by_size(sizes)
    open_rows = _OpenRows(int(sizes.min(initial=capacity)), limit)
    rooms, put, runs, made = open_rows.rooms, open_rows.put, _Runs(), 0
    for size, count in classes:
        while count:
            place = bisect_left(rooms, size)
            if place < len(rooms):
                room = rooms[place]
                first, rows, held = open_rows.take(place)
            else:
                room, first, rows, held = (
                    capacity,
                    made,
                    -(-count // min(capacity // size, limit)),
                    0,
                )
                made += rows
            each = min(room // size, limit - held)
            full, rest = divmod(count, each)
            if full >= rows:
                full, rest = rows, 0
            count -= full * each + rest
            if full:
                runs.add((first, full, each, size))
                put(room - each * size, first, full, held + each)
            if rest:
                runs.add((first + full, 1, rest, size))
                put(room - rest * size, first + full, 1, held + rest)
            if left := rows - full - (rest > 0):
                put(room, first + rows - left, left, held)
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
    runs, rows = _Runs(), 0
    items: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    while present:
        pattern = _crop_pattern(present, left, capacity, limit)
        need: dict[int, int] = {}
        for size, each, _ in pattern:
            need[size] = need.get(size, 0) + each
        again = min(left[size] // each for size, each in need.items())
        for size, each, slots in pattern:
            runs.add((rows, again, each, slots))
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
