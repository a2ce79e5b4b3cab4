"""Reading batches: their segments, the slots of these, and their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import ByteRanges, Ints, consecutive
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.dataset.manifest import TARGET
from jaxdata.rows.table import ReadRanges, RowTable, Segments
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges


class BatchSegments(NamedTuple):
    """The segments of one batch, (segments,) each; slots are numbered through the batch."""

    begin: Ints
    """first slot of each"""
    end: Ints
    """slot after its last"""
    number: Ints
    """number of each in its row, from 0"""
    context: Ints
    """first slots whose targets were trained in an earlier window"""
    ended: NDArray[np.bool_]
    """whether the last slot has no target"""
    padding: list[tuple[int, int]]
    """padding after the segments of each row, as `(first slot, slot after the last)`"""
    gaps: Ints
    """slots of padding that belong to segments, after each"""


@dataclass(frozen=True)
class Reading:
    """The segments of some batches, rows end to end, and the byte ranges of their tokens.

    A segment has one token more than slots: its inputs, and the target of its last slot. If it has
    `ended`, nothing follows: the ranges lack that token and `tokens` makes it 0.
    """

    batch_size: int
    seq_len: int
    multiple: int
    segments: Segments
    """as rows hold them"""
    found: Segments
    """as the table gives them: each of one document, some without slots"""
    number: Ints
    """(segments,) number of each in its row, from 0"""
    row_edges: Ints
    """(rows + 1,) cumulative number of segments by row, over all batches"""
    ended: NDArray[np.bool_]
    """(segments,) whether the last slot holds the document's last token (with concat)"""
    pieces: Gathered
    dtype: np.dtype[Any]
    masks: Gathered | None
    """stored masks of the same tokens; None if no source has them"""
    blanks: Gathered | None
    """for each of the same tokens 1 if its document was deleted, else 0; None if none was"""
    sources: Sequence[Documents]
    reads: ReadRanges
    """the ranges of the same tokens in `sources`"""

    @cached_property
    def gaps(self) -> Ints:
        """(segments,) slots of padding after each, up to a multiple."""
        slots = self.segments.slots
        return np.zeros_like(slots) if self.multiple == 1 else -slots % self.multiple

    @cached_property
    def filled(self) -> Ints:
        """(rows,) slots that its segments take, which come first in a row."""
        taken = self.segments.slots + self.gaps
        before: Ints = np.append(0, np.cumsum(taken))[self.row_edges]
        return np.diff(before)

    def batches(self) -> Iterator[BatchSegments]:
        """The segments of each batch."""
        slots, filled, total = self.segments.slots, self.filled, self.batch_size * self.seq_len
        # Rows are end to end, including their padding.
        shift = np.arange(len(filled)) * self.seq_len - np.cumsum(filled) + filled
        end = np.cumsum(slots + self.gaps) + shift[self.segments.row] - self.gaps
        bounds = self.row_edges[:: self.batch_size].tolist()
        for number, here in enumerate(map(slice, bounds, bounds[1:])):
            rows = slice(number * self.batch_size, (number + 1) * self.batch_size)
            ends = end[here] - number * total
            yield BatchSegments(
                begin=ends - slots[here],
                end=ends,
                number=self.number[here],
                context=self.segments.context[here],
                ended=self.ended[here],
                padding=_padding(filled[rows], self.seq_len),
                gaps=consecutive(ends, self.gaps[here]) if self.multiple > 1 else _NONE,
            )

    def tokens(self, fill: Ints) -> Iterator[NDArray[Any]]:
        """The tokens of each batch end to end, zeros for padding; read-only.

        Args:
            fill: (rows,) zeros after the segments of each row.
        """
        return self._joined(self.pieces, fill, self.dtype, b"\0" * self.dtype.itemsize)

    def token_masks(self, fill: Ints) -> Iterator[NDArray[np.bool_]]:
        """Their stored masks, ones for padding; only if `masks` is not None."""
        assert self.masks is not None
        return self._joined(self.masks, fill, np.dtype(bool), b"\1")

    def token_blanks(self, fill: Ints) -> Iterator[NDArray[np.bool_]]:
        """Which tokens are of deleted documents; only if `blanks` is not None."""
        assert self.blanks is not None
        return self._joined(self.blanks, fill, np.dtype(bool), b"\0")

    def side(self, name: str, fill: Ints) -> Iterator[NDArray[Any]]:
        """The values of a side array of the same tokens, zeros for padding."""
        pieces, dtype = read_tokens([each.side[name] for each in self.sources], self.reads)
        return self._joined(pieces, fill, dtype, b"\0" * dtype.itemsize)

    def _joined(
        self, pieces: Gathered, fill: Ints, dtype: np.dtype[Any], filler: bytes
    ) -> Iterator[NDArray[Any]]:
        more = self.ended + self.gaps
        if more.any():
            short = np.flatnonzero(more)
            pieces = pieces.followed(short, filler, more[short])
        ends = pieces.range.searchsorted(self.row_edges[1:])
        sizes = fill * len(filler)
        views = pieces.views.inserted(ends, sizes, filler * int(fill.max(initial=0)))
        after = ends + np.arange(1, len(ends) + 1)
        bounds = [0, *after[self.batch_size - 1 :: self.batch_size].tolist()]
        for batch in map(slice, bounds, bounds[1:]):
            yield np.frombuffer(views.take(batch).join(), dtype)


