"""The contract of a table of rows, between planning and everything that reads rows."""

from __future__ import annotations

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from typing import Any, Generic, NamedTuple, Protocol, Self, SupportsIndex, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyInts, Ints, by_value
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import numbered_by_source


@dataclass(frozen=True)
class TokenCounts:
    """Totals of some rows; in slots (= tokens), except `rows` and documents.

    >>> TokenCounts(rows=2, slots=8, padding=1) - TokenCounts(rows=1, slots=4)
    TokenCounts(rows=1, begun=0, slots=4, trained_tokens=0, overlap_tokens=0, padding=1, finished=0)
    """

    rows: int = 0
    begun: int = 0
    """documents whose first token is in these rows; one that is read twice counts twice"""
    slots: int = 0
    trained_tokens: int = 0
    """targets with loss, stored masks not counted"""
    overlap_tokens: int = 0
    """slots of masked context"""
    padding: int = 0
    finished: int = 0
    """documents whose last token is in these rows"""

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: TokenCounts) -> TokenCounts:
        return self + other * -1

    def __mul__(self, times: int) -> TokenCounts:
        return TokenCounts(*(times * value for value in astuple(self)))

    def described(self) -> dict[str, int]:
        """The totals as reports of a run and of its plan call them."""
        return {
            "rows": self.rows,
            "documents_begun": self.begun,
            "documents_finished": self.finished,
            "tokens": self.trained_tokens,
            "padding": self.padding,
        }


def row_number(index: SupportsIndex, rows: int) -> int:
    """The row at an index; a negative one counts from the end of an epoch of `rows` rows.

    >>> [row_number(index, 5) for index in (3, 8, -1, -6)]
    [3, 8, 4, 4]
    """
    row = operator.index(index)
    if abs(row) > sys.maxsize:
        raise IndexError("row index out of range: it does not fit in 64 bits")
    return row % max(rows, 1) if row < 0 else row


def rows_of_epochs(rows: int, num_epochs: Any) -> int:
    """The rows of several epochs of `rows` rows each; None for epochs without end.

    >>> rows_of_epochs(5, 3), rows_of_epochs(5, None) > 10**18
    (15, True)
    """
    if num_epochs is None:
        return sys.maxsize if rows else 0
    if not isinstance(num_epochs, int) or num_epochs < 1:
        raise InputError(
            f"repeat({num_epochs!r}): expected a whole number of epochs of at least 1, or None for "
            "epochs without end; mix(..., epochs={name: 1.5}) takes fractions"
        )
    if rows * num_epochs > sys.maxsize:
        raise InputError(f"repeat({num_epochs}) of {rows:,} rows: expected fewer than 2^63 rows")
    return rows * num_epochs


@dataclass(frozen=True)
class Interval:
    """Rows `[start, start + rows)` of a mixture, in which the shares do not change."""

    start: int
    rows: int
    phase: int
    """number of the phase in the mixture's `phases`"""
    shares: Mapping[str, float]
    """share of the trained tokens, of each source that has one"""


@dataclass(frozen=True)
class Exhaustion:
    """A source runs dry: it has no row for `row` of the mixture."""

    source: str
    phase: int
    row: int

    def __str__(self) -> str:
        return f"source {self.source!r} runs dry in phase {self.phase} at row {self.row}"


Key = NDArray[np.uint64]
_MASKS = [
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F))
]


class KeyedRows(Protocol):
    """Rows that know their place in a batch."""

    @property
    def lanes(self) -> int:
        """Most lanes of a source; 1: the rows of a batch keep their order."""
        ...

    def batch_key(self, rows: Ints) -> Key:
        """What sorts some rows in a batch, (rows,): each row's lane, as a fraction of 2**64.

        Rows of sources without lanes are spread evenly.
        """
        ...


def reversed_bits(numbers: Ints) -> NDArray[np.uint64]:
    """Numbers with their 64 bits reversed.

    >>> (reversed_bits(np.array([0, 1, 2, 3])) >> np.uint64(62)).tolist()
    [0, 2, 1, 3]
    """
    value = numbers.astype(np.uint64)
    for shift, mask in _MASKS:
        value = ((value >> shift) & mask) | ((value & mask) << shift)
    return value.byteswap()


def joint(tables: Ints, find: Callable[[int, Ints], Ints]) -> Ints:
    """A number of each of some rows that several tables hold; int64 (rows,).

    Args:
        tables: (rows,) number of the table that holds each row.
        find: finds the numbers of the rows of one table, given its number and which they are.
    """
    found = np.empty(len(tables), np.int64)
    for number, mine in by_value(tables):
        found[mine] = find(number, mine)
    return found


def in_batch_order(keyed: KeyedRows, rows: Ints) -> Ints:
    """The rows of a batch, given in increasing order, as the batch holds them."""
    if keyed.lanes == 1:
        return rows
    return rows[np.argsort(keyed.batch_key(rows), kind="stable")]


