"""The strategy `best_fit`: best-fit decreasing in histograms, items of one size placed together.

The Python steps grow with the number of different sizes, not with the number of documents.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyInts, descending_order, size_classes
from jaxdata.rows.packing.block_plan import (
    BinAssignment,
    Packed,
    PackedWindows,
    RowItems,
    RowSize,
    Strategy,
    cut_windows,
    rows_in_order,
)
from jaxdata.rows.packing.mixed_fit import mixed_rows, pack_anew, place_rest
from jaxdata.rows.packing.pooled_rows import PooledRows

Run = tuple[int, int, int, int]
"""(first row, rows, items already in each row, items added to each row)"""


def assign_best_fit(sizes: AnyInts, capacity: int, limit: int) -> BinAssignment:
    """Place each item, largest first, into the fullest row with room for it.

    That row then takes as many items of the same size as fit, so a whole group of equal rows is
    filled in one step.
    """
    values, counts = size_classes(sizes)
    large = int(np.searchsorted(-2 * values, -capacity))
    rows = _Rows(capacity, limit)
    alone = rows.take_large(values[:large], counts[:large])
    ends = np.array(rows.take(values[large:].tolist(), counts[large:].tolist()), np.int64)
    # struct packs Python integers four times as fast as numpy.
    packed = np.frombuffer(struct.pack(f"{len(rows.runs)}q", *rows.runs), np.int64)
    of_size = np.append(np.ones(large, np.int64), np.diff(ends, prepend=0) // 4)
    runs = np.concatenate([alone, packed.reshape(-1, 4)])
    runs = np.column_stack([runs, np.repeat(values, of_size)])
    return BinAssignment(runs, rows.made, partial(descending_order, sizes))


class _Rows:
    """Rows being filled with items of decreasing size, at most `limit` in each."""

    def __init__(self, capacity: int, limit: int) -> None:
        self._capacity, self._limit = capacity, limit
        self.made = 0
        self.runs: list[int] = []
        """the numbers of every `Run` so far"""
        # Rows that can take more, grouped by room; a group is a run that gives each row one item.
        self._groups: defaultdict[int, list[Run]] = defaultdict(list)
        # Rooms of those groups that fit the last size, decreasing.
        self._roomy: list[int] = []

    def take_large(self, sizes: AnyInts, counts: AnyInts) -> NDArray[np.int64]:
        """Place items larger than half a row, each in a row of its own: a run for each size."""
        first, ones = np.cumsum(counts) - counts, np.ones_like(counts)
        self.made = int(counts.sum())
        if self._limit > 1:
            groups = zip(*(column.tolist() for column in (first, counts, ones, ones)), strict=True)
            rooms = (self._capacity - sizes).tolist()
            self._groups.update(zip(rooms, [[group] for group in groups], strict=True))
        return np.stack([first, counts, 0 * ones, ones], axis=1)

    def take(self, sizes: list[int], counts: list[int]) -> list[int]:
        """Place the other items; returns the length of `runs` after each size."""
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
        """Place items in rows with room for one or more, fullest first; returns how many remain."""
        groups, roomy, limit = self._groups, self._roomy, self._limit
        while count and roomy:
            room = roomy[-1]
            there = groups[room]
            first, rows, held, _ = there.pop()
            each = room // size
            if each > limit - held:
                each = limit - held
            if count < rows * each:  # split the group into the rows filled now and the others
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
        if each > limit:  # twice as fast as min(), here and below
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
    """The rooms between two sizes, decreasing."""
    if last - size <= len(groups):
        return [room for room in range(last - 1, size, -1) if room in groups]
    return sorted((room for room in groups if size < room < last), reverse=True)


def assign_mixed(sizes: AnyInts, bounds: AnyInts, capacity: int, limit: int) -> PooledRows:
    """Place the items of some blocks, in random order, so that rows mix sizes: see `mixed_fit`."""

    def assign(*given: Any) -> RowItems:
        return assign_best_fit(*given).by_row()

    rows = mixed_rows(sizes, bounds, capacity, limit)
    place_rest(rows, assign)
    pack_anew(rows, assign)
    return rows


def _pack(lengths: AnyInts, row: RowSize) -> Packed:
    windows = cut_windows(lengths, row.seq_len, row.overlap)
    assigned = assign_best_fit(row.units(windows.slots), row.capacity, row.segments)
    return PackedWindows(windows, assigned.rows, assigned.by_row)


def _pack_mixed(lengths: AnyInts, bounds: AnyInts, size: RowSize) -> list[Packed]:
    windows = cut_windows(lengths, size.seq_len, size.overlap)
    begins = np.searchsorted(windows.document, bounds)
    rows = assign_mixed(size.units(windows.slots), begins, size.capacity, size.segments)
    row, counts = rows.close()
    parts = zip(bounds.tolist(), pairwise(begins.tolist()), counts.tolist(), strict=False)
    return [
        PackedWindows(windows.part(a, b, first), count, partial(rows_in_order, row[a:b]))
        for first, (a, b), count in parts
    ]


_SAYS = "windows of documents fitted together; nothing is dropped"
BEST_FIT = Strategy("best_fit", _SAYS, _pack, mixed=_pack_mixed)
