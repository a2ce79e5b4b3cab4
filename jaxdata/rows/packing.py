"""The four packing strategies: pure functions from document lengths to a plan of rows.

All work on one block; `placement` decides which window lies in which row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.rows.placement import Placement, place_best_fit, place_crop
from jaxdata.rows.windows import Windows, cut_windows, stable_order

__all__ = ["STRATEGIES", "BlockPlan", "plan_block"]


@dataclass(frozen=True)
class BlockPlan:
    """Rows of one block as segments, row by row; int64 arrays.

    Segment *k* of the block belongs to row *r* where `row_starts[r] <= k < row_starts[r + 1]`.
    """

    row_starts: NDArray[np.int64]
    """(rows + 1,)"""
    document: NDArray[np.int64]
    """(segments,) number of the document in the block"""
    start: NDArray[np.int64]
    """(segments,) its first token here"""
    slots: NDArray[np.int64]
    """(segments,) slots it fills"""
    lead: NDArray[np.int64]
    """(segments,) first slots whose targets were trained before"""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1

    def in_document_order(self) -> BlockPlan:
        """The same rows, those with the earliest documents first, and so inside each row."""
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        inside = np.lexsort((self.start, self.document, row))
        first = inside[self.row_starts[:-1]]
        order = np.lexsort((self.start[first], self.document[first]))
        rank = np.empty_like(order)
        rank[order] = np.arange(self.rows)
        by_row = np.lexsort((self.start, self.document, rank[row]))
        row_starts = np.append(0, np.cumsum(np.diff(self.row_starts)[order]))
        columns = (self.document, self.start, self.slots, self.lead)
        return BlockPlan(row_starts, *(column[by_row] for column in columns))


def plan_block(
    lengths: ArrayLike,
    *,
    seq_len: int,
    strategy: str = "best_fit",
    overlap: int = 0,
    max_segments: int | None = None,
) -> BlockPlan:
    """Pack the documents of one block.

    Args:
        lengths: (documents,) tokens of each, EOD included.
        seq_len: slots of a row.
        strategy: a name in `STRATEGIES`.
        overlap: tokens that a window repeats of the one before it.
        max_segments: most segments in a row; None for no limit.

    >>> plan = plan_block([5, 4, 3, 2], seq_len=5, strategy="best_fit")
    >>> plan.row_starts.tolist(), plan.document.tolist(), plan.slots.tolist()
    ([0, 2, 4], [0, 3, 1, 2], [4, 1, 3, 2])
    """
    limit = max_segments or seq_len
    return STRATEGIES[strategy](np.asarray(lengths, np.int64), seq_len, overlap, limit)


def _best_fit(lengths: NDArray[np.int64], seq_len: int, overlap: int, limit: int) -> BlockPlan:
    windows = cut_windows(lengths, seq_len, overlap)
    return _arrange(windows, place_best_fit(windows.slots, seq_len, limit))


def _pad(lengths: NDArray[np.int64], seq_len: int, overlap: int, _: int) -> BlockPlan:
    windows = cut_windows(lengths, seq_len, overlap)
    each = np.arange(len(windows.slots))
    return _arrange(windows, (each, each, windows.slots))


def _crop(lengths: NDArray[np.int64], seq_len: int, _: int, limit: int) -> BlockPlan:
    whole = np.flatnonzero(lengths > 1)
    nothing = np.zeros(len(whole), np.int64)
    windows = Windows(whole, nothing, lengths[whole] - 1, nothing)
    return _arrange(windows, place_crop(windows.slots, seq_len, limit))


def _concat(lengths: NDArray[np.int64], seq_len: int, _: int, limit: int) -> BlockPlan:
    ends = np.cumsum(lengths)
    begins = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    cuts = _cuts(begins, ends, seq_len, limit)
    pieces = np.union1d(begins[begins < total], cuts)
    document = np.searchsorted(begins, pieces, side="right") - 1
    slots = np.diff(pieces, append=total)
    row_starts = np.append(np.searchsorted(pieces, cuts), len(pieces))
    lead = np.zeros(len(pieces), np.int64)
    return BlockPlan(row_starts, document, pieces - begins[document], slots, lead)


STRATEGIES: dict[str, Callable[[NDArray[np.int64], int, int, int], BlockPlan]] = {
    "best_fit": _best_fit,
    "concat": _concat,
    "crop": _crop,
    "pad": _pad,
}


def _cuts(
    begins: NDArray[np.int64], ends: NDArray[np.int64], seq_len: int, limit: int
) -> NDArray[np.int64]:
    """Where the rows of a stream of documents begin."""
    total = int(ends[-1]) if len(ends) else 0
    if limit >= seq_len:
        return np.arange(0, total, seq_len)
    filled = begins[ends > begins]
    cuts, position = [], 0
    while position < total:
        cuts.append(position)
        beyond = int(np.searchsorted(filled, position, side="right")) - 1 + limit
        full = position + seq_len
        position = min(full, int(filled[beyond])) if beyond < len(filled) else full
    return np.asarray(cuts, np.int64)


def _arrange(windows: Windows, placement: Placement) -> BlockPlan:
    item, row, slots = placement
    rows = int(row.max(initial=-1)) + 1
    order = stable_order(row, rows)
    item, slots = item[order], slots[order]
    row_starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return BlockPlan(
        row_starts, windows.document[item], windows.start[item], slots, windows.lead[item]
    )
