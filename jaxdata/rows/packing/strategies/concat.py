"""The strategy `concat`: all documents of a block as one stream, cut into rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize, Packed, Strategy


@dataclass(frozen=True)
class CutStream:
    """Documents end to end, cut into rows (see `Packed`); empty ones are left out."""

    document: AnyInts
    """(filled,) numbers of the documents that hold tokens"""
    begins: AnyInts
    """(filled,) where each begins in the stream"""
    total: int
    """tokens of the stream"""
    cuts: AnyInts
    """(rows,) where the rows begin"""

    def size(self) -> BlockSize:
        """See `Packed`; the last token of a document fills a slot but has no target."""
        begun = len(self.begins)
        return BlockSize(len(self.cuts), self.total, self.total - begun, 0, begun, begun)

    def plan(self) -> BlockPlan:
        at = np.searchsorted(self.begins, self.cuts)
        beginning = np.append(self.begins, self.total)[at]
        inside = beginning != self.cuts  # of a document, which continues in the next row
        where = at[inside]
        pieces = np.insert(self.begins, where, self.cuts[inside])
        origin = np.insert(np.arange(len(self.begins)), where, where - 1)
        row_starts = np.append(at + np.cumsum(inside) - inside, len(pieces))
        slots = np.diff(pieces, append=np.array(self.total, pieces.dtype))
        start = pieces - self.begins[origin]
        return BlockPlan(row_starts, self.document[origin], start, slots, np.zeros_like(slots))


def cut_stream(lengths: AnyInts, seq_len: int, limit: int) -> CutStream:
    """Cut every `seq_len` tokens, or before a row would hold more than `limit` segments."""
    document = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[document], dtype=lengths.dtype)
    begins = ends - lengths[document]
    total = int(ends[-1]) if len(ends) else 0
    if limit >= seq_len:
        cuts = np.arange(0, total, seq_len, dtype=lengths.dtype)
    else:
        cuts = np.asarray(_limited_cuts(begins, total, seq_len, limit), lengths.dtype)
    return CutStream(document, begins, total, cuts)


def _limited_cuts(begins: AnyInts, total: int, seq_len: int, limit: int) -> list[int]:
    cuts, position = [], 0
    while position < total:
        cuts.append(position)
        beyond = int(np.searchsorted(begins, position, side="right")) - 1 + limit
        full = position + seq_len
        position = min(full, int(begins[beyond])) if beyond < len(begins) else full
    return cuts


def _pack(lengths: AnyInts, seq_len: int, _: int, limit: int) -> Packed:
    return cut_stream(lengths, seq_len, limit)


_SAYS = "one stream of all documents, cut every seq_len tokens"
CONCAT = Strategy("concat", _SAYS, _pack, streams=True, takes_overlap=False)
