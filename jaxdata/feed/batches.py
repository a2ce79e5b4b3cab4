"""Which rows a process needs of each global batch, and making them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.assembly import assemble
from jaxdata.rows.table import Batch, RowTable

__all__ = ["BatchMaker", "BatchSizes", "DatasetBatches", "TableBatches", "shard_rows"]


def shard_rows(batch_size: int, shard: tuple[int, int]) -> NDArray[np.int64]:
    """Rows of a global batch that part *i* of *n* gets: ``[i B / n, (i + 1) B / n)``."""
    part, parts = shard
    if not 0 <= part < parts:
        raise InputError(f"shard=({part}, {parts}): expected (i, n) with 0 <= i < n")
    if batch_size % parts:
        raise InputError(
            f"batch_size={batch_size} cannot be divided among {parts} shards: batch_size is that "
            f"of all shards together, choose a multiple of {parts}"
        )
    each = batch_size // parts
    return np.arange(part * each, (part + 1) * each)


class BatchMaker(Protocol):
    """Makes this process's part of any global batch; sent to worker processes as it is."""

    def make(self, first: int) -> Batch:
        """The local part of the batch of rows that begins at row ``first``.

        Rows beyond the last are padding, all zeros: masked, and in no segment.
        """
        ...


@dataclass(frozen=True)
class TableBatches:
    """Batches laid out at once from a row table.

    Args:
        table: the rows.
        local: increasing offsets in a global batch of the rows that are wanted here.
    """

    table: RowTable
    local: NDArray[np.int64]

    def make(self, first: int) -> Batch:
        """See :class:`BatchMaker`."""
        wanted = first + self.local
        return assemble(self.table, wanted[wanted < len(self.table)], len(self.local))


@dataclass(frozen=True)
class DatasetBatches:
    """Batches of rows that a ``MapDataset`` gives one by one, as after ``rows.map(f)``."""

    rows: Any
    local: NDArray[np.int64]

    def make(self, first: int) -> Batch:
        """See :class:`BatchMaker`."""
        wanted = first + self.local
        rows = [self._row(row) for row in wanted[wanted < len(self.rows)].tolist()]
        return _stack(rows, rows[0] if rows else self._row(0), len(self.local))

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


class BatchSizes:
    """Batch sizes by row: ``[(row, batch size from there on), …]``, the first at row 0.

    >>> sizes = BatchSizes([(0, 4), (8, 6)])
    >>> sizes.row(2), sizes.row(3), sizes.step(14), sizes.at(8)
    (8, 14, 3, 6)
    """

    def __init__(self, breakpoints: Sequence[tuple[int, int]]) -> None:
        self.breakpoints = [(int(row), int(size)) for row, size in breakpoints]

    def at(self, row: int) -> int:
        """Size of the batch that begins at ``row``."""
        return next(size for begin, size in reversed(self.breakpoints) if begin <= row)

    def row(self, step: int) -> int:
        """First row of a step."""
        for (begin, size), (end, _) in zip(self.breakpoints, self.breakpoints[1:], strict=False):
            steps = -(-(end - begin) // size)
            if step < steps:
                return begin + step * size
            step -= steps
        begin, size = self.breakpoints[-1]
        return begin + step * size

    def step(self, row: int) -> int:
        """Steps before ``row``, a begun one counted whole."""
        ends = [begin for begin, _ in self.breakpoints[1:]] + [row]
        spans = zip(self.breakpoints, ends, strict=True)
        return sum(-(-max(min(end, row) - begin, 0) // size) for (begin, size), end in spans)

    def continued(self, row: int, size: int) -> BatchSizes:
        """The same history up to ``row``, with batches of ``size`` from there on."""
        kept = [point for point in self.breakpoints if point[0] < row]
        if not kept or kept[-1][1] != size:
            kept.append((row, size))
        return BatchSizes(kept)
