"""The four packing strategies: pure functions from document lengths to a plan of rows.

All work on one block; `placement` decides which window lies in which row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.rows.concat import cut_stream
from jaxdata.rows.placement import Placement, place_best_fit, place_crop, place_each
from jaxdata.rows.plans import BlockPlan, BlockSize, Packed
from jaxdata.rows.windows import Windows, cut_windows, stable_order

__all__ = ["STRATEGIES", "pack_block"]

Ints = NDArray[np.integer]


def pack_block(
    lengths: ArrayLike,
    *,
    seq_len: int,
    strategy: str = "best_fit",
    overlap: int = 0,
    max_segments: int | None = None,
) -> Packed:
    """Pack the documents of one block.

    Args:
        lengths: (documents,) tokens of each, EOD included.
        seq_len: slots of a row.
        strategy: a name in `STRATEGIES`.
        overlap: tokens that a window repeats of the one before it.
        max_segments: most segments in a row; None for no limit.

    >>> plan = pack_block([5, 4, 3, 2], seq_len=5, strategy="best_fit").plan()
    >>> plan.row_starts.tolist(), plan.document.tolist(), plan.slots.tolist()
    ([0, 2, 4], [0, 3, 1, 2], [4, 1, 3, 2])
    """
    given = np.asarray(lengths)
    # 32 bits where they hold every number: the work is mostly moving memory.
    small = np.int32 if int(given.sum(dtype=np.int64)) < 2**31 else np.int64
    limit = max_segments or seq_len
    return STRATEGIES[strategy](given.astype(small, copy=False), seq_len, overlap, limit)


@dataclass(frozen=True)
class _PlacedWindows:
    """Windows, each in one row, whole or cropped there (see `Packed`)."""

    windows: Windows
    placement: Placement

    def size(self) -> BlockSize:
        filled, overlap = self.placement.filled, int(self.windows.lead.sum())
        begun = int((self.windows.start == 0).sum())
        return BlockSize(self.placement.rows, filled, filled - overlap, overlap, begun)

    def plan(self) -> BlockPlan:
        row, slots = self.placement.row_and_slots()
        order = stable_order(row, self.placement.rows)
        item = self.placement.items()[order]
        segments = np.bincount(row, minlength=self.placement.rows)
        return BlockPlan(
            np.append(0, np.cumsum(segments)),
            self.windows.document[item],
            self.windows.start[item],
            slots[order],
            self.windows.lead[item],
        )


def _best_fit(lengths: Ints, seq_len: int, overlap: int, limit: int) -> Packed:
    windows = cut_windows(lengths, seq_len, overlap)
    return _PlacedWindows(windows, place_best_fit(windows.slots, seq_len, limit))


def _pad(lengths: Ints, seq_len: int, overlap: int, _: int) -> Packed:
    windows = cut_windows(lengths, seq_len, overlap)
    return _PlacedWindows(windows, place_each(windows.slots))


def _crop(lengths: Ints, seq_len: int, _: int, limit: int) -> Packed:
    whole = np.flatnonzero(lengths > 1)
    nothing = np.zeros(len(whole), lengths.dtype)
    windows = Windows(whole, nothing, lengths[whole] - 1, nothing)
    return _PlacedWindows(windows, place_crop(windows.slots, seq_len, limit))


def _concat(lengths: Ints, seq_len: int, _: int, limit: int) -> Packed:
    return cut_stream(lengths, seq_len, limit)


STRATEGIES: dict[str, Callable[[Ints, int, int, int], Packed]] = {
    "best_fit": _best_fit,
    "concat": _concat,
    "crop": _crop,
    "pad": _pad,
}
