"""The strategy `crop`: longest first; when nothing fits, the shortest is cropped to fit."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, descending_order, size_classes
from jaxdata.rows.packing.block_plan import (
    BinAssignment,
    Packed,
    PackedWindows,
    RowItems,
    RowSize,
    Strategy,
    Windows,
    rows_in_order,
)
from jaxdata.rows.packing.mixed_fit import mixed_rows

_LOOPED = 2048
"""items that a Python loop may place"""


def assign_crop(sizes: AnyInts, capacity: int, limit: int) -> BinAssignment:
    """Fill row by row with the longest that fits; when none does, crop the shortest.

    Source: the loader of nanochat and autoresearch, with the block as its buffer. Consecutive rows
    have the same sizes until one of those sizes runs out: such rows are placed at once.
    """
    remaining = dict(zip(*(column.tolist() for column in size_classes(sizes)), strict=True))
    taken = dict.fromkeys(remaining, 0)
    begin = dict(zip(remaining, np.cumsum([0, *remaining.values()]).tolist(), strict=False))
    present = sorted(remaining)
    runs, rows = array("q"), 0
    picked: list[AnyInts] = [np.empty(0, np.int64)]
    while present:
        pattern = _crop_pattern(present, remaining, capacity, limit)
        need: dict[int, int] = {}
        for size, each, _ in pattern:
            need[size] = need.get(size, 0) + each
        again = min(remaining[size] // each for size, each in need.items())
        held = 0
        for size, each, slots in pattern:
            runs.extend((rows, again, held, each, slots))
            held += each
            picked.append(np.arange(again * each) + begin[size] + taken[size])
            taken[size] += again * each
        for size, each in need.items():
            remaining[size] -= again * each
            if not remaining[size]:
                del present[bisect_left(present, size)]
        rows += again
    chosen = np.concatenate(picked)
    return BinAssignment(
        np.frombuffer(runs, np.int64).reshape(-1, 5), rows, lambda: descending_order(sizes)[chosen]
    )


def _crop_pattern(
    present: list[int], remaining: dict[int, int], capacity: int, limit: int
) -> list[tuple[int, int, int]]:
    """The next row: (size, items, slots of each)."""
    pattern: list[tuple[int, int, int]] = []
    room, held, fitting = capacity, 0, len(present)
    while fitting and room and held < limit:
        fitting = bisect_left(present, room + 1, 0, fitting)
        if not fitting:
            break
        size = present[fitting - 1]
        each = min(room // size, remaining[size], limit - held)
        pattern.append((size, each, size))
        room, held, fitting = room - each * size, held + each, fitting - 1
    used = {size: each for size, each, _ in pattern}
    shortest = next((size for size in present if remaining[size] > used.get(size, 0)), None)
    if room and held < limit and shortest is not None:
        pattern.append((shortest, 1, room))
    return pattern


def crop_online(sizes: AnyInts, capacity: int, limit: int) -> tuple[RowItems, AnyInts]:
    """Fill row by row with the next item; when it does not fit, crop the one that loses least.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`.
        capacity: slots of a row.
        limit: most items of a row.

    Returns:
        The rows, full but for the last and those of `limit` items, and (items,) the slots that are
        left of each item.

    >>> rows, slots = crop_online(np.array([5, 6, 2, 4, 9]), 9, 9)
    >>> rows.items.tolist(), slots.tolist()
    ([0, 3, 1, 2, 4], [5, 6, 2, 4, 1])
    """
    given = sizes.tolist()
    slots, following = sizes.copy(), list(range(len(given) - 1, -1, -1))
    waiting = sorted((size, item) for item, size in enumerate(given))
    rows: list[list[int]] = []
    while waiting:
        row, room = list[int](), capacity
        while room and waiting and len(row) < limit:
            item = following[-1]
            if given[item] > room:
                item = waiting[bisect_left(waiting, (room, -1))][1]
            row.append(item)
            slots[item] = min(given[item], room)
            room -= int(slots[item])
            del waiting[bisect_left(waiting, (given[item], item))]
            following.remove(item)
        rows.append(row)
    counts, items = np.array(list(map(len, rows)), np.int64), [item for row in rows for item in row]
    return RowItems(counts, np.array(items, np.int64)), slots


def _pack(lengths: AnyInts, row: RowSize) -> Packed:
    document = np.flatnonzero(lengths > 1)
    targets = lengths[document] - 1
    assignment = assign_crop(row.units(targets), row.capacity, row.segments)
    units = np.empty(len(document), lengths.dtype)
    units[assignment.items()] = assignment.slots()
    windows = _beginnings(document, row.slots(units, targets), lengths)
    return PackedWindows(windows, assignment.rows, assignment.by_row)


def _pack_mixed(lengths: AnyInts, bounds: AnyInts, size: RowSize) -> list[Packed]:
    """Full rows that mix lengths; the documents that are left, online, or by the rule above."""
    document = np.flatnonzero(lengths > 1)
    units = np.minimum(size.units(lengths[document] - 1), size.capacity)
    begins = np.searchsorted(document, bounds)
    rows = mixed_rows(units, begins, size.capacity, size.segments, full=True)
    rows.dissolve(rows.open_rows())
    row = rows.close()[0]
    parts = zip(bounds.tolist(), pairwise(begins.tolist()), strict=False)
    return [
        _with_rest(document[a:b] - before, units[a:b], row[a:b], lengths[before:], size)
        for before, (a, b) in parts
    ]


def _with_rest(
    document: AnyInts, units: AnyInts, row: Ints, lengths: AnyInts, size: RowSize
) -> PackedWindows:
    """Crop the documents of a block that are in no row."""
    left = np.flatnonzero(row < 0)
    last, units[left] = _crop_left(units[left], size.capacity, size.segments)
    assigned = RowItems.chain([rows_in_order(row), last.numbered(left)])
    windows = _beginnings(document, size.slots(units, lengths[document] - 1), lengths)
    return PackedWindows(windows, assigned.rows, lambda: assigned)


def _crop_left(sizes: AnyInts, capacity: int, limit: int) -> tuple[RowItems, AnyInts]:
    """The rows of items that are left, and the slots of each."""
    if len(sizes) <= _LOOPED:
        return crop_online(sizes, capacity, limit)
    last, slots = assign_crop(sizes, capacity, limit), sizes.copy()
    slots[last.items()] = last.slots()
    return last.by_row(), slots


def _beginnings(document: AnyInts, slots: AnyInts, lengths: AnyInts) -> Windows:
    """The first `slots` pairs of documents."""
    cropped = int(np.count_nonzero(slots < lengths[document] - 1))
    return Windows(document, np.zeros_like(slots), slots, overlap=0, cropped=cropped)


_SAYS = "each row begins a document; what does not fit is dropped"
CROP = Strategy("crop", _SAYS, _pack, mixed=_pack_mixed, takes_overlap=False, keeps_all=False)
