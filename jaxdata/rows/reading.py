"""Reading the tokens of a batch: which segments, where they lie in it, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.documents import Documents
from jaxdata.rows.table import Ints, RowTable, Segments

__all__ = ["Reading", "read_rows"]

Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class Reading:
    """The segments of a batch of ``total`` slots, rows end to end, and their tokens."""

    segments: Segments
    total: int
    begin: Ints
    """(segments,) slot at which each begins"""
    number: Ints
    """(segments,) number of each in its row, from 0"""
    gaps: list[tuple[int, int, int]]
    """padding: (number of the segment it comes before, first slot, end)"""
    tokens: Arrays
    """of each segment its inputs, and the target of its last slot unless it has ``ended``"""
    ended: NDArray[np.bool_]
    """(segments,) the last slot holds its document's last token, which nothing follows (concat)"""
    masks: dict[int, NDArray[Any]]
    """stored masks of the same tokens, by segment, where the source has them"""

    @property
    def last(self) -> Ints:
        """(segments,) last slot of each."""
        return np.asarray(self.begin + self.segments.slots - 1, np.int64)

    def inputs(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Inputs of all segments in their slots, 0 in padding; (total,) of ``dtype``."""
        widths = self.segments.slots.tolist()
        parts = [array[:width] for array, width in zip(self.tokens, widths, strict=True)]
        for before, a, b in reversed(self.gaps):
            parts.insert(before, np.zeros(b - a, dtype))
        inputs = np.empty(self.total, dtype)
        np.concatenate([inputs[:0], *parts], out=inputs, casting="unsafe")
        return inputs

    def last_targets(self) -> list[int]:
        """Target of the last slot of each segment; 0 where it has none."""
        ended = self.ended.tolist()
        return [0 if end else array[-1] for array, end in zip(self.tokens, ended, strict=True)]

    def apply_masks(self, loss: NDArray[np.bool_]) -> None:
        """Take the loss from targets whose stored mask is 0; ``loss`` is (total,)."""
        for at, mask in self.masks.items():
            begin = int(self.begin[at])
            loss[begin : begin + len(mask) - 1] &= mask[1:].astype(bool)


def read_rows(table: RowTable, rows: Ints, batch_size: int) -> Reading:
    """Read rows as the first of a batch of ``batch_size`` rows; the others are padding."""
    segments, total = table.segments(rows), batch_size * table.seq_len
    first = np.flatnonzero(np.diff(segments.row, prepend=-1))
    counts = np.diff(first, append=len(segments.row))
    before = np.cumsum(segments.slots) - segments.slots
    begin = before - np.repeat(before[first], counts) + segments.row * table.seq_len
    left = _left(table.documents, segments)
    ended = left <= segments.slots
    tokens, masks = _read(table.documents, segments, segments.slots + ~ended)
    return Reading(
        segments=segments,
        total=total,
        begin=begin,
        number=np.arange(len(begin)) - np.repeat(first, counts),
        gaps=_gaps(begin, begin + segments.slots, total),
        tokens=tokens,
        ended=ended,
        masks=masks,
    )


def _gaps(begin: Ints, end: Ints, total: int) -> list[tuple[int, int, int]]:
    starts, stops = np.append(0, end), np.append(begin, total)
    found = np.flatnonzero(starts < stops)
    return list(zip(*(x.tolist() for x in (found, starts[found], stops[found])), strict=True))


def _by_source(sources: Sequence[Documents], segments: Segments) -> list[tuple[Documents, Ints]]:
    """Each source that has segments here, and which."""
    if len(sources) == 1:
        return [(sources[0], np.arange(len(segments.row)))]
    present = sorted(set(segments.source.tolist()))
    return [(sources[k], np.flatnonzero(segments.source == k)) for k in present]


def _left(sources: Sequence[Documents], segments: Segments) -> Ints:
    """Tokens of each segment's document from its start on."""
    left = -segments.start
    for documents, mine in _by_source(sources, segments):
        left[mine] += documents.lengths[segments.document[mine]]
    return left


def _read(
    sources: Sequence[Documents], segments: Segments, count: Ints
) -> tuple[Arrays, dict[int, NDArray[Any]]]:
    """``count`` tokens of each segment, and their stored masks."""
    tokens: list[Any] = [None] * len(count)
    masks: dict[int, NDArray[Any]] = {}
    for documents, mine in _by_source(sources, segments):
        wanted = segments.document[mine], segments.start[mine], count[mine]
        for at, array in zip(mine.tolist(), documents.tokens(*wanted), strict=True):
            tokens[at] = array
        if documents.masked:
            masks.update(zip(mine.tolist(), documents.masks(*wanted), strict=True))
    return tokens, masks