def read_batches(table: RowTable, batches: Sequence[Ints], batch_size: int) -> Reading:
    """Look up several batches of rows in one vectorised pass.

    A batch of fewer than `batch_size` rows is completed with padding; a row of -1 is padding.
    """
    numbers = [batch * batch_size + np.flatnonzero(rows >= 0) for batch, rows in enumerate(batches)]
    rows = np.concatenate(batches)
    found = table.segments(rows[rows >= 0])
    found = replace(found, row=np.concatenate(numbers)[found.row])
    reads = ranges_to_read(table, found)
    segments = reads.segments
    row_edges = np.searchsorted(segments.row, np.arange(len(batches) * batch_size + 1))
    pieces, dtype = read_tokens(table.documents, reads)
    blanked = any(documents.base.blanked is not None for documents in table.documents)
    masked = blanked or any(documents.masked for documents in table.documents)
    return Reading(
        batch_size=batch_size,
        seq_len=table.seq_len,
        multiple=table.multiple,
        segments=segments,
        found=found,
        number=np.arange(len(segments.row)) - row_edges[segments.row],
        row_edges=row_edges,
        ended=reads.ended,
        pieces=pieces,
        dtype=dtype,
        masks=_read(table.documents, reads, _masks) if masked else None,
        blanks=_read(table.documents, reads, _blanks) if blanked else None,
        sources=table.documents,
        reads=reads,
    )


_NONE = np.empty(0, np.int64)
EXTRAS = ("source", "document")
"""Arrays of a batch on request that nothing is read for; others are side arrays."""
FarRanges = tuple[PagedFiles, PageRanges]
"""files in a bucket, and what is read of them"""


def side_name(extra: str) -> str:
    """The name of the side array that an extra is of.

    >>> side_name("weight"), side_name("target_weight")
    ('weight', 'weight')
    """
    return extra.removeprefix(TARGET)


def read_for(documents: Documents, extras: Sequence[str]) -> list[Documents]:
    """What batches with `extras` are read from: the tokens, and side arrays that these name."""
    names = {side_name(extra) for extra in extras if extra not in EXTRAS}
    return [documents, *(documents.side[name] for name in sorted(names))]


