"""Reading batches: their segments, the slots of these, and their tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, Bools, ByteRanges, Ints, consecutive
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
    ended: Bools
    """whether the last slot has no target"""
    padding: list[tuple[int, int]]
    """padding after the segments of each row, as `(first slot, slot after the last)`"""
    gaps: Ints
    """slots of padding that belong to segments, after each"""

    @property
    def first(self) -> Ints:
        """Where the first token of each lies in a stream of tokens: it has one more than slots."""
        return self.begin + np.arange(len(self.begin))

    @property
    def last(self) -> Ints:
        """Where the last token of each lies there, the target of its last slot."""
        return self.end + np.arange(len(self.end))


@dataclass(frozen=True)
class Reading:
    """The segments of some batches, rows end to end, and the ranges of their tokens.

    A segment has one token more than slots: its inputs, and the target of its last slot. If it has
    `ended`, nothing follows: the ranges lack that token and the streams make it 0.
    """

    table: RowTable
    batch_size: int
    found: Segments
    """as the table gives them: each of one document, some without slots"""
    reads: ReadRanges
    row_edges: Ints
    """(rows + 1,) cumulative number of segments by row, over all batches"""

    @property
    def segments(self) -> Segments:
        """As rows hold them."""
        return self.reads.segments

    @cached_property
    def number(self) -> Ints:
        """(segments,) number of each in its row, from 0."""
        return np.arange(len(self.segments.row)) - self.row_edges[self.segments.row]

    @cached_property
    def gaps(self) -> Ints:
        """(segments,) slots of padding after each, up to a multiple."""
        slots, multiple = self.segments.slots, self.table.multiple
        return np.zeros_like(slots) if multiple == 1 else -slots % multiple

    @cached_property
    def left(self) -> Ints:
        """(rows,) slots after its segments, which come first in a row."""
        taken = np.append(0, np.cumsum(self.segments.slots + self.gaps))
        return self.table.seq_len - np.diff(taken[self.row_edges])

    @cached_property
    def batches(self) -> list[BatchSegments]:
        """The segments of each batch."""
        slots, left, seq_len = self.segments.slots, self.left, self.table.seq_len
        # Rows are end to end, including their padding.
        shift = np.cumsum(left) - left
        end = np.cumsum(slots + self.gaps) + shift[self.segments.row] - self.gaps
        bounds, found = self.row_edges[:: self.batch_size].tolist(), []
        for number, here in enumerate(map(slice, bounds, bounds[1:])):
            in_batch = left[number * self.batch_size : (number + 1) * self.batch_size]
            ends = end[here] - number * self.batch_size * seq_len
            short = np.flatnonzero(in_batch)
            stops = (short + 1) * seq_len
            batch = BatchSegments(
                begin=ends - slots[here],
                end=ends,
                number=self.number[here],
                context=self.segments.context[here],
                ended=self.reads.ended[here],
                padding=[*zip((stops - in_batch[short]).tolist(), stops.tolist(), strict=True)],
                gaps=consecutive(ends, self.gaps[here]) if self.table.multiple > 1 else _NONE,
            )
            found.append(batch)
        return found

    def tokens(self) -> Iterator[AnyArray]:
        """The tokens of each batch end to end, zeros for padding; read-only."""
        pieces, dtype = read_tokens(self.table.documents, self.reads)
        return self._joined(pieces, dtype, b"\0" * dtype.itemsize)

    def side(self, name: str) -> Iterator[AnyArray]:
        """The values of a side array of the same tokens, zeros for padding."""
        sides = [documents.side[name] for documents in self.table.documents]
        pieces, dtype = read_tokens(sides, self.reads)
        return self._joined(pieces, dtype, b"\0" * dtype.itemsize)

    @cached_property
    def blanked(self) -> bool:
        """Whether documents were deleted."""
        return any(documents.base.blanked is not None for documents in self.table.documents)

    def target_masks(self) -> Iterator[Bools] | None:
        """The stored masks of the targets of each batch, row by row; None if no source has them."""
        if not (self.blanked or any(documents.masked for documents in self.table.documents)):
            return None
        pieces = _read(self.table.documents, self.reads, _masks)
        streams = self._joined(pieces, np.dtype(bool), b"\1")
        # The first token of a segment is no target.
        made = zip(self.batches, streams, strict=True)
        return (np.delete(stream, batch.first) for batch, stream in made)

    def input_blanks(self) -> Iterator[Bools] | None:
        """Which slots of each batch, row by row, are of deleted documents; None if none was."""
        if not self.blanked:
            return None
        pieces = _read(self.table.documents, self.reads, _blanks)
        streams = self._joined(pieces, np.dtype(bool), b"\0")
        # The last token of a segment is no input.
        made = zip(self.batches, streams, strict=True)
        return (np.delete(stream, batch.last) for batch, stream in made)

    def _joined(self, pieces: Gathered, dtype: np.dtype[Any], filler: bytes) -> Iterator[AnyArray]:
        more = self.reads.ended + self.gaps
        if more.any():
            short = np.flatnonzero(more)
            pieces = pieces.followed(short, filler, more[short])
        ends = pieces.range.searchsorted(self.row_edges[1:])
        sizes = self.left * len(filler)
        views = pieces.views.inserted(ends, sizes, filler * int(self.left.max(initial=0)))
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
    edges = np.searchsorted(reads.segments.row, np.arange(len(batches) * batch_size + 1))
    return Reading(table, batch_size, found, reads, edges)


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
