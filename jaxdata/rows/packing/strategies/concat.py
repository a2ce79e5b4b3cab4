"""The strategy `concat`: all documents of a block as one stream, cut into rows."""

from __future__ import annotations

import numpy as np

from jaxdata.base.ragged import AnyInts
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize, Packed, RowSize, Strategy


def cut_stream(lengths: AnyInts, row: RowSize) -> Packed:
    """Cut every `seq_len` tokens, or before a row would hold more than its most segments.

    Documents lie end to end, empty ones left out. Places of the stream are counted in units.
    """
    document = np.flatnonzero(lengths)
    tokens = lengths[document]
    units, capacity = row.units(tokens), row.capacity
    ends = np.cumsum(units, dtype=lengths.dtype)
    begins, total = ends - units, int(ends[-1]) if len(ends) else 0
    if row.segments >= capacity:
        cuts = np.arange(0, total, capacity, dtype=lengths.dtype)
    else:
        cuts = np.asarray(_limited_cuts(begins, total, capacity, row.segments), lengths.dtype)

    def plan() -> BlockPlan:
        at = np.searchsorted(begins, cuts)
        inside = np.append(begins, total)[at] != cuts  # a document continues in the next row
        where = at[inside]
        pieces = np.insert(begins, where, cuts[inside])
        origin = np.insert(np.arange(len(begins)), where, where - 1)
        row_starts = np.append(at + np.cumsum(inside) - inside, len(pieces))
        taken = np.diff(pieces, append=np.array(total, pieces.dtype))
        start = (pieces - begins[origin]) * pieces.dtype.type(row.multiple)
        slots = row.slots(taken, tokens[origin] - start)
        return BlockPlan(row_starts, document[origin], start, slots, np.zeros_like(slots))

    # The last token of a document fills a slot but has no target.
    begun, filled = len(begins), int(tokens.sum(dtype=np.int64))
    return Packed(BlockSize(len(cuts), filled, filled - begun, 0, begun, begun), plan)


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
