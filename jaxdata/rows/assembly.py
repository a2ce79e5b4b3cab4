"""Laying a whole batch out at once: from segments to arrays, without rows in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.documents import Documents

__all__ = ["POSITIONS", "Batch", "RowTable", "Segments", "assemble"]

Ints = NDArray[np.int64]
Batch = dict[str, NDArray[Any]]
POSITIONS = ("segment", "row")


@dataclass(frozen=True)
class Segments:
    """Segments of some rows, row by row in the order they lie there; int64 (segments,) each."""

    row: Ints
    """number of the row among those asked for"""
    source: Ints
    """number of the source in the table's ``documents``"""
    document: Ints
    start: Ints
    slots: Ints
    lead: Ints
    """first slots whose targets were trained in an earlier window"""

    def take(self, chosen: Ints) -> Self:
        """Some of the segments."""
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Segments of several lookups as one, sorted by row."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(cls)]
        nothing = np.empty(0, np.int64)  # a host's part of a last batch may be all padding
        joined = [np.concatenate([nothing, *(getattr(p, name) for p in parts)]) for name in names]
        return cls(*joined).take(np.argsort(joined[0], kind="stable"))


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
        """Where positions restart: one of ``POSITIONS``."""
        ...

    @property
    def documents(self) -> Sequence[Documents]:
        """The sources that ``Segments.source`` counts."""
        ...

    def __len__(self) -> int:
        """Rows of one epoch, or of the whole mixture."""
        ...

    def segments(self, rows: Ints) -> Segments:
        """Segments of ``rows`` (any order, any epoch); int64 (rows,)."""
        ...

    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row: plain JSON values, long ones as digests."""
        ...


def assemble(table: RowTable, rows: Ints, batch_size: int | None = None) -> Batch:
    """Read rows into a batch.

    Args:
        table: where the rows come from.
        rows: int64 (n,) row indices.
        batch_size: rows of the batch; those after the *n* given are padding. Default: *n*.

    Returns:
        ``inputs``, ``targets``, ``segment_ids``, ``positions`` (int32) and ``loss_mask`` (bool),
        each of shape (batch_size, seq_len).
    """
    size = len(rows) if batch_size is None else batch_size
    segments = table.segments(rows)
    begin = _begins(segments, table.seq_len)
    gaps = _gaps(begin, begin + segments.slots, size * table.seq_len)
    batch = _lay_out(segments, begin, size * table.seq_len, gaps)
    if table.positions == "row":
        batch["positions"] = _along_rows(batch["segment_ids"], table.seq_len)
    tokens = _read(batch["loss_mask"], table.documents, segments, begin)
    _write(batch, tokens, segments, begin, gaps)
    return {name: array.reshape(size, table.seq_len) for name, array in batch.items()}


Gaps = list[tuple[int, int, int]]
"""Padding in the flattened batch: (number of the segment it comes before, begin, end)."""


def _begins(segments: Segments, seq_len: int) -> Ints:
    """Slot in the flattened batch at which each segment begins."""
    before = np.cumsum(segments.slots) - segments.slots
    first, counts = _row_runs(segments)
    return np.asarray(before - np.repeat(before[first], counts) + segments.row * seq_len, np.int64)


def _row_runs(segments: Segments) -> tuple[Ints, Ints]:
    """First segment of each row that has any, and how many it has."""
    first = np.flatnonzero(np.diff(segments.row, prepend=-1))
    return first, np.diff(first, append=len(segments.row))


def _gaps(begin: Ints, end: Ints, total: int) -> Gaps:
    starts, stops = np.append(0, end), np.append(begin, total)
    found = np.flatnonzero(starts < stops)
    return list(zip(*(x.tolist() for x in (found, starts[found], stops[found])), strict=True))


def _lay_out(segments: Segments, begin: Ints, total: int, gaps: Gaps) -> Batch:
    """Everything that follows from the plan alone; inputs and targets are not yet written."""
    first, counts = _row_runs(segments)
    in_row = np.arange(1, len(begin) + 1) - np.repeat(first, counts)
    # A run is a segment with the padding behind it; before the first segment there may be some.
    run = np.diff(begin, prepend=0, append=total)
    ids = np.repeat(np.append(0, in_row).astype(np.int32), run)
    start = np.repeat(np.append(0, begin).astype(np.int32), run)
    batch: Batch = {
        "inputs": np.empty(total, np.int32),
        "targets": np.empty(total, np.int32),
        "loss_mask": np.ones(total, bool),
        "segment_ids": ids,
        "positions": np.subtract(_slots(total), start, out=start),
    }
    for at in np.flatnonzero(segments.lead).tolist():
        batch["loss_mask"][begin[at] : begin[at] + segments.lead[at]] = False
    for name in ("loss_mask", "segment_ids", "positions"):
        for _, a, b in gaps:
            batch[name][a:b] = 0
    return batch


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)


def _along_rows(segment_ids: NDArray[np.int32], seq_len: int) -> NDArray[np.int32]:
    """Positions that run on from segment to segment."""
    return _slots(len(segment_ids)) % np.int32(seq_len) * (segment_ids > 0)


def _read(
    loss: NDArray[np.bool_], sources: Sequence[Documents], segments: Segments, begin: Ints
) -> list[NDArray[Any]]:
    """The tokens of every segment, with the last slot's target where there is one.

    Takes the loss from slots whose target is missing, or has a stored mask that says so.
    """
    if len(sources) == 1:
        return _read_source(loss, sources[0], segments, begin)
    tokens: list[Any] = [None] * len(begin)
    for number in set(segments.source.tolist()):
        mine = np.flatnonzero(segments.source == number)
        found = _read_source(loss, sources[number], segments.take(mine), begin[mine])
        for at, array in zip(mine.tolist(), found, strict=True):
            tokens[at] = array
    return tokens


def _read_source(
    loss: NDArray[np.bool_], documents: Documents, segments: Segments, begin: Ints
) -> list[NDArray[Any]]:
    document, start, slots = segments.document, segments.start, segments.slots
    left = documents.lengths[document].astype(np.int64) - start
    # A document's last token may be an input (concat), but nothing follows it as a target.
    ended = left <= slots
    loss[(begin + slots - 1)[ended]] = False
    count = slots + ~ended
    if documents.masked:
        masks = documents.masks(document, start, count)
        for mask, at in zip(masks, begin.tolist(), strict=True):
            loss[at : at + len(mask) - 1] &= mask[1:].astype(bool)
    return list(documents.tokens(document, start, count))


def _write(
    batch: Batch, tokens: list[NDArray[Any]], segments: Segments, begin: Ints, gaps: Gaps
) -> None:
    """Inputs end to end, padding between; targets are the inputs one slot on."""
    inputs, targets = batch["inputs"], batch["targets"]
    widths = segments.slots.tolist()
    parts = [array[:width] for array, width in zip(tokens, widths, strict=True)]
    for before, a, b in reversed(gaps):
        parts.insert(before, np.zeros(b - a, np.uint16))
    np.concatenate([inputs[:0], *parts], out=inputs, casting="unsafe")
    targets[:-1] = inputs[1:]
    targets[begin + segments.slots - 1] = [
        array[-1] if len(array) > width else 0 for array, width in zip(tokens, widths, strict=True)
    ]
    for _, a, b in gaps:
        targets[a:b] = 0
