"""The strategy `best_fit`: rows that mix lengths; best-fit decreasing in the dataset's order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.bins import assign_best_fit
from jaxdata.rows.packing.block_plan import (
    Packed,
    RowSize,
    Strategy,
    cut_windows,
    rows_in_order,
)
from jaxdata.rows.packing.mixed_fit import assign_mixed


def _pack(lengths: AnyInts, row: RowSize) -> Packed:
    windows = cut_windows(lengths, row.seq_len, row.overlap)
    assigned = assign_best_fit(row.units(windows.slots), row.capacity, row.segments)
    return windows.packed(assigned.rows, assigned.by_row)


def _pack_mixed(lengths: AnyInts, bounds: AnyInts, size: RowSize) -> list[Packed]:
    windows = cut_windows(lengths, size.seq_len, size.overlap)
    begins = np.searchsorted(windows.document, bounds)
    rows = assign_mixed(size.units(windows.slots), begins, size.capacity, size.segments)
    row, counts = rows.close()
    parts = zip(bounds.tolist(), pairwise(begins.tolist()), counts.tolist(), strict=False)
    return [
        windows.part(a, b, first).packed(count, partial(rows_in_order, row[a:b]))
        for first, (a, b), count in parts
    ]


_SAYS = "windows of documents fitted together; nothing is dropped"
BEST_FIT = Strategy("best_fit", _SAYS, _pack, mixed=_pack_mixed)
