"""The packing strategies: which window of which document goes into which row.

Pure functions from document lengths to a plan of rows. What is in `STRATEGIES` can be chosen by
`pack`, in configs and on the command line, and is compared by `jaxdata inspect`.
"""

from array import array
from bisect import bisect_left
from functools import partial
from itertools import pairwise

import numpy as np

from jaxdata.base.ragged import AnyInts, descending_order, size_classes
from jaxdata.rows.packing.bins import BinAssignment, assign_best_fit
from jaxdata.rows.packing.block_plan import (
    BlockPlan,
    BlockSize,
    Packed,
    RowItems,
    RowSize,
    Strategy,
    StrategyName,
    Windows,
    cut_windows,
    rows_in_order,
)
from jaxdata.rows.packing.mixed_fit import assign_mixed, mixed_rows

_LOOPED = 2048
"""items that a Python loop may place"""
Cropped = tuple[RowItems, AnyInts]
"""The rows of items, and the slots that are left of each item."""


def crop_longest(sizes: AnyInts, capacity: int, limit: int) -> Cropped:
    """Fill row by row with the longest that fits; when none does, crop the shortest.

    Source: the loader of nanochat and autoresearch, with the block as its buffer. Consecutive rows
    have the same sizes until one of those sizes runs out: such rows are placed at once.
    """
    remaining = dict(zip(*(column.tolist() for column in size_classes(sizes)), strict=True))
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
            picked.append(np.arange(again * each) + begin[size])
            begin[size] += again * each
        for size, each in need.items():
            remaining[size] -= again * each
            if not remaining[size]:
                del present[bisect_left(present, size)]
        rows += again
    items = descending_order(sizes)[np.concatenate(picked)]
    made = BinAssignment(np.frombuffer(runs, np.int64).reshape(-1, 5), rows, lambda: items)
    left = sizes.copy()
    left[items] = made.slots()
    return made.by_row(), left


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


def crop_online(sizes: AnyInts, capacity: int, limit: int) -> Cropped:
    """Fill row by row with the next item; when it does not fit, crop the one that loses least.

    Args:
        sizes: (items,) slots of each, 1 to `capacity`.
        capacity: slots of a row.
        limit: most items of a row.

    Returns:
        Rows that are full but for the last and those of `limit` items.

    >>> rows, slots = crop_online(np.array([5, 6, 2, 4, 9]), 9, 9)
    >>> rows.items.tolist(), slots.tolist()
    ([0, 3, 1, 2, 4], [5, 6, 2, 4, 1])
    """
    given = sizes.tolist()
    slots, following = sizes.copy(), list(range(len(given) - 1, -1, -1))
    waiting = sorted((size, item) for item, size in enumerate(given))
    counts, items = list[int](), list[int]()
    while waiting:
        room, before = capacity, len(items)
        while room and waiting and len(items) - before < limit:
            item = following[-1]
            if given[item] > room:
                item = waiting[bisect_left(waiting, (room, -1))][1]
            items.append(item)
            slots[item] = min(given[item], room)
            room -= int(slots[item])
            del waiting[bisect_left(waiting, (given[item], item))]
            following.remove(item)
        counts.append(len(items) - before)
    return RowItems(np.array(counts, np.int64), np.array(items, np.int64)), slots


def _pack(lengths: AnyInts, row: RowSize) -> Packed:
    document = np.flatnonzero(lengths > 1)
    units = row.units(lengths[document] - 1)
    return _packed(document, lengths, row, *crop_longest(units, row.capacity, row.segments))


def _pack_mixed(lengths: AnyInts, bounds: AnyInts, row: RowSize) -> list[Packed]:
    """Full rows that mix lengths; the documents that are left, online, or by the rule above."""
    document = np.flatnonzero(lengths > 1)
    units = np.minimum(row.units(lengths[document] - 1), row.capacity)
    begins = np.searchsorted(document, bounds)
    rows = mixed_rows(units, begins, row.capacity, row.segments, full=True)
    rows.dissolve(rows.open_rows())
    of_item, found = rows.close()[0], []
    for before, (a, b) in zip(bounds.tolist(), pairwise(begins.tolist()), strict=False):
        mixed, left = rows_in_order(of_item[a:b]), a + np.flatnonzero(of_item[a:b] < 0)
        crop = crop_online if len(left) <= _LOOPED else crop_longest
        last, units[left] = crop(units[left], row.capacity, row.segments)
        together = RowItems(
            np.concatenate([mixed.counts, last.counts]),
            np.concatenate([mixed.items, left[last.items] - a]),
        )
        here = document[a:b] - before
        found.append(_packed(here, lengths[before:], row, together, units[a:b]))
    return found


