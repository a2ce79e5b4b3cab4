"""The strategy `concat`: all documents of a block as one stream, cut into rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize, RowSize, Strategy


@dataclass(frozen=True)
class CutStream:
    """Documents end to end, cut into rows (see `Packed`); empty ones are left out.

    Places of the stream, and its end, are counted in units.
    """

    document: AnyInts
    """(filled,) numbers of the documents that hold tokens"""
    tokens: AnyInts
    """(filled,) of each"""
    begins: AnyInts
    """(filled,) where each begins in the stream"""
    total: int
    """where the stream ends"""
    cuts: AnyInts
    """(rows,) where the rows begin"""
    row: RowSize

    def size(self) -> BlockSize:
        """See `Packed`; the last token of a document fills a slot but has no target."""
        begun, filled = len(self.begins), int(self.tokens.sum(dtype=np.int64))
        return BlockSize(len(self.cuts), filled, filled - begun, 0, begun, begun)

    def plan(self) -> BlockPlan:
        at = np.searchsorted(self.begins, self.cuts)
        beginning = np.append(self.begins, self.total)[at]
        inside = beginning != self.cuts  # of a document, which continues in the next row
        where = at[inside]
        pieces = np.insert(self.begins, where, self.cuts[inside])
        origin = np.insert(np.arange(len(self.begins)), where, where - 1)
        row_starts = np.append(at + np.cumsum(inside) - inside, len(pieces))
        units = np.diff(pieces, append=np.array(self.total, pieces.dtype))
        start = (pieces - self.begins[origin]) * pieces.dtype.type(self.row.multiple)
        slots = self.row.slots(units, self.tokens[origin] - start)
        return BlockPlan(row_starts, self.document[origin], start, slots, np.zeros_like(slots))


def cut_stream(lengths: AnyInts, row: RowSize) -> CutStream:
    """Cut every `seq_len` tokens, or before a row would hold more than its most segments."""
    document = np.flatnonzero(lengths)
    tokens = lengths[document]
    units, capacity = row.units(tokens), row.capacity
    ends = np.cumsum(units, dtype=lengths.dtype)
    begins = ends - units
    total = int(ends[-1]) if len(ends) else 0
    if row.segments >= capacity:
        cuts = np.arange(0, total, capacity, dtype=lengths.dtype)
    else:
        cuts = np.asarray(_limited_cuts(begins, total, capacity, row.segments), lengths.dtype)
    return CutStream(document, tokens, begins, total, cuts, row)


def _limited_cuts(begins: AnyInts, total: int, capacity: int, limit: int) -> list[int]:
    cuts, position = [], 0
    while position < total:
        cuts.append(position)
        beyond = int(np.searchsorted(begins, position, side="right")) - 1 + limit
        full = position + capacity
        position = min(full, int(begins[beyond])) if beyond < len(begins) else full
    return cuts


_SAYS = "one stream of all documents, cut every seq_len tokens"
CONCAT = Strategy("concat", _SAYS, cut_stream, streams=True, takes_overlap=False)
