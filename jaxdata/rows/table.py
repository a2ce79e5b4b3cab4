"""What a table of rows is: the contract between planning and everything that reads rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.documents import Documents

__all__ = [
    "EDGES",
    "POSITIONS",
    "Batch",
    "RowTable",
    "Segments",
    "brief",
    "edges",
    "origins",
    "section_at",
    "sections",
]

Ints = NDArray[np.int64]
Batch = dict[str, NDArray[Any]]
POSITIONS = ("segment", "row")
EDGES = ("closed", "crossed", "open")
"""What the edge of a document is to a row: no target lies beyond it; a target may, but segments end
there; nothing, the row is one segment (the latter two only in the orders of other tools)."""


@dataclass(frozen=True)
class Segments:
    """Segments of some rows, row by row in the order they lie there; int64 (segments,) each."""

    row: Ints
    """number of the row among those asked for"""
    source: Ints
    """number of the source in the table's `documents`"""
    document: Ints
    start: Ints
    slots: Ints
    lead: Ints
    """first slots whose targets were trained in an earlier window"""

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All of the above, in order."""
        return self.row, self.source, self.document, self.start, self.slots, self.lead

    def take(self, chosen: Ints | slice) -> Self:
        """Some of the segments."""
        return type(self)(*[column[chosen] for column in self.columns])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Segments of several lookups as one, sorted by row."""
        if len(parts) == 1:
            return parts[0]
        nothing = [np.empty(0, np.int64)] * 6  # a host's part of a last batch may be all padding
        columns = zip(nothing, *(part.columns for part in parts), strict=True)
        joined = cls(*[np.concatenate(column) for column in columns])
        return joined.take(np.argsort(joined.row, kind="stable"))


class RowTable(Protocol):
    """Rows as a pure function of their index: what packing and mixing make, and loaders read.

    Nothing is read from disk to know which segments make up a row. The same index gives the same
    row on every host, in every process, at any time.
    """

    @property
    def seq_len(self) -> int:
        """Slots of a row."""
        ...

    @property
    def positions(self) -> str:
        """Where positions restart: one of `POSITIONS`."""
        ...

    @property
    def documents(self) -> Sequence[Documents]:
        """The sources that `Segments.source` counts."""
        ...

    def __len__(self) -> int:
        """Rows of one epoch, or of the whole mixture."""
        ...

    def segments(self, rows: Ints) -> Segments:
        """Segments of `rows` (any order, any epoch); int64 (rows,)."""
        ...

    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row: plain JSON values, long ones as digests."""
        ...


def sections(table: RowTable) -> list[tuple[int, RowTable]]:
    """Where the rows of a table take another shape (`seq_len`, `positions`).

    The first row of each part, and the table as it is to be read there: by the same row numbers.
    """
    found: list[tuple[int, RowTable]] | None = getattr(table, "sections", None)
    return found or [(0, table)]


def edges(table: RowTable) -> str:
    """What the edge of a document is to the rows of a table, one of `EDGES`; closed as a rule."""
    return getattr(table, "edges", "closed")


def section_at(table: RowTable, row: int) -> RowTable:
    """The table as it is to be read at a row."""
    return [part for start, part in sections(table) if start <= row][-1]


def origins(table: RowTable, found: Segments) -> Segments:
    """Segments as the dataset counts: source, document and start, whatever was packed anew."""
    traced: Segments = table.origins(found) if hasattr(table, "origins") else found
    return traced


def brief(value: Any, most: int = 160) -> Any:
    """A fact as it is where it is short, else the first 8 hex digits of its sha256."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= most else hashlib.sha256(text.encode()).hexdigest()[:8]
