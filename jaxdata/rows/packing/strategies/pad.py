"""The strategy `pad`: one window a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize, Packed, Strategy
from jaxdata.rows.packing.windows import Windows, cut_windows


@dataclass(frozen=True)
class PaddedWindows:
    """Windows, each in a row of its own (see `Packed`)."""

    windows: Windows

    def size(self) -> BlockSize:
        return self.windows.size(len(self.windows.slots))

    def plan(self) -> BlockPlan:
        found = self.windows
        row_starts, context = np.arange(len(found.start) + 1), found.context(found.start)
        return BlockPlan(row_starts, found.document, found.start, found.slots, context)


def _pack(lengths: AnyInts, seq_len: int, overlap: int, _: int) -> Packed:
    return PaddedWindows(cut_windows(lengths, seq_len, overlap))


PAD = Strategy("pad", "one window a row", _pack)
