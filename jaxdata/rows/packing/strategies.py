"""The packing strategies: which window of which document goes into which row.

Pure functions from document lengths to a plan of rows. What is in `STRATEGIES` can be chosen by
`pack`, in configs and on the command line, and is compared by `jaxdata inspect`. `crop` is a file
of its own.
"""

from functools import partial
from itertools import pairwise

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.bins import assign_best_fit
from jaxdata.rows.packing.block_plan import (
    BlockPlan,
    BlockSize,
    Packed,
    RowItems,
    RowSize,
    Strategy,
    StrategyName,
    cut_windows,
    rows_in_order,
)
from jaxdata.rows.packing.crop import CROP
from jaxdata.rows.packing.mixed_fit import assign_mixed


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

STRATEGIES: dict[StrategyName, Strategy] = {
    each.name: each for each in (PAD, CONCAT, CROP, BEST_FIT)
}
"""by name, in the order of comparisons"""
