"""Reading the tokens of batches: which segments, where they lie there, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import Views
from jaxdata.rows.documents import Documents, Pieces
from jaxdata.rows.reads import Reads, plan_reads
from jaxdata.rows.table import Ints, RowTable, Segments, edges

__all__ = ["Part", "Reading", "read_batches"]


class Part(NamedTuple):
    """The segments of one batch, (segments,) each; slots are counted from its first."""

    begin: Ints
    """slot at which each begins"""
    end: Ints
    """slot behind its last"""
    number: Ints
    """number of each in its row, from 0"""
    lead: Ints
    """first slots whose targets were trained in an earlier window"""
    ended: NDArray[np.bool_]
    """the last slot has no target"""
    padding: list[tuple[int, int]]
    """slots behind the segments of a row, from the first up to the second"""


@dataclass(frozen=True)
class Reading:
    """The segments of some batches, rows end to end, and where their tokens are.

    Of each segment there is one token more than slots: its inputs, and the target of its last
    slot; where nothing follows there (it has `ended`), `pieces` lack that token and `tokens`
    makes it 0.
    """

    batch_size: int
    seq_len: int
    segments: Segments
    number: Ints
    """(segments,) number of each in its row, from 0"""
    row_edges: Ints
    """(rows + 1,) segments before each row of all batches, and in all"""
    ended: NDArray[np.bool_]
    """(segments,) the last slot holds its document's last token, which nothing follows (concat)"""
    pieces: Pieces
    dtype: np.dtype[Any]
    masks: Pieces | None
    """stored masks of the same tokens, where a source has them"""

    @cached_property
    def filled(self) -> Ints:
        """(rows,) slots that are not padding; those of a row come first."""
        before: Ints = np.append(0, np.cumsum(self.segments.slots))[self.row_edges]
        return np.diff(before)

    def parts(self) -> Iterator[Part]:
        """Each batch."""
        slots, filled, total = self.segments.slots, self.filled, self.batch_size * self.seq_len
        # Rows are laid end to end, the padding of each included.
        shift = np.arange(len(filled)) * self.seq_len - np.cumsum(filled) + filled
        end = np.cumsum(slots) + shift[self.segments.row]
        bounds = self.row_edges[:: self.batch_size].tolist()
        for number, here in enumerate(map(slice, bounds, bounds[1:])):
            rows = slice(number * self.batch_size, (number + 1) * self.batch_size)
            ends = end[here] - number * total
            yield Part(
                begin=ends - slots[here],
                end=ends,
                number=self.number[here],
                lead=self.segments.lead[here],
                ended=self.ended[here],
                padding=_padding(filled[rows], self.seq_len),
            )

    def tokens(self, fill: Ints) -> Iterator[NDArray[Any]]:
        """Of each batch all tokens end to end, behind each row `fill` zeros; read-only."""
        return self._joined(self.pieces, fill, self.dtype, b"\0" * self.dtype.itemsize)

    def token_masks(self, fill: Ints) -> Iterator[NDArray[np.bool_]]:
        """The stored masks of the same, ones behind each row; only where `masks` is not None."""
        assert self.masks is not None
        return self._joined(self.masks, fill, np.dtype(bool), b"\1")

    def _joined(
        self, pieces: Pieces, fill: Ints, dtype: np.dtype[Any], filler: bytes
    ) -> Iterator[NDArray[Any]]:
        if self.ended.any():
            pieces = pieces.followed(np.flatnonzero(self.ended), filler)
        ends = pieces.range.searchsorted(self.row_edges[1:])
        sizes = fill * len(filler)
        views = pieces.views.inserted(ends, sizes, filler * int(fill.max(initial=0)))
        behind = ends + np.arange(1, len(ends) + 1)
        bounds = [0, *behind[self.batch_size - 1 :: self.batch_size].tolist()]
        for batch in map(slice, bounds, bounds[1:]):
            yield np.frombuffer(views.take(batch).join(), dtype)


