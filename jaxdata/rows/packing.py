"""The four packing strategies: pure functions from document lengths to a plan of rows.

All work on one block; `placement` decides which window lies in which row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.rows.best_fit import place_best_fit
from jaxdata.rows.concat import cut_stream
from jaxdata.rows.placement import Placement, place_crop
from jaxdata.rows.plans import BlockPlan, BlockSize, Packed
from jaxdata.rows.windows import Windows, cut_windows

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
    """Windows, each in one row (see `Packed`)."""

    windows: Windows
    placement: Placement

    def size(self) -> BlockSize:
        return _size(self.windows, self.placement.rows)

    def plan(self) -> BlockPlan:
        row_starts, place = self.placement.lay_out()
        item = np.empty_like(place)
        item[place] = self.placement.items()
        columns = (self.windows.document, self.windows.start, self.windows.slots)
        document, start, slots = (column[item] for column in columns)
        return BlockPlan(row_starts, document, start, slots, self.windows.lead(start))


@dataclass(frozen=True)
class _PaddedWindows:
    """Windows, each in a row of its own (see `Packed`)."""

    windows: Windows

    def size(self) -> BlockSize:
        return _size(self.windows, len(self.windows.slots))

    def plan(self) -> BlockPlan:
        found = self.windows
        row_starts, lead = np.arange(len(found.start) + 1), found.lead(found.start)
        return BlockPlan(row_starts, found.document, found.start, found.slots, lead)


def _size(windows: Windows, rows: int) -> BlockSize:
    filled = int(windows.slots.sum(dtype=np.int64))
    again = int(np.count_nonzero(windows.start))  # windows that do not begin their document
    overlap, begun = again * windows.overlap, len(windows.start) - again
    return BlockSize(rows, filled, filled - overlap, overlap, begun)


def _best_fit(lengths: Ints, seq_len: int, overlap: int, limit: int) -> Packed:
    windows = cut_windows(lengths, seq_len, overlap)
    return _PlacedWindows(windows, place_best_fit(windows.slots, seq_len, limit))


def _pad(lengths: Ints, seq_len: int, overlap: int, _: int) -> Packed:
    return _PaddedWindows(cut_windows(lengths, seq_len, overlap))


def _crop(lengths: Ints, seq_len: int, _: int, limit: int) -> Packed:
    whole = np.flatnonzero(lengths > 1)
    nothing = np.zeros(len(whole), lengths.dtype)
    placement = place_crop(lengths[whole] - 1, seq_len, limit)
    slots = np.empty_like(nothing)
    slots[placement.items()] = placement.slots()
    return _PlacedWindows(Windows(whole, nothing, slots, overlap=0), placement)


def _concat(lengths: Ints, seq_len: int, _: int, limit: int) -> Packed:
    return cut_stream(lengths, seq_len, limit)


STRATEGIES: dict[str, Callable[[Ints, int, int, int], Packed]] = {
    "best_fit": _best_fit,
    "concat": _concat,
    "crop": _crop,
    "pad": _pad,
}
