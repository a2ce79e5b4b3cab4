"""The strategy `pad`: one window a row."""

from __future__ import annotations

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import Packed, RowItems, RowSize, Strategy, cut_windows


def _pack(lengths: AnyInts, row: RowSize) -> Packed:
    windows = cut_windows(lengths, row.seq_len, row.overlap)
    rows = np.arange(len(windows.slots))
    return windows.packed(len(rows), lambda: RowItems(np.ones_like(rows), rows))


PAD = Strategy("pad", "one window a row", _pack)
