"""A block packed: windows of its documents, the rows that they are in, and the plan of these rows.

A strategy cuts documents into windows and says which windows share a row. From that come the totals
of the block, which a run needs of every block before its first row, and, when rows of the block are
read, its plan: their segments, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxdata.base.ragged import AnyInts, Ints, consecutive, expand, stable_order
from jaxdata.base.seeds import shuffled_groups


class RowSize(NamedTuple):
    """What fits into a row.

    A segment takes `multiple` slots as often as it needs to; strategies place segments by these
    units, of which a row has `capacity`.
    """

    seq_len: int
    """slots"""
    overlap: int
    """slots of masked context in a window that continues a document"""
    segments: int
    """most"""
    multiple: int = 1
    """slots of a unit; `seq_len` is a multiple of it"""

    @property
    def capacity(self) -> int:
        """Units of a row."""
        return self.seq_len // self.multiple

    def units(self, slots: AnyInts) -> AnyInts:
        """The units that segments take."""
        return slots if self.multiple == 1 else -(-slots // self.multiple)

    def slots(self, units: AnyInts, most: AnyInts) -> AnyInts:
        """The slots of segments that take so many units and have at most so many slots."""
        return units if self.multiple == 1 else np.minimum(units * self.multiple, most)


@dataclass(frozen=True)
class Windows:
    """Windows of the documents of one block, in document order; (windows,) each.

    A window of `slots` (input, target) pairs covers the tokens `[start, start + slots]`. A window
    that does not begin its document starts with `overlap` slots of masked context: tokens whose
    targets were trained in the previous window.
    """

    document: AnyInts
    start: AnyInts
    slots: AnyInts
    overlap: int = 0
    cropped: int = 0
    """documents whose end is in no window"""

    def part(self, first: int, stop: int, document: int) -> Windows:
        """Some of them, of a block that begins with a document."""
        mine = slice(first, stop)
        numbers = self.document[mine] - self.document.dtype.type(document)
        return Windows(numbers, self.start[mine], self.slots[mine], self.overlap)

    def packed(self, rows: int, by_row: Callable[[], RowItems]) -> Packed:
        """The block, where they are in `rows` rows; `by_row` gives the windows of each."""
        filled = int(self.slots.sum(dtype=np.int64))
        continued = int(np.count_nonzero(self.start))
        overlap, begun = continued * self.overlap, len(self.start) - continued
        size = BlockSize(rows, filled, filled - overlap, overlap, begun, begun - self.cropped)
        return Packed(size, lambda: self._plan(by_row()))

    def _plan(self, by_row: RowItems) -> BlockPlan:
        counts, item = by_row
        document, start, slots = (each[item] for each in (self.document, self.start, self.slots))
        context = (start > 0) * start.dtype.type(self.overlap)
        return BlockPlan(np.append(0, np.cumsum(counts)), document, start, slots, context)


def cut_windows(lengths: ArrayLike, seq_len: int, overlap: int) -> Windows:
    """Cut documents of `lengths` tokens into windows of at most `seq_len` pairs.

    >>> cut_windows([9], seq_len=4, overlap=1).slots.tolist()
    [4, 4, 2]
    """
    given = np.asarray(lengths)
    counts = (given > 1).astype(given.dtype)
    long = np.flatnonzero(given > seq_len + 1)
    counts[long] -= (seq_len + 1 - given[long]) // (seq_len - overlap)
    document = np.repeat(np.arange(len(given), dtype=given.dtype), counts)
    start = np.zeros(len(document), given.dtype)
    slots = given[document]
    slots -= 1
    several = np.flatnonzero(slots > seq_len)  # few: the others begin at 0
    _, number = expand(counts[long])
    begin = number * (seq_len - overlap)
    start[several], slots[several] = begin, np.minimum(slots[several] - begin, seq_len)
    return Windows(document, start, slots, overlap)


class RowItems(NamedTuple):
    """The items of rows, end to end."""

    counts: AnyInts
    """(rows,) items of each row"""
    items: Ints
    """(items,) their numbers"""


def rows_in_order(row: Ints) -> RowItems:
    """The items of rows, from the row of each item; -1 is none.

    >>> rows_in_order(np.array([7, -1, 5, 7]))
    RowItems(counts=array([1, 2]), items=array([2, 0, 3]))
    """
    placed = np.flatnonzero(row >= 0)
    numbers = row[placed]
    numbers = numbers - (numbers.min() if len(numbers) else 0)
    order = stable_order(numbers, int(numbers.max(initial=0)))
    edges = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return RowItems(np.diff(edges, append=len(order)), placed[order])


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
    def columns(self) -> tuple[AnyInts, ...]:
        """What is known of the segments."""
        return self.document, self.start, self.slots, self.context

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.row_starts.nbytes + sum(column.nbytes for column in self.columns)

    def segments_of(self, rows: Ints) -> tuple[AnyInts, ...]:
        """How many segments each of some rows has, and the columns of all."""
        first = self.row_starts[rows]
        counts = self.row_starts[rows + 1] - first
        at = consecutive(first, counts)
        # All indices are in range, and mode "raise" takes twice as long.
        return counts, *(column.take(at, mode="clip") for column in self.columns)

    def in_random_order(self, key: int) -> BlockPlan:
        """The same rows, the segments of each in an order keyed by `key`."""
        order = shuffled_groups(np.array([len(self.document)]), [key])
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        order = order[stable_order(row[order], self.rows)]
        return BlockPlan(self.row_starts, *(column[order] for column in self.columns))

    def in_document_order(self) -> BlockPlan:
        """The same rows, sorted by their earliest document, and each row sorted by document."""
        row = np.repeat(np.arange(self.rows), np.diff(self.row_starts))
        inside = np.lexsort((self.start, self.document, row))
        first = inside[self.row_starts[:-1]]
        order = np.lexsort((self.start[first], self.document[first]))
        counts = np.diff(self.row_starts)[order]
        by_row = inside[consecutive(self.row_starts[order], counts)]
        row_starts = np.append(0, np.cumsum(counts))
        return BlockPlan(row_starts, *(column[by_row] for column in self.columns))


class BlockSize(NamedTuple):
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


class Packed(NamedTuple):
    """A packed block: its size is cheaper than its rows."""

    size: BlockSize
    plan: Callable[[], BlockPlan]


Pack = Callable[[AnyInts, RowSize], Packed]
"""(lengths, row) -> the packed block"""
PackTogether = Callable[[AnyInts, AnyInts, RowSize], Sequence[Packed]]
"""(lengths of some blocks, end to end, (blocks + 1,) where each begins, row) -> the packed blocks;
none depends on the others"""
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