Array = TypeVar("Array", default=NDArray[Any])
Batch = dict[str, NDArray[Any]]


class Row(TypedDict, Generic[Array]):
    """The arrays of a row, (seq_len,) each; of a batch in jaxdata's layout, (batch, seq_len).

    For annotations: `Row` is of numpy arrays, `Loader[Row[jax.Array]]` gives batches on devices.
    """

    inputs: Array
    """int32, 0 in padding"""
    targets: Array
    """int32, 0 in padding"""
    loss_mask: Array
    """bool"""
    segment_ids: Array
    """int32, 1, 2, … in the row, 0 in padding"""
    positions: Array
    """int32, from 0 in each segment, or in each row"""


class RowShape(NamedTuple):
    """What the rows of a batch have in common."""

    seq_len: int
    positions: str
    multiple: int


POSITIONS = ("segment", "row")
MOST_SLOTS = 2**30
"""of a row: positions and windows are int32"""


@dataclass(frozen=True)
class Segments:
    """Segments of some rows, sorted by row and in row order; int64 (segments,) each."""

    row: Ints
    """number of the row among the requested ones"""
    source: Ints
    """number of the source in the table's `documents`"""
    document: Ints
    start: Ints
    slots: Ints
    context: Ints
    """masked context: first slots whose targets were trained in the previous window"""

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All of the above, in order."""
        return self.row, self.source, self.document, self.start, self.slots, self.context

    def take(self, chosen: Ints | slice) -> Self:
        """Some of the segments."""
        return type(self)(*[column[chosen] for column in self.columns])

    @classmethod
    def gather(cls, table: Ints, find: Callable[[int, Ints], Self]) -> Self:
        """Segments of rows that several tables hold.

        Args:
            table: the number of the table that holds each row.
            find: finds the segments of the rows of one table, given its number and which they are.
        """
        parts = []
        for number, mine in by_value(table):
            found = find(number, mine)
            parts.append(replace(found, row=mine[found.row]))
        return cls.join(parts)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Segments of several lookups as one, sorted by row."""
        if len(parts) == 1:
            return parts[0]
        nothing = [np.empty(0, np.int64)] * 6  # a host's share of the last batch may be all padding
        columns = zip(nothing, *(part.columns for part in parts), strict=True)
        joined = cls(*[np.concatenate(column) for column in columns])
        return joined.take(np.argsort(joined.row, kind="stable"))


class ReadRanges(NamedTuple):
    """Segments as rows hold them, and the ranges of tokens to read for them.

    The ranges of a segment, end to end, are its inputs and the target of its last slot; where the
    segment has ended they lack the latter.
    """

    segments: Segments
    ended: NDArray[np.bool_]
    """(segments,) the last slot has no target"""
    ranges: Segments
    """source, document and start of each range"""
    tokens: Ints
    """(ranges,) tokens in each"""
    owner: Ints
    """(ranges,) number of the segment that each belongs to; non-decreasing"""


def segment_work(slots: AnyInts, window: int) -> Ints:
    """See `RowTable.row_work`; (segments,).

    >>> segment_work(np.array([3, 8]), 5).tolist()
    [9, 55]
    """
    wide = slots.astype(np.int64)
    work: Ints = wide**2 - np.maximum(wide - window, 0) ** 2
    return work


