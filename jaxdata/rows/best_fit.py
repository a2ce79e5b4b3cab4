"""Best-fit decreasing in histograms: items of one size are placed together.

The Python steps grow with the number of different sizes, not with the number of documents.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.placement import Ints, Placement, falling, size_classes

__all__ = ["place_best_fit"]

Run = tuple[int, int, int, int]
"""(first row, rows, items that each of them holds before, items that each is given)"""


def place_best_fit(sizes: Ints, capacity: int, limit: int) -> Placement:
    """Each item, the largest first, into the fullest row that still takes it.

    The fullest row with room for an item takes as many of its size as fit before another row is
    the fullest, so that a whole group of equal rows is filled in one step.
    """
    values, counts = size_classes(sizes)
    large = int(np.searchsorted(-2 * values, -capacity))
    rows = _Rows(capacity, limit)
    alone = rows.take_large(values[:large], counts[:large])
    ends = np.array(rows.take(values[large:].tolist(), counts[large:].tolist()), np.int64)
    # Packing Python's integers as a struct takes a quarter of the time that numpy takes.
    packed = np.frombuffer(struct.pack(f"{len(rows.runs)}q", *rows.runs), np.int64)
    of_size = np.append(np.ones(large, np.int64), np.diff(ends, prepend=0) // 4)
    runs = np.concatenate([alone, packed.reshape(-1, 4)])
    runs = np.column_stack([runs, np.repeat(values, of_size)])
    return Placement(runs, rows.made, partial(falling, sizes))


class _Rows:
    """Rows that are filled with items of falling sizes, at most `limit` in each."""

    def __init__(self, capacity: int, limit: int) -> None:
        self._capacity, self._limit = capacity, limit
        self.made = 0
        self.runs: list[int] = []
        """the numbers of every `Run` so far"""
        # Rows that can take more, by their room; a group is the run that gives each row one item.
        self._groups: defaultdict[int, list[Run]] = defaultdict(list)
        # Those of these rooms that were large enough for the last size, falling.
        self._roomy: list[int] = []

    def take_large(self, sizes: Ints, counts: Ints) -> NDArray[np.int64]:
        """Place items of more than half a row, of which no two share one: a run for each size."""
        first, ones = np.cumsum(counts) - counts, np.ones_like(counts)
        self.made = int(counts.sum())
        if self._limit > 1:
            groups = zip(*(column.tolist() for column in (first, counts, ones, ones)), strict=True)
            rooms = (self._capacity - sizes).tolist()
            self._groups.update(zip(rooms, [[group] for group in groups], strict=True))
        return np.stack([first, counts, 0 * ones, ones], axis=1)

    def take(self, sizes: list[int], counts: list[int]) -> list[int]:
        """Place the other items; the length of `runs` after each size."""
        groups, roomy, runs, ends = self._groups, self._roomy, self.runs, []
        last = self._capacity + 1
        for size, count in zip(sizes, counts, strict=True):
            if size + 1 < last:
                roomy += _between(groups, size, last)
            last = size
            there = groups.pop(size, None)  # these take just one
            while there:
                run = there.pop()
                if run[1] > count:
                    groups[size] = [*there, run]
                    roomy.append(size)
                    break
                count -= run[1]
                runs += run
            if count and roomy:
                count = self._fill(size, count)
            if count:
                self._begin(size, count)
            ends.append(len(runs))
        return ends

    def _fill(self, size: int, count: int) -> int:
        """Place items in rows that take one and more, the fullest first; how many are left."""
        groups, roomy, limit = self._groups, self._roomy, self._limit
        while count and roomy:
            room = roomy[-1]
            there = groups[room]
            first, rows, held, _ = there.pop()
            each = room // size
            if each > limit - held:
                each = limit - held
            if count < rows * each:  # part the group: the rows filled now, and the others
                now = count // each or 1
                if each > count:
                    each = count
                if now < rows:
                    there.append((first + now, rows - now, held, 1))
                rows = now
            if not there:
                del groups[room], roomy[-1]
            self.runs += (first, rows, held, each)
            count -= rows * each
            room -= each * size
            held += each
            if held < limit:
                groups[room].append((first, rows, held, 1))
                if room >= size:
                    roomy.append(room)
        return count

    def _begin(self, size: int, count: int) -> None:
        """Place items in new rows: full ones, and one with the rest."""
        each, made, limit = self._capacity // size, self.made, self._limit
        if each > limit:  # half the time of min(), here and elsewhere
            each = limit
        while count:
            if each > count:
                each = count
            rows = count // each
            self.runs += (made, rows, 0, each)
            if each < limit:
                room = self._capacity - each * size
                self._groups[room].append((made, rows, each, 1))
                if room >= size:
                    self._roomy.append(room)
            made += rows
            count -= rows * each
        self.made = made


def _between(groups: dict[int, list[Run]], size: int, last: int) -> list[int]:
    """The rooms between two sizes, falling."""
    if last - size <= len(groups):
        return [room for room in range(last - 1, size, -1) if room in groups]
    return sorted((room for room in groups if size < room < last), reverse=True)
