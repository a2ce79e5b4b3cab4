"""Which rows a process needs of each global batch, and making them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.schedule import Span
from jaxdata.feed.skips import Skips
from jaxdata.rows.assembly import assemble
from jaxdata.rows.table import Batch, RowTable

__all__ = ["BatchMaker", "DatasetBatches", "HostPlacement", "Placement", "Share", "TableBatches"]

# Rows that are planned and located in one pass, and their limits: a pass costs about 0.1 ms and
# 0.25 ms for each source, and the first batch waits for the first pass.
_ROWS_A_SOURCE = 256
_FEWEST_SOURCES = 4
_MOST_ROWS = 16_384


class Placement(Protocol):
    """Where the batches of one size go."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Offsets in the global batch of the rows that are wanted here, increasing."""
        ...

    @property
    def works(self) -> bool:
        """Whether `place` has something to do, which a thread could do ahead of time."""
        ...

    def place(self, batch: Batch) -> Any:
        """The batch as it is delivered, from those rows of it."""
        ...


class HostPlacement:
    """Numpy batches of part *i* of *n*: rows `[i B / n, (i + 1) B / n)` of a global batch."""

    works = False

    def __init__(self, batch_size: int, shard: tuple[int, int]) -> None:
        part, parts = shard
        if not 0 <= part < parts:
            raise InputError(f"shard=({part}, {parts}): expected (i, n) with 0 <= i < n")
        if batch_size % parts:
            raise InputError(
                f"batch_size={batch_size} cannot be divided among {parts} shards: batch_size is "
                f"that of all shards together, choose a multiple of {parts}"
            )
        each = batch_size // parts
        self.rows = np.arange(part * each, (part + 1) * each)

    def place(self, batch: Batch) -> Batch:
        """See `Placement`."""
        return batch


@dataclass(frozen=True)
class Share:
    """The rows of each global batch that are wanted here.

    Args:
        offsets: for each batch size, the increasing offsets in the batch.
        skips: rows that are left out.
        ends: places, of rows that are not, at which the sections end.
    """

    offsets: Mapping[int, NDArray[np.int64]]
    skips: Skips
    ends: Sequence[int]

    def size(self, span: Span) -> int:
        """Rows of the local batch, those that are padding counted."""
        return len(self.offsets[span.size])

    def count(self, span: Span) -> int:
        """Rows of the local batch that are no padding."""
        if span.place + span.size <= self.ends[span.section]:
            return len(self.offsets[span.size])
        return int(np.searchsorted(self.offsets[span.size], self.ends[span.section] - span.place))

    def rows(self, spans: Sequence[Span]) -> list[NDArray[np.int64]]:
        """Those rows of batches of one size and section; int64 (rows,) of each."""
        places = np.array([[span.place] for span in spans]) + self.offsets[spans[0].size]
        all_of_them = zip(self.skips.rows(places), spans, strict=True)
        return [rows[: self.count(span)] for rows, span in all_of_them]


class BatchMaker(Protocol):
    """Makes this process's part of global batches; sent to worker processes as it is."""

    def together(self, span: Span) -> int:
        """How many batches like this one are best made in one call."""
        ...

    def make(self, spans: Sequence[Span]) -> Iterator[Batch]:
        """The local parts of some global batches, in order.

        Rows beyond the last are padding, all zeros: masked, and in no segment.
        """
        ...


@dataclass(frozen=True)
class TableBatches:
    """Batches laid out at once from a row table.

    Args:
        tables: the rows, as they are to be read in each section.
        share: which of them are wanted here.
        lay_out: `assemble`, or `compact` where devices do the rest.
    """

    tables: Sequence[RowTable]
    share: Share
    lay_out: Callable[[RowTable, Sequence[NDArray[np.int64]], int], Iterator[Batch]] = assemble

    def together(self, span: Span) -> int:
        """See `BatchMaker`; each source has a cost for a call, however many rows it reads."""
        rows = min(_ROWS_A_SOURCE * max(len(self.tables[0].documents), _FEWEST_SOURCES), _MOST_ROWS)
        return max(1, rows // max(1, self.share.size(span)))

    def make(self, spans: Sequence[Span]) -> Iterator[Batch]:
        """See `BatchMaker`."""
        for (section, _), alike in groupby(spans, _shape):
            same = list(alike)
            rows = self.share.rows(same)
            yield from self.lay_out(self.tables[section], rows, self.share.size(same[0]))


def _shape(span: Span) -> tuple[int, int]:
    return span.section, span.size


@dataclass(frozen=True)
class DatasetBatches:
    """Batches of rows that a `MapDataset` gives one by one, as after `rows.map(f)`."""

    rows: Any
    share: Share

    def together(self, span: Span) -> int:  # noqa: ARG002 - one like any other
        """See `BatchMaker`; rows are read one by one anyhow."""
        return 1

    def make(self, spans: Sequence[Span]) -> Iterator[Batch]:
        """See `BatchMaker`."""
        for span in spans:
            rows = [self._row(row) for row in self.share.rows([span])[0].tolist()]
            yield _stack(rows, rows[0] if rows else self._row(0), self.share.size(span))

    def _row(self, row: int) -> Batch:
        found: Batch | None = self.rows[row]
        if found is None:
            raise InputError(
                f"row {row} is None: rows cannot be filtered after packing, or steps would have "
                "no fixed rows; filter documents before, or mask the row's loss"
            )
        return found


def _stack(rows: list[Batch], like: Batch, size: int) -> Batch:
    empty = {name: np.zeros_like(value) for name, value in like.items()}
    complete = rows + [empty] * (size - len(rows))
    return {name: np.stack([row[name] for row in complete]) for name in like}
