"""Which window lies in which row: best-fit decreasing, and longest-first with cropping.

Both plan in histograms: items of one size are placed together, so that the Python steps grow with
the number of different sizes, not with the number of documents.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.windows import expand, stable_order

__all__ = ["Placement", "place_best_fit", "place_crop", "place_each"]

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Placement:
    """Which item lies in which row, run by run: `each` items in each of `count` rows."""

    runs: NDArray[np.int64]
    """(runs, 4): first row, count, each, and the slots of every item, in order of placing"""
    rows: int
    """number of rows"""
    items: Callable[[], Ints]
    """gives (items,): the number of each item, in order of placing"""

    @property
    def filled(self) -> int:
        """Slots of all items."""
        _, count, each, slots = self.runs.T
        return int((count * each * slots).sum())

    def row_and_slots(self) -> tuple[Ints, Ints]:
        """(row, slots) of every item, in order of placing; int32."""
        first, count, each, slots = self.runs.astype(np.int32).T
        run, number = expand(count)
        return np.repeat(first[run] + number, each[run]), np.repeat(slots, count * each)


def place_each(sizes: Ints) -> Placement:
    """Each item into a row of its own, in their order."""
    rows = np.arange(len(sizes))
    ones = np.ones_like(rows)
    return Placement(np.stack([rows, ones, ones, sizes], axis=1), len(sizes), lambda: rows)


def _falling(sizes: Ints) -> Ints:
    """Numbers of the items from the largest to the smallest, equal ones in their order."""
    largest = int(sizes.max(initial=0))
    return stable_order(largest - sizes, largest)


def _classes(sizes: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different sizes, falling, and how many items have each."""
    if int(sizes.max(initial=0)) >= 2**20:
        values, counts = np.unique(sizes, return_counts=True)
        return values[::-1].astype(np.int64), counts[::-1]
    counts = np.bincount(sizes)[::-1]
    values = np.flatnonzero(counts)
    return len(counts) - 1 - values, counts[values]


def _as_runs(numbers: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(numbers, np.int64).reshape(-1, 4)


def place_best_fit(sizes: Ints, capacity: int, limit: int) -> Placement:
    """Best-fit decreasing: each item into the fullest row that still takes it.

    The fullest row with room for an item takes as many of its size as fit before another row is
    the fullest, so that a whole group of equal rows is filled in one step.
    """
    values, counts = _classes(sizes)
    smallest = int(sizes.min(initial=capacity))
    alone, made = _place_alone(values, counts, capacity)
    # Groups (first row, rows, items in each) of rows that can take more, by the room in them.
    groups: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    if limit > 1:
        groups.update(_groups(alone, capacity, smallest))
    rooms = sorted(groups)  # those whose groups are not empty
    runs = array("q")
    add = runs.extend
    classes = np.stack([values, counts], axis=1)[len(alone) :].tolist()
    for size, count in classes:
        place = bisect_left(rooms, size)
        while count:
            if place == len(rooms):
                rows = -(-count // min(capacity // size, limit))
                rooms.append(capacity)
                groups[capacity].append((made, rows, 0))
                made += rows
            room = rooms[place]
            there = groups[room]
            first, rows, held = there.pop()
            each = room // size
            if each > limit - held:
                each = limit - held
            if count < rows * each:  # part the group: the rows filled now, and the others
                now = max(count // each, 1)
                each = min(each, count)
                if now < rows:
                    there.append((first + now, rows - now, held))
                rows = now
            count -= rows * each
            add((first, rows, each, size))
            if not there:
                del rooms[place]
            room -= each * size
            held += each
            if room >= smallest and held < limit:
                there = groups[room]
                if not there:
                    insort(rooms, room)
                    place += 1
                there.append((first, rows, held))
    return Placement(np.concatenate([alone, _as_runs(runs)]), made, partial(_falling, sizes))


def _place_alone(
    values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int
) -> tuple[NDArray[np.int64], int]:
    """Place the items of more than half a row, of which no two share one: (runs, rows made)."""
    large = int(np.searchsorted(-2 * values, -capacity))
    rows = counts[:large]
    runs = np.stack([np.cumsum(rows) - rows, rows, np.ones_like(rows), values[:large]], axis=1)
    return runs, int(rows.sum())


def _groups(
    alone: NDArray[np.int64], capacity: int, smallest: int
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """The rows of `_place_alone` that can take more, by room."""
    for first, rows, held, size in alone.tolist():
        if capacity - size >= smallest:
            yield capacity - size, [(first, rows, held)]


def place_crop(sizes: Ints, capacity: int, limit: int) -> Placement:
    """Fill row by row with the longest that fits; when none does, crop the shortest.

    Source: nanochat's and autoresearch's loader, with the block in place of its buffer. The next
    row is the same in sizes as long as no size it needs has run out: such rows are placed at once.
    """
    left = dict(zip(*(column.tolist() for column in _classes(sizes)), strict=True))
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
        for size, each, slots in pattern:
            runs.extend((rows, again, each, slots))
            picked.append(np.arange(again * each) + begin[size] + taken[size])
            taken[size] += again * each
        for size, each in need.items():
            left[size] -= again * each
            if not left[size]:
                del present[bisect_left(present, size)]
        rows += again
    chosen = np.concatenate(picked)
    return Placement(_as_runs(runs), rows, lambda: _falling(sizes)[chosen])


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
