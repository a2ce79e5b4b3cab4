"""What packing a block comes to: the plan of its rows, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockPlan", "BlockSize", "Packed"]

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class BlockPlan:
    """Rows of one block as segments, row by row; int32 or int64 arrays.

    Segment *k* of the block belongs to row *r* where `row_starts[r] <= k < row_starts[r + 1]`.
    """

    row_starts: Ints
    """(rows + 1,)"""
    document: Ints
    """(segments,) number of the document in the block"""
    start: Ints
    """(segments,) its first token here"""
    slots: Ints
    """(segments,) slots it fills"""
    lead: Ints
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


@dataclass(frozen=True)
class BlockSize:
    """What the rows of one block amount to; in slots but for `rows`."""

    rows: int
    filled: int
    """slots that are not padding"""
    trained: int
    """targets with loss, stored masks not counted"""
    overlap: int
    """slots whose target was trained in the window before"""
    begun: int
    """documents of which it holds the first slot"""


class Packed(Protocol):
    """A packed block; its size is known before its rows are written out."""

    def size(self) -> BlockSize:
        """What the rows amount to."""
        ...

    def plan(self) -> BlockPlan:
        """The rows."""
        ...
