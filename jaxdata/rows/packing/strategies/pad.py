"""The strategy `pad`: one window a row."""

from __future__ import annotations

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import (
    Packed,
    PackedWindows,
    RowItems,
    Strategy,
    cut_windows,
)


def _pack(lengths: AnyInts, seq_len: int, overlap: int, _: int) -> Packed:
    windows = cut_windows(lengths, seq_len, overlap)
    rows = np.arange(len(windows.slots))
    return PackedWindows(windows, len(rows), lambda: RowItems(np.ones_like(rows), rows))


PAD = Strategy("pad", "one window a row", _pack)
