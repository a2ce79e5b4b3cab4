"""Windows: cutting documents into them, and laying them out in rows as a strategy assigns them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.ragged import AnyInts, Ints, consecutive, expand
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize


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
    overlap: int
    cropped: int = 0
    """documents whose end is in no window"""

    def context(self, start: AnyInts) -> AnyInts:
        """Slots of masked context in windows that begin at `start`; 0 where a document begins."""
        return (start > 0) * start.dtype.type(self.overlap)

    def part(self, first: int, stop: int, document: int) -> Windows:
        """Some of them, of a block that begins with a document."""
        mine = slice(first, stop)
        return Windows(
            self.document[mine] - self.document.dtype.type(document),
            self.start[mine],
            self.slots[mine],
            self.overlap,
        )

    def size(self, rows: int) -> BlockSize:
        """Their totals in `rows` rows."""
        filled = int(self.slots.sum(dtype=np.int64))
        continued = int(np.count_nonzero(self.start))
        overlap, begun = continued * self.overlap, len(self.start) - continued
        return BlockSize(rows, filled, filled - overlap, overlap, begun, begun - self.cropped)


def window_counts(lengths: ArrayLike, seq_len: int, overlap: int) -> AnyInts:
    """Windows of each document; int64 (documents,).

    >>> window_counts([1, 2, 9, 10], seq_len=4, overlap=0).tolist()
    [0, 1, 2, 3]
    """
    return _counted(np.asarray(lengths), seq_len, overlap)[0].astype(np.int64, copy=False)


def _counted(lengths: AnyInts, seq_len: int, overlap: int) -> tuple[AnyInts, AnyInts]:
    """Windows of each document, and the documents that have several."""
    counts = (lengths > 1).astype(lengths.dtype)
    long = np.flatnonzero(lengths > seq_len + 1)
    counts[long] -= (seq_len + 1 - lengths[long]) // (seq_len - overlap)
    return counts, long


def cut_windows(lengths: ArrayLike, seq_len: int, overlap: int) -> Windows:
    """Cut documents of `lengths` tokens into windows of at most `seq_len` pairs.

    >>> cut_windows([9], seq_len=4, overlap=1).slots.tolist()
    [4, 4, 2]
    """
    given = np.asarray(lengths)
    counts, long = _counted(given, seq_len, overlap)
    document = np.repeat(np.arange(len(given), dtype=given.dtype), counts)
    start = np.zeros(len(document), given.dtype)
    slots = given[document]
    slots -= 1
    several = np.flatnonzero(slots > seq_len)  # few: the others begin at 0
    _, number = expand(counts[long])
    begin = number * (seq_len - overlap)
    start[several], slots[several] = begin, np.minimum(slots[several] - begin, seq_len)
    return Windows(document, start, slots, overlap)


class Assigned(Protocol):
    """Items assigned to rows, in some form."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    def by_row(self) -> tuple[AnyInts, AnyInts]:
        """(rows + 1,) where each row begins, and (items,) the items of all rows."""
        ...


@dataclass(frozen=True)
class BinAssignment:
    """Items assigned to rows, run by run: `each` items to each of `count` rows."""

    runs: NDArray[np.int64]
    """(runs, 5): first row, count, items already in each row, each, slots of every item; in order
    of placing"""
    rows: int
    """number of rows"""
    items: Callable[[], AnyInts]
    """gives (items,): the number of each item, in order of placing"""

    def slots(self) -> AnyInts:
        """(items,) slots of each, in order of placing."""
        _, count, _, each, slots = self.runs.T
        return np.repeat(slots, count * each)

    def lay_out(self) -> tuple[AnyInts, AnyInts]:
        """With rows end to end: (rows + 1,) where each begins, (items,) position of each item."""
        first, count, held, each, _ = self.runs.T
        begun, ended = (np.bincount(at, each, self.rows + 1) for at in (first, first + count))
        in_row = np.cumsum(begun - ended).astype(np.int64)
        row_starts = np.cumsum(in_row) - in_row
        # Row by row of every run, and then item by item of every row:
        row = consecutive(first, count)
        items = np.repeat(each, count)
        begin = row_starts[row] + np.repeat(held, count)
        return row_starts, consecutive(begin, items)

    def by_row(self) -> tuple[AnyInts, AnyInts]:
        """(rows + 1,) where each row begins, and (items,) the items of all rows."""
        row_starts, position = self.lay_out()
        item = np.empty_like(position)
        item[position] = self.items()
        return row_starts, item


class RowItems(NamedTuple):
    """The items of rows, end to end."""

    counts: AnyInts
    """(rows,) items of each row"""
    items: Ints
    """(items,) their numbers"""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.counts)

    def by_row(self) -> tuple[AnyInts, AnyInts]:
        """(rows + 1,) where each row begins, and (items,) the items of all rows."""
        return np.append(0, np.cumsum(self.counts)), self.items

    @classmethod
    def of(cls, assigned: Assigned) -> RowItems:
        """What was assigned in any way."""
        row_starts, items = assigned.by_row()
        return cls(np.diff(row_starts), items.astype(np.int64, copy=False))

    @classmethod
    def of_lists(cls, rows: Sequence[Sequence[int]]) -> RowItems:
        """Rows as Python lists."""
        flat = [item for row in rows for item in row]
        return cls(np.fromiter(map(len, rows), np.int64, len(rows)), np.array(flat, np.int64))

    def numbered(self, items: Ints) -> RowItems:
        """The same rows of `items`: item *k* is `items[k]`."""
        return RowItems(self.counts, items[self.items])

    def take(self, chosen: NDArray[np.bool_]) -> RowItems:
        """Some of the rows."""
        return RowItems(self.counts[chosen], self.items[np.repeat(chosen, self.counts)])

    @classmethod
    def chain(cls, parts: Sequence[RowItems]) -> RowItems:
        """The rows of several."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class AssignedWindows:
    """Windows, each in one row (see `Packed`)."""

    windows: Windows
    assignment: Assigned

    def size(self) -> BlockSize:
        return self.windows.size(self.assignment.rows)

    def plan(self) -> BlockPlan:
        row_starts, item = self.assignment.by_row()
        columns = (self.windows.document, self.windows.start, self.windows.slots)
        document, start, slots = (column[item] for column in columns)
        return BlockPlan(row_starts, document, start, slots, self.windows.context(start))
