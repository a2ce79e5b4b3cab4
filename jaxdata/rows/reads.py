"""Which ranges of documents make up the segments of rows, and what their last slots aim at."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.table import Ints, Segments

__all__ = ["Reads", "plan_reads"]


class Reads(NamedTuple):
    """Segments as rows hold them, and the ranges whose tokens they are.

    The ranges of a segment, end to end, are its inputs and the target of its last slot; they lack
    the latter where the segment has ended.
    """

    segments: Segments
    ended: NDArray[np.bool_]
    """(segments,) nothing follows the last slot"""
    ranges: Segments
    """source, document and start of each range"""
    tokens: Ints
    """(ranges,) how many tokens of each"""
    owner: Ints
    """(ranges,) number of the segment it belongs to; never falls"""


def plan_reads(found: Segments, ended: NDArray[np.bool_], edges: str) -> Reads:
    """Decide what is read for segments.

    Args:
        found: what a table says, row by row; of `crossed` and `open` rows, what follows the last
            slot may come last, with no slots.
        ended: (segments,) whether the last slot of each holds its document's last token.
        edges: what the edge of a document is to a row, one of `EDGES`.
    """
    if edges == "closed":
        return Reads(found, ended, found, found.slots + ~ended, np.arange(len(ended)))
    last = np.append(found.row[1:] != found.row[:-1], True)[: len(ended)]
    return _open(found, ended, last) if edges == "open" else _crossed(found, ended, last)


def _open(found: Segments, ended: NDArray[np.bool_], last: NDArray[np.bool_]) -> Reads:
    """Each row is one segment."""
    first = np.flatnonzero(np.append(True, last[:-1])[: len(last)])
    slots = np.add.reduceat(found.slots, first) if len(first) else found.slots
    whole = replace(found.take(first), slots=slots)
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(last)))
    return Reads(whole, ended[last], found, found.slots + ~ended, owner)


def _crossed(found: Segments, ended: NDArray[np.bool_], last: NDArray[np.bool_]) -> Reads:
    """The last slot of a document aims at the first token of the next one in the row."""
    followed = ended & ~last
    kept = np.flatnonzero(found.slots > 0)
    more = followed[kept].astype(np.int64)
    owner = np.repeat(np.arange(len(kept)), 1 + more)
    added = np.zeros(len(owner), bool)
    added[(np.cumsum(1 + more) - 1)[more > 0]] = True
    ranges = kept[owner] + added
    tokens = np.where(added, 1, (found.slots + ~ended)[ranges])
    return Reads(found.take(kept), (ended & ~followed)[kept], found.take(ranges), tokens, owner)
