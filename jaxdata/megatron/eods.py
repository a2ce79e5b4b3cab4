"""Segments that end with each EOD in the tokens, for documents that hold EODs, or lack them.

Megatron finds the ends of documents in the tokens of a sample. Lengths do not tell these, so the
tokens of the rows are read once more, before their batches are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.ragged import Ints, expand
from jaxdata.rows.reading import read_tokens
from jaxdata.rows.table import ReadRanges

_AT_ONCE = 2**12  # ranges, of a row at most, whose tokens are in memory together


def places_of(eod_id: int, sources: Sequence[Documents], reads: ReadRanges) -> Ints:
    """Where this id is among the tokens of `reads`, numbered end to end; increasing."""
    gathered, dtype = read_tokens(sources, reads)
    found, before = [np.empty(0, np.int64)], 0
    for first in range(0, len(gathered.range), _AT_ONCE):
        views = gathered.views.take(slice(first, first + _AT_ONCE))
        tokens = np.frombuffer(views.join(), dtype)
        found.append(before + np.flatnonzero(tokens == eod_id))
        before += len(tokens)
    return np.concatenate(found)


def cut_after(places: Ints, reads: ReadRanges) -> ReadRanges:
    """Cut segments after some of their inputs; the next input is the target of such a one.

    Args:
        places: of these inputs, among the tokens of all ranges end to end.
        reads: segments, each of consecutive tokens and with at least a slot.
    """
    length = reads.segments.slots + ~reads.ended
    first = np.cumsum(length) - length
    stop = first + reads.segments.slots
    after = places + 1
    cut = np.searchsorted(first, after, side="right") - 1
    begin = np.sort(np.append(first, after[(first[cut] < after) & (after < stop[cut])]))
    owner = np.searchsorted(first, begin, side="right") - 1
    end = np.minimum(np.append(begin[1:], stop[-1:]), stop[owner])
    ended = reads.ended[owner] & (end == stop[owner])
    segments = replace(reads.segments.take(owner), slots=end - begin)
    return _ranges_of(begin, end + ~ended, reads)._replace(segments=segments, ended=ended)


def _ranges_of(begin: Ints, end: Ints, reads: ReadRanges) -> ReadRanges:
    """Read the tokens `[begin, end)`, numbered through all ranges of `reads`, for segment *k*."""
    edge = np.cumsum(reads.tokens)
    first = np.searchsorted(edge, begin, side="right")
    last = np.searchsorted(edge, end - 1, side="right")
    owner, number = expand(last - first + 1)
    chosen = first[owner] + number
    before = (edge - reads.tokens)[chosen]
    start = np.maximum(begin[owner], before)
    stop = np.minimum(end[owner], edge[chosen])
    found = reads.ranges.take(chosen)
    ranges = replace(found, start=found.start + start - before)
    return reads._replace(ranges=ranges, tokens=stop - start, owner=owner)