class RowTable(ABC):
    """Rows as a pure function of their index: packing and mixing make them, loaders read them.

    No data is read to find the segments of a row. The same index gives the same row on every
    host, in every process, at any time. A new kind of rows implements the three abstract methods
    and sets the attributes; the other methods answer questions that only some rows raise.
    """

    seq_len: int
    """slots of a row; of the first section, where rows change shape"""
    positions: str
    """where positions restart: one of `POSITIONS`"""
    multiple = 1
    """each segment takes a multiple of so many slots, of which the last may be padding"""
    documents: Sequence[Documents]
    """the documents that `Segments.source` numbers"""
    ends = False
    """whether there are no rows beyond the last; else they are those of further epochs"""
    intervals: Sequence[Interval] = ()
    """runs of rows in which the shares of a mixture do not change; none where nothing mixes"""
    exhaustions: Sequence[Exhaustion] = ()
    """where the sources of a mixture run dry"""

    @property
    def shape(self) -> RowShape:
        """What sections differ in."""
        return RowShape(self.seq_len, self.positions, self.multiple)

    @shape.setter
    def shape(self, shape: RowShape) -> None:
        self.seq_len, self.positions, self.multiple = shape

    @property
    def in_words(self) -> str:
        """What the rows are, in a few words."""
        return f"{len(self):,} rows of {self.seq_len:,}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_words})"

    @property
    def lanes(self) -> int:
        """See `KeyedRows`."""
        return 1

    @abstractmethod
    def __len__(self) -> int:
        """Rows of one epoch, or of the whole mixture."""

    @abstractmethod
    def segments(self, rows: Ints) -> Segments:
        """Segments of `rows` (any order, any epoch); int64 (rows,)."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row: plain JSON values, long ones as digests."""

    @property
    def open_bytes(self) -> int | None:
        """Bytes of documents that consecutive rows are read from; None for all of them."""
        return None

    def turns(self, rows: Ints) -> Ints:
        """The lane of each row, its bits reversed: lanes take rows in turn (see `Lanes`)."""
        return rows

    def batch_key(self, rows: Ints) -> Key:
        """See `KeyedRows`."""
        return reversed_bits(self.turns(rows))

    def row_work(self, rows: Ints, window: int) -> Ints:
        """The work of attention in some rows: the sum of n² over their segments; int64 (rows,).

        With a sliding window of *w* tokens a segment costs n² - max(n - w, 0)²: about twice the
        pairs of slots that see each other. Padding costs nothing. No data is read.
        """
        found = self.segments(rows)
        total = np.append(0, np.cumsum(segment_work(found.slots, window)))
        return np.diff(total[np.searchsorted(found.row, np.arange(len(rows) + 1))])

    def read_ranges(self, found: Segments, ended: NDArray[np.bool_]) -> ReadRanges:
        """Return the ranges of tokens that some of its segments are read from.

        Args:
            found: as `segments` returned them, sorted by row.
            ended: (segments,) whether the last slot of each holds its document's last token.
        """
        return ReadRanges(found, ended, found, found.slots + ~ended, np.arange(len(ended)))

    def sections(self) -> Sequence[tuple[int, RowTable]]:
        """Where rows change shape (see `RowShape`): first row, and the table to read there.

        Row numbers are the same in all of them.
        """
        return [(0, self)]

    def section_at(self, row: int) -> RowTable:
        """The table to read at a row."""
        return [table for start, table in self.sections() if start <= row][-1]

    @property
    def sources(self) -> Mapping[str, RowTable]:
        """One epoch of each source, by name; empty where rows are not made of epochs of sources."""
        return {}

    @property
    def names(self) -> list[str]:
        """Names of the sources, as `origins` numbers them."""
        return list(self.sources) or [each.name for each in self.documents]

    def origins(self, found: Segments) -> Segments:
        """The same segments in terms of `sources`: number of the source, document, start there.

        Differs from `found` only where an amendment repacked the remainder of a source, and where
        documents are those of a view: here they have the numbers of the source itself.
        """
        return numbered_by_source(self.documents, found)

    def rows_with(self, _name: str, _document: int, _rows: int | None = None) -> list[int]:
        """Rows that hold a part of a document of a source, of the first `rows` (default: all).

        Increasing; no row is scanned.
        """
        raise InputError("these rows cannot be searched: expected rows as pack and mix return them")

    def token_counts(self, _rows: int) -> dict[str, TokenCounts]:
        """Totals of each source, by name, in the first `rows` rows, over any number of epochs.

        Takes as long as planning one block of each source, whatever the number of rows.
        """
        raise InputError(
            "the tokens of these rows cannot be counted without reading them: expected rows as "
            "pack and mix return them"
        )

    def total(self, rows: int) -> TokenCounts:
        """Totals of all sources in the first `rows` rows."""
        return sum(self.token_counts(rows).values(), TokenCounts())

    def epochs(self, rows: int) -> dict[str, Fraction]:
        """Epochs of each source, by name, that the first `rows` rows read."""
        return {
            name: Fraction(counts.rows, max(len(self.sources[name]), 1))
            for name, counts in self.token_counts(rows).items()
        }

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """Changes of the recipe on the way, by first row: plain JSON values, long ones digests."""
        return []

    def end(self) -> SourceExhausted | None:
        """The error that ends a loader after the last row, where a mixture misses its budget."""
        return None


class JoinedRows(RowTable):
    """Rows that other tables hold."""

    held: Sequence[RowTable]
    """these tables, each of one source: the documents of the first, of the second …"""

    @abstractmethod
    def located(self, rows: Ints) -> tuple[Ints, Ints]:
        """The number of the table that holds each row, and the row's number there."""

    @cached_property
    def lanes(self) -> int:
        return max(table.lanes for table in self.held)

    def segments(self, rows: Ints) -> Segments:
        table, row = self.located(rows)

        def find(number: int, mine: Ints) -> Segments:
            found = self.held[number].segments(row[mine])
            return replace(found, source=found.source + number)

        return Segments.gather(table, find)

    def turns(self, rows: Ints) -> Ints:
        table, row = self.located(rows)
        return joint(table, lambda number, mine: self.held[number].turns(row[mine]))

    def row_work(self, rows: Ints, window: int) -> Ints:
        table, row = self.located(rows)
        return joint(table, lambda number, mine: self.held[number].row_work(row[mine], window))