def far_ranges(table: RowTable, rows: Ints, extras: Sequence[str] = ()) -> Iterator[FarRanges]:
    """What some rows, and their extras, are read from in buckets."""
    reads = ranges_to_read(table, table.segments(rows))
    ranges = reads.ranges
    for documents, mine in _by_source(table.documents, ranges):
        asked = [column[mine] for column in (ranges.document, ranges.start, reads.tokens)]
        for each in read_for(documents, extras):
            if each.is_far:
                yield each.pages, each.page_ranges(*asked)


def ranges_to_read(table: RowTable, found: Segments) -> ReadRanges:
    """The ranges of tokens of some segments of a table, sorted by row."""
    return table.read_ranges(found, _left(table.documents, found) <= found.slots)


def read_tokens(sources: Sequence[Documents], reads: ReadRanges) -> tuple[Gathered, np.dtype[Any]]:
    """The tokens of the ranges of all segments, in order, and their one type."""
    dtype = np.result_type(*(documents.dtype for documents in sources))
    return _read(sources, reads, _tokens_as(dtype)), dtype.newbyteorder("<")


def _padding(filled: Ints, seq_len: int) -> list[tuple[int, int]]:
    """The padding of rows, end to end, of which `filled` slots are used."""
    short = np.flatnonzero(filled < seq_len).tolist()
    return [(row * seq_len + int(filled[row]), (row + 1) * seq_len) for row in short]


def _by_source(sources: Sequence[Documents], segments: Segments) -> list[tuple[Documents, Ints]]:
    """Each source that has segments here, and their numbers."""
    present = sorted(set(segments.source.tolist()))
    return [(sources[k], np.flatnonzero(segments.source == k)) for k in present]


def _left(sources: Sequence[Documents], segments: Segments) -> Ints:
    """Tokens of each segment's document from the segment's start on."""
    if len(sources) == 1:
        return sources[0].lengths[segments.document].astype(np.int64) - segments.start
    left = -segments.start
    for documents, mine in _by_source(sources, segments):
        left[mine] += documents.lengths[segments.document[mine]]
    return left


Read = Callable[[Documents, Ints, Ints, Ints], Gathered]


def _read(sources: Sequence[Documents], reads: ReadRanges, read: Read) -> Gathered:
    """The byte ranges of segments in order, from all sources."""
    ranges, count = reads.ranges, reads.tokens
    if len(sources) == 1:
        found = read(sources[0], ranges.document, ranges.start, count)
        return Gathered(found.views, reads.owner[found.range])
    views: list[ByteRanges] = []
    numbers = [np.empty(0, np.int64)]
    for documents, mine in _by_source(sources, ranges):
        found = read(documents, ranges.document[mine], ranges.start[mine], count[mine])
        views.append(found.views)
        numbers.append(mine[found.range])
    number = np.concatenate(numbers)
    order = np.argsort(number, kind="stable")
    return Gathered(ByteRanges.chain(views).take(order), reads.owner[number[order]])


def _tokens_as(dtype: np.dtype[Any]) -> Read:
    """Tokens, widened where a source of smaller ones is mixed with one of larger ones."""

    def read(documents: Documents, document: Ints, start: Ints, count: Ints) -> Gathered:
        found = documents.tokens(document, start, count)
        if documents.dtype.itemsize == dtype.itemsize:
            return found
        narrow = found.views.join()
        wide = np.frombuffer(narrow, documents.dtype.newbyteorder("<")).astype(dtype)
        return Gathered.cut(wide, count)

    return read


def _masks(documents: Documents, document: Ints, start: Ints, count: Ints) -> Gathered:
    if documents.masked and documents.base.blanked is None:
        return documents.masks(document, start, count)
    mask = np.repeat(~documents.are_blank(document), count)
    if documents.masked:
        mask &= np.frombuffer(documents.masks(document, start, count).views.join(), bool)
    return Gathered.cut(mask, count)


def _blanks(documents: Documents, document: Ints, start: Ints, count: Ints) -> Gathered:
    del start
    return Gathered.cut(np.repeat(documents.are_blank(document), count), count)
