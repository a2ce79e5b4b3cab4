"""What a packing strategy is, and its result for a block: the plan of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from jaxdata.base.ragged import AnyInts, Ints, consecutive, stable_order
from jaxdata.base.seeds import shuffled_groups


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

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.row_starts.nbytes + sum(column.nbytes for column in self._columns)

    @property
    def _columns(self) -> tuple[AnyInts, ...]:
        return self.document, self.start, self.slots, self.context

    def segments_of(self, rows: Ints) -> tuple[AnyInts, ...]:
        """How many segments each of some rows has, and the columns of all; rows do not decrease."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()):
            starts = self.row_starts[first : last + 2]
            part = slice(int(starts[0]), int(starts[-1]))
            return starts[1:] - starts[:-1], *(column[part] for column in self._columns)
        return self._gathered(rows)

    def _gathered(self, rows: Ints) -> tuple[AnyInts, ...]:
        first = self.row_starts[rows]
        counts = self.row_starts[rows + 1] - first
        at = consecutive(first, counts)
        # All indices are in range, and mode "raise" takes twice as long.
        return counts, *(column.take(at, mode="clip") for column in self._columns)

    def with_rows(self, order: Ints) -> BlockPlan:
        """The same rows in another order."""
        counts, *columns = self._gathered(order)
        return BlockPlan(np.append(0, np.cumsum(counts)), *columns)

    def in_random_order(self, key: int) -> BlockPlan:
        """The same rows, the segments of each in an order keyed by `key`."""
        order = shuffled_groups(np.array([len(self.document)]), [key])
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        order = order[stable_order(row[order], self.rows)]
        return BlockPlan(self.row_starts, *(column[order] for column in self._columns))

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
        return BlockPlan(row_starts, *(column[by_row] for column in self._columns))


@dataclass(frozen=True)
class BlockSize:
    """Totals of one block; in slots, except `rows` and documents."""

    rows: int
    filled: int
    """slots that are not padding"""
    trained: int
    """targets with loss, stored masks not counted"""
    overlap: int
    """slots of masked context"""
    begun: int
    """documents whose first slot is in a row"""
    finished: int
    """documents whose last token is in a row"""


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
    finished: Ints

    @classmethod
    def of(cls, columns: Ints) -> BlockTable:
        """The table of lines (blocks, 8): where all documents are kept, as many end as begin."""
        lines = columns.T
        return cls(*np.concatenate([lines, lines[-1:]])[: len(cls._fields)])


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


PackTogether = Callable[[AnyInts, AnyInts, int, int, int], Sequence[Packed]]
"""(lengths of some blocks, end to end, (blocks + 1,) where each begins, seq_len, overlap, most
segments in a row) -> the packed blocks; none depends on the others"""


StrategyName = Literal["best_fit", "concat", "crop", "pad"]
"""for type checkers: the names in the registry of `strategies/`"""


@dataclass(frozen=True)
class Strategy:
    """A way to pack the documents of a block into rows."""

    name: StrategyName
    description: str
    """one line, for comparisons"""
    pack: Pack
    mixed: PackTogether | None = None
    """packs documents in random order, if that is another way: rows mix lengths"""
    streams: bool = False
    """whether a row continues the one before; else its segments come in any order"""
    takes_overlap: bool = True
    """whether it cuts windows, which can repeat tokens of the one before"""
    keeps_all: bool = True
    """whether every target is in a row; if not, rows hold beginnings of documents, the rest is
    dropped, and evaluation uses another strategy"""
