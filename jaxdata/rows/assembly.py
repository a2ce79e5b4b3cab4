"""Laying a whole batch out at once: from segments to arrays, without rows in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
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

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Segments of several lookups as one, sorted by row."""
        if len(parts) == 1:
            return parts[0]
        if not parts:  # a host whose part of a last batch is all padding
            return cls(*[np.empty(0, np.int64) for _ in fields(cls)])
        names = [field.name for field in fields(cls)]
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
        order = np.argsort(joined[0], kind="stable")
        return cls(*(column[order] for column in joined))


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
    offset = _row_offsets(segments, table.seq_len)
    batch = _lay_out(segments, offset, size, table.seq_len, table.positions)
    for number, documents in enumerate(table.documents):
        chosen = np.flatnonzero(segments.source == number)
        if len(chosen):
            _fill(batch, documents, segments, chosen, offset)
    return {name: array.reshape(size, table.seq_len) for name, array in batch.items()}


def _row_offsets(segments: Segments, seq_len: int) -> Ints:
    """Slot in the flattened batch at which each segment begins."""
    ends = np.cumsum(segments.slots)
    begins = ends - segments.slots
    first = np.flatnonzero(np.diff(segments.row, prepend=-1))
    counts = np.diff(first, append=len(begins))
    return begins - np.repeat(begins[first], counts) + segments.row * seq_len


def _lay_out(segments: Segments, offset: Ints, size: int, seq_len: int, positions: str) -> Batch:
    """Everything that follows from the plan alone; inputs and targets zero."""
    total = size * seq_len
    slot = np.arange(total, dtype=np.int32)
    first = np.flatnonzero(np.diff(segments.row, prepend=-1))
    in_row = np.arange(len(offset)) - np.repeat(first, np.diff(first, append=len(offset)))
    # Between one segment's begin and the next one's lie its slots, then perhaps padding.
    run = np.diff(offset, append=total)
    run = np.concatenate([[offset[0] if len(offset) else total], run])
    ids = np.repeat(np.concatenate([[0], in_row + 1]).astype(np.int32), run)
    place = slot - np.repeat(np.concatenate([[0], offset]).astype(np.int32), run)
    inside = place < np.repeat(np.concatenate([[0], segments.slots]).astype(np.int32), run)
    lead = np.repeat(np.concatenate([[0], segments.lead]).astype(np.int32), run)
    where = place if positions == "segment" else slot % np.int32(seq_len)
    return {
        "inputs": np.zeros(total, np.int32),
        "targets": np.zeros(total, np.int32),
        "loss_mask": inside & (place >= lead),
        "segment_ids": ids * inside,
        "positions": where * inside,
    }


def _fill(
    batch: Batch, documents: Documents, segments: Segments, chosen: Ints, offset: Ints
) -> None:
    """Copy the tokens of one source's segments; take the loss from targets that have none."""
    document, start = segments.document[chosen], segments.start[chosen]
    slots, begin = segments.slots[chosen], offset[chosen]
    left = documents.lengths[document].astype(np.int64) - start
    count = np.minimum(slots + 1, left)
    inputs, targets, loss = batch["inputs"], batch["targets"], batch["loss_mask"]
    # A document's last token may be an input (concat), but nothing follows it as a target.
    loss[(begin + slots - 1)[count <= slots]] = False
    tokens = documents.tokens(document, start, count)
    for array, at, width in zip(tokens, begin.tolist(), slots.tolist(), strict=True):
        inputs[at : at + width] = array[:width]
        targets[at : at + len(array) - 1] = array[1:]
    if documents.masked:
        masks = documents.masks(document, start, count)
        for mask, at in zip(masks, begin.tolist(), strict=True):
            loss[at : at + len(mask) - 1] &= mask[1:].astype(bool)
