"""What a packing strategy is, and its result for a block: the plan of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from jaxdata.ragged import AnyInts, Ints, stable_order
from jaxdata.seeds import Permutation


@dataclass(frozen=True)
class BlockPlan:
    """Rows of one block as segments, row by row; int32 or int64 arrays.

    Segment *k* of the block belongs to row *r* where `row_starts[r] <= k < row_starts[r + 1]`.
    """

    row_starts: AnyInts
    """(rows + 1,)"""
    document: AnyInts
    """(segments,) number of the document in the block"""
    start: AnyInts
    """(segments,) its first token here"""
    slots: AnyInts
    """(segments,) slots it fills"""
    context: AnyInts
    """(segments,) masked context: first slots whose targets were trained in the previous window"""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_starts) - 1

    def in_random_order(self, key: int) -> BlockPlan:
        """The same rows, the segments of each in an order keyed by `key`."""
        order = Permutation(len(self.document), key)(np.arange(len(self.document)))
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        order = order[stable_order(row[order], self.rows)]
        columns = (self.document, self.start, self.slots, self.context)
        return BlockPlan(self.row_starts, *(column[order] for column in columns))

    def in_document_order(self) -> BlockPlan:
        """The same rows, sorted by their earliest document, and each row sorted by document."""
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        inside = np.lexsort((self.start, self.document, row))
        first = inside[self.row_starts[:-1]]
        order = np.lexsort((self.start[first], self.document[first]))
        rank = np.empty_like(order)
        rank[order] = np.arange(self.rows)
        by_row = np.lexsort((self.start, self.document, rank[row]))
        row_starts = np.append(0, np.cumsum(np.diff(self.row_starts)[order]))
        columns = (self.document, self.start, self.slots, self.context)
        return BlockPlan(row_starts, *(column[by_row] for column in columns))


@dataclass(frozen=True)
class BlockSize:
    """Totals of one block; in slots, except `rows` and `begun`."""

    rows: int
    filled: int
    """slots that are not padding"""
    trained: int
    """targets with loss, stored masks not counted"""
    overlap: int
    """slots of masked context"""
    begun: int
    """documents whose first slot is in a row"""


class BlockTable(NamedTuple):
    """Totals of each block of a source, as in `BlockSize`; int64 (blocks,) each."""

    first: Ints
    """first document, in shuffled order"""
    documents: Ints
    rows: Ints
    targets: Ints
    """tokens of its documents, without the first of each"""
    trained: Ints
    filled: Ints
    overlap: Ints
    begun: Ints


class Packed(Protocol):
    """A packed block: its size is cheaper than its rows."""

    def size(self) -> BlockSize:
        """Totals of the rows."""
        ...

    def plan(self) -> BlockPlan:
        """The rows."""
        ...


Pack = Callable[[AnyInts, int, int, int], Packed]
"""(lengths, seq_len, overlap, most segments in a row) -> the packed block"""


@dataclass(frozen=True)
class Strategy:
    """A way to pack the documents of a block into rows."""

    name: str
    description: str
    """one line, for comparisons"""
    pack: Pack
    mixed: Pack | None = None
    """packs under order 2, if that is another way: rows mix lengths"""
    streams: bool = False
    """whether a row continues the one before; else its segments come in any order"""
    takes_overlap: bool = True
    """whether it cuts windows, which can repeat tokens of the one before"""
    keeps_all: bool = True
    """whether every target is in a row; if not, rows hold beginnings of documents, the rest is
    dropped, and evaluation uses another strategy"""
