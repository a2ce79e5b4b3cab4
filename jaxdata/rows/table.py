"""The contract of a table of rows, between planning and everything that reads rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, NamedTuple, Self, TypedDict

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from jaxdata.documents.base import Documents
from jaxdata.documents.kept import numbered_by_source
from jaxdata.errors import InputError, SourceExhausted
from jaxdata.notebook import table_html
from jaxdata.ragged import Ints
from jaxdata.rows.batch_order import Key, reversed_bits
from jaxdata.rows.counts import TokenCounts
from jaxdata.rows.intervals import Exhaustion, Interval

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
    def gather(cls, table: Ints, find: Callable[[int, Ints | slice], Self]) -> Self:
        """Segments of rows that several tables hold.

        Args:
            table: the number of the table that holds each row.
            find: finds the segments of the rows of one table, given its number and which they are.
        """
        if len(table) and table.min() == table.max():  # as a rule, within a source
            return find(int(table[0]), slice(None))
        parts = []
        for number in sorted(set(table.tolist())):
            mine = np.flatnonzero(table == number)
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
    documents: Sequence[Documents]
    """the documents that `Segments.source` numbers"""
    ends = False
    """whether there are no rows beyond the last; else they are those of further epochs"""
    merges_documents = False
    """whether one segment may span several documents (in the order of other tools)"""

    @property
    def in_words(self) -> str:
        """What the rows are, in a few words."""
        return f"{len(self):,} rows of {self.seq_len:,}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_words})"

    def html(self, title: str) -> str:
        """What a notebook shows of the rows."""
        return table_html(title, ["source", "rows"], [(n, len(t)) for n, t in self.sources.items()])

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

    @property
    def lane_cycle(self) -> tuple[int, int] | None:
        """(rows of an epoch, lanes) where these alone decide the keys: see `cyclic_key`."""
        return None

    def batch_key(self, rows: Ints) -> Key:
        """See `KeyedRows`."""
        return reversed_bits(rows)

    def read_ranges(self, found: Segments, ended: NDArray[np.bool_]) -> ReadRanges:
        """Return the ranges of tokens that some of its segments are read from.

        Args:
            found: as `segments` returned them, sorted by row.
            ended: (segments,) whether the last slot of each holds its document's last token.
        """
        return ReadRanges(found, ended, found, found.slots + ~ended, np.arange(len(ended)))

    def sections(self) -> Sequence[tuple[int, RowTable]]:
        """Where rows change shape (`seq_len`, `positions`): first row, and the table to read there.

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
    def intervals(self) -> Sequence[Interval]:
        """Runs of rows in which the shares of a mixture do not change; none where nothing mixes."""
        return ()

    @property
    def exhaustions(self) -> Sequence[Exhaustion]:
        """Where the sources of a mixture run dry."""
        return ()

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """Changes of the recipe on the way, by first row: plain JSON values, long ones digests."""
        return []

    def end(self) -> SourceExhausted | None:
        """The error that ends a loader after the last row, where a mixture misses its budget."""
        return None