def read_batches(table: RowTable, batches: Sequence[Ints], batch_size: int) -> Reading:
    """Look up several batches of rows, with one pass of arithmetic for all of them.

    Args:
        table: where the rows come from.
        batches: of each its rows; where they are fewer than `batch_size`, the others are padding.
        batch_size: rows of a batch.
    """
    places = [number * batch_size + np.arange(len(rows)) for number, rows in enumerate(batches)]
    segments = table.segments(np.concatenate(batches))
    segments = replace(segments, row=np.concatenate(places)[segments.row])
    ended = _left(table.documents, segments) <= segments.slots
    reads = plan_reads(segments, ended, edges(table))
    segments = reads.segments
    row_edges = np.searchsorted(segments.row, np.arange(len(batches) * batch_size + 1))
    dtype = np.result_type(*(documents.dtype for documents in table.documents))
    masked = any(documents.masked for documents in table.documents)
    return Reading(
        batch_size=batch_size,
        seq_len=table.seq_len,
        segments=segments,
        number=np.arange(len(segments.row)) - row_edges[segments.row],
        row_edges=row_edges,
        ended=reads.ended,
        pieces=_read(table.documents, reads, _tokens_as(dtype)),
        dtype=dtype.newbyteorder("<"),
        masks=_read(table.documents, reads, _masks) if masked else None,
    )


def _padding(filled: Ints, seq_len: int) -> list[tuple[int, int]]:
    """Where the padding of rows with so many slots filled is, the rows end to end."""
    short = np.flatnonzero(filled < seq_len).tolist()
    return [(row * seq_len + int(filled[row]), (row + 1) * seq_len) for row in short]


def _by_source(sources: Sequence[Documents], segments: Segments) -> list[tuple[Documents, Ints]]:
    """Each source that has segments here, and which."""
    present = sorted(set(segments.source.tolist()))
    return [(sources[k], np.flatnonzero(segments.source == k)) for k in present]


def _left(sources: Sequence[Documents], segments: Segments) -> Ints:
    """Tokens of each segment's document from its start on."""
    if len(sources) == 1:
        return sources[0].lengths[segments.document].astype(np.int64) - segments.start
    left = -segments.start
    for documents, mine in _by_source(sources, segments):
        left[mine] += documents.lengths[segments.document[mine]]
    return left


Read = Callable[[Documents, Ints, Ints, Ints], Pieces]


def _read(sources: Sequence[Documents], reads: Reads, read: Read) -> Pieces:
    """What the segments are made of."""
    found = _gather(sources, reads.ranges, reads.tokens, read)
    return Pieces(found.views, reads.owner[found.range])


def _gather(sources: Sequence[Documents], segments: Segments, count: Ints, read: Read) -> Pieces:
    """The ranges of all segments in order, whichever source they are of."""
    if len(sources) == 1:
        return read(sources[0], segments.document, segments.start, count)
    views: list[Views] = []
    owner = [np.empty(0, np.int64)]
    for documents, mine in _by_source(sources, segments):
        found = read(documents, segments.document[mine], segments.start[mine], count[mine])
        views.append(found.views)
        owner.append(mine[found.range])
    segment = np.concatenate(owner)
    order = np.argsort(segment, kind="stable")
    return Pieces(Views.chain(views).take(order), segment[order])


def _tokens_as(dtype: np.dtype[Any]) -> Read:
    """Tokens, widened where a source of smaller ones is mixed with one of larger ones."""

    def read(documents: Documents, document: Ints, start: Ints, count: Ints) -> Pieces:
        found = documents.tokens(document, start, count)
        if documents.dtype.itemsize == dtype.itemsize:
            return found
        narrow = found.views.join()
        wide = np.frombuffer(narrow, documents.dtype.newbyteorder("<")).astype(dtype)
        return Pieces.cut(wide, count)

    return read


def _masks(documents: Documents, document: Ints, start: Ints, count: Ints) -> Pieces:
    if documents.masked:
        return documents.masks(document, start, count)
    return Pieces.cut(np.ones(count.sum(), np.uint8), count)
