"""Reading the tokens of a batch: which segments, where they lie in it, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.storage import Views
from jaxdata.rows.documents import Documents, Pieces
from jaxdata.rows.reads import Reads, plan_reads
from jaxdata.rows.table import Ints, RowTable, Segments, edges

__all__ = ["Gaps", "Padding", "Reading", "read_batches"]

Padding = tuple[Ints, Ints]
"""(number of the segment it comes before, tokens), in order."""


class Gaps(NamedTuple):
    """Runs of padding in a batch, in order."""

    before: Ints
    """number of the segment each comes before"""
    start: Ints
    """its first slot"""
    stop: Ints

    @property
    def padding(self) -> Padding:
        """The same in a stream."""
        return self.before, self.stop - self.start

    def clear(self, array: NDArray[Any]) -> None:
        """Set the padding of a batch's array to zero."""
        for a, b in zip(self.start.tolist(), self.stop.tolist(), strict=True):
            array[a:b] = 0


@dataclass(frozen=True)
class Reading:
    """The segments of a batch of `total` slots, rows end to end, and their tokens as bytes.

    Of each segment there is one token more than slots: its inputs, and the target of its last
    slot; where nothing follows there (it has `ended`), `pieces` lack that token and `stream`
    makes it 0.
    """

    segments: Segments
    total: int
    begin: Ints
    """(segments,) slot at which each begins"""
    number: Ints
    """(segments,) number of each in its row, from 0"""
    row_edges: Ints
    """(batch_size + 1,) segments before each row, and in all"""
    ended: NDArray[np.bool_]
    """(segments,) the last slot holds its document's last token, which nothing follows (concat)"""
    pieces: Pieces
    dtype: np.dtype[Any]
    masks: Pieces | None
    """stored masks of the same tokens, where a source has them"""

    def batch(self, number: int, batch_size: int) -> Reading:
        """Of a reading of several batches, one."""
        row_edges = self.row_edges[number * batch_size : (number + 1) * batch_size + 1]
        here = slice(int(row_edges[0]), int(row_edges[-1]))
        segments = self.segments.take(here)
        return Reading(
            segments=replace(segments, row=segments.row - number * batch_size),
            total=self.total,
            begin=self.begin[here] - number * self.total,
            number=self.number[here],
            row_edges=row_edges - here.start,
            ended=self.ended[here],
            pieces=self.pieces.of(here),
            dtype=self.dtype,
            masks=self.masks and self.masks.of(here),
        )

    def gaps(self) -> Gaps:
        """Padding in the batch, between segments and at its end."""
        ends = self.begin + self.segments.slots
        starts, stops = np.append(0, ends), np.append(self.begin, self.total)
        found = np.flatnonzero(starts < stops)
        return Gaps(found, starts[found], stops[found])

    def stream(self, padding: Padding) -> NDArray[Any]:
        """All tokens end to end with zeros between; read-only, of `dtype`."""
        return self._joined(self.pieces, padding, self.dtype, b"\0" * self.dtype.itemsize)

    def mask_stream(self, padding: Padding) -> NDArray[np.bool_]:
        """The stored masks of the same, ones between; only where `masks` is not None."""
        assert self.masks is not None
        return self._joined(self.masks, padding, np.dtype(bool), b"\1")

    def _joined(
        self, pieces: Pieces, padding: Padding, dtype: np.dtype[Any], filler: bytes
    ) -> NDArray[Any]:
        before, tokens = padding
        if self.ended.any():
            missing = np.flatnonzero(self.ended)
            before = np.append(missing + 1, before)  # first of all that comes there
            tokens = np.append(np.ones_like(missing), tokens)
            order = np.argsort(before, kind="stable")
            before, tokens = before[order], tokens[order]
        places = np.searchsorted(pieces.range, before).tolist()
        buffers = pieces.views.each()
        for place, count in zip(reversed(places), reversed(tokens.tolist()), strict=True):
            if count:
                buffers.insert(place, filler * count)
        return np.frombuffer(b"".join(buffers), dtype)


def read_batches(table: RowTable, batches: Sequence[Ints], batch_size: int) -> Iterator[Reading]:
    """Read several batches of rows, with one pass of arithmetic for all of them.

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
    first = row_edges[segments.row]
    before = np.cumsum(segments.slots) - segments.slots
    dtype = np.result_type(*(documents.dtype for documents in table.documents))
    masked = any(documents.masked for documents in table.documents)
    all_of_them = Reading(
        segments=segments,
        total=batch_size * table.seq_len,
        begin=before - before[first] + segments.row * table.seq_len,
        number=np.arange(len(first)) - first,
        row_edges=row_edges,
        ended=reads.ended,
        pieces=_read(table.documents, reads, _tokens_as(dtype)),
        dtype=dtype.newbyteorder("<"),
        masks=_read(table.documents, reads, _masks) if masked else None,
    )
    for number in range(len(batches)):
        yield all_of_them.batch(number, batch_size)


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