def _packed(
    document: AnyInts, lengths: AnyInts, row: RowSize, rows: RowItems, units: AnyInts
) -> Packed:
    """The block whose rows hold so many units of the beginnings of documents."""
    slots = row.slots(units.astype(lengths.dtype, copy=False), lengths[document] - 1)
    cropped = int(np.count_nonzero(slots < lengths[document] - 1))
    windows = Windows(document, np.zeros_like(slots), slots, cropped=cropped)
    return windows.packed(len(rows.counts), lambda: rows)


_SAYS = "each row begins a document; what does not fit is dropped"
CROP = Strategy("crop", _SAYS, _pack, mixed=_pack_mixed, takes_overlap=False, keeps_all=False)


def _alone(lengths: AnyInts, row: RowSize) -> Packed:
    windows = cut_windows(lengths, row.seq_len, row.overlap)
    rows = np.arange(len(windows.slots))
    return windows.packed(len(rows), lambda: RowItems(np.ones_like(rows), rows))


PAD = Strategy("pad", "one window a row", _alone)


def cut_stream(lengths: AnyInts, row: RowSize) -> Packed:
    """Cut every `seq_len` tokens, or before a row would hold more than its most segments.

    Documents lie end to end, empty ones left out. Places of the stream are counted in units.
    """
    document = np.flatnonzero(lengths)
    tokens = lengths[document]
    units, capacity = row.units(tokens), row.capacity
    ends = np.cumsum(units, dtype=lengths.dtype)
    begins, total = ends - units, int(ends[-1]) if len(ends) else 0
    if row.segments >= capacity:
        cuts = np.arange(0, total, capacity, dtype=lengths.dtype)
    else:
        cuts = np.asarray(_limited_cuts(begins, total, capacity, row.segments), lengths.dtype)

    def plan() -> BlockPlan:
        at = np.searchsorted(begins, cuts)
        inside = np.append(begins, total)[at] != cuts  # a document continues in the next row
        where = at[inside]
        pieces = np.insert(begins, where, cuts[inside])
        origin = np.insert(np.arange(len(begins)), where, where - 1)
        row_starts = np.append(at + np.cumsum(inside) - inside, len(pieces))
        taken = np.diff(pieces, append=np.array(total, pieces.dtype))
        start = (pieces - begins[origin]) * pieces.dtype.type(row.multiple)
        slots = row.slots(taken, tokens[origin] - start)
        return BlockPlan(row_starts, document[origin], start, slots, np.zeros_like(slots))

    # The last token of a document fills a slot but has no target.
    begun, filled = len(begins), int(tokens.sum(dtype=np.int64))
    return Packed(BlockSize(len(cuts), filled, filled - begun, 0, begun, begun), plan)


def _limited_cuts(begins: AnyInts, total: int, capacity: int, limit: int) -> list[int]:
    cuts, position = [], 0
    while position < total:
        cuts.append(position)
        beyond = int(np.searchsorted(begins, position, side="right")) - 1 + limit
        full = position + capacity
        position = min(full, int(begins[beyond])) if beyond < len(begins) else full
    return cuts


CONCAT = Strategy(
    "concat",
    "one stream of all documents, cut every seq_len tokens",
    cut_stream,
    streams=True,
    takes_overlap=False,
)


def _fitted(lengths: AnyInts, row: RowSize) -> Packed:
    windows = cut_windows(lengths, row.seq_len, row.overlap)
    assigned = assign_best_fit(row.units(windows.slots), row.capacity, row.segments)
    return windows.packed(assigned.rows, assigned.by_row)


def _fitted_mixed(lengths: AnyInts, bounds: AnyInts, size: RowSize) -> list[Packed]:
    windows = cut_windows(lengths, size.seq_len, size.overlap)
    begins = np.searchsorted(windows.document, bounds)
    rows = assign_mixed(size.units(windows.slots), begins, size.capacity, size.segments)
    row, counts = rows.close()
    parts = zip(bounds.tolist(), pairwise(begins.tolist()), counts.tolist(), strict=False)
    return [
        windows.part(a, b, first).packed(count, partial(rows_in_order, row[a:b]))
        for first, (a, b), count in parts
    ]


BEST_FIT = Strategy(
    "best_fit",
    "windows of documents fitted together; nothing is dropped",
    _fitted,
    mixed=_fitted_mixed,
)

STRATEGIES: dict[StrategyName, Strategy] = {one.name: one for one in (PAD, CONCAT, CROP, BEST_FIT)}
"""by name, in the order of comparisons"""
