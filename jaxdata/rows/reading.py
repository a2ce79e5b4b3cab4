"""Reading batches: their segments, the slots of these, their tokens, and all of these as arrays.

The arrays of a whole batch are made at once from its segments; on request there are more: source
and document of each slot, and side arrays.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyArray, Bools, ByteRanges, Ints, by_value, consecutive
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.dataset.manifest import TARGET
from jaxdata.rows.table import Batch, ReadRanges, RowTable, Segments
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

    @cached_property
    def gaps(self) -> Ints:
        """(segments,) slots of padding after each, up to a multiple."""
        return -self.reads.segments.slots % self.table.multiple

    @cached_property
    def left(self) -> Ints:
        """(rows,) slots after its segments, which come first in a row."""
        taken = np.append(0, np.cumsum(self.reads.segments.slots + self.gaps))
        return self.table.seq_len - np.diff(taken[self.row_edges])

    @cached_property
    def batches(self) -> list[BatchSegments]:
        """The segments of each batch."""
        slots, left, seq_len = self.reads.segments.slots, self.left, self.table.seq_len
        row = self.reads.segments.row
        number_in_row = np.arange(len(row)) - self.row_edges[row]
        # Rows are end to end, including their padding.
        shift = np.cumsum(left) - left
        end = np.cumsum(slots + self.gaps) + shift[row] - self.gaps
        bounds, found = self.row_edges[:: self.batch_size].tolist(), []
        for number, here in enumerate(map(slice, bounds, bounds[1:])):
            in_batch = left[number * self.batch_size : (number + 1) * self.batch_size]
            ends = end[here] - number * self.batch_size * seq_len
            short = np.flatnonzero(in_batch)
            stops = (short + 1) * seq_len
            batch = BatchSegments(
                begin=ends - slots[here],
                end=ends,
                number=number_in_row[here],
                context=self.reads.segments.context[here],
                ended=self.reads.ended[here],
                padding=[*zip((stops - in_batch[short]).tolist(), stops.tolist(), strict=True)],
                gaps=consecutive(ends, self.gaps[here]),
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
    return [(sources[number], mine) for number, mine in by_value(segments.source)]


def _left(sources: Sequence[Documents], segments: Segments) -> Ints:
    """Tokens of each segment's document from the segment's start on."""
    left = -segments.start
    for documents, mine in _by_source(sources, segments):
        left[mine] += documents.lengths[segments.document[mine]].astype(np.int64)
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


_MOST_IN_32_BITS = 2**31


def check_extras(given: Any, table: RowTable | None) -> tuple[str, ...]:
    """Check `extras` as a user gives it: some of `EXTRAS`, and side arrays.

    Refused for transformed rows (None), and for side arrays that not every source has.
    """
    extras = (given,) if isinstance(given, str) else tuple(given)
    if table is None:
        if extras:
            raise InputError(
                f"extras={given!r} take rows as pack and mix return them, but these were "
                "transformed: apply the function to the batches of the loader instead"
            )
        return extras
    sides = sorted({name for documents in _sources(table) for name in documents.side})
    known = (*EXTRAS, *sides, *(TARGET + name for name in sides))
    if not {*extras} <= {*known} or len(set(extras)) < len(extras):
        raise InputError(
            f"extras={given!r}: expected some of {known}, each once; a name beyond {EXTRAS} is "
            "that of a side array of the documents (--keep-per-token)"
        )
    for name in extras:
        extra_dtype(table, name)
    return extras


def extra_dtype(table: RowTable, name: str) -> np.dtype[Any] | type[np.int32 | np.int64]:
    """int32; int64 for document ids if a source has more than 2^31 documents; a side array's.

    Raises:
        InputError: not every source has the side array, in one dtype.
    """
    if name in EXTRAS:
        most = max((len(documents.base) for documents in table.documents), default=0)
        return np.int64 if name == "document" and most > _MOST_IN_32_BITS else np.int32
    side, dtypes = side_name(name), dict[np.dtype[Any], str]()
    for documents in _sources(table):
        if side not in documents.side:
            raise InputError(
                f"extras: {documents.name!r} has no side array {side!r}, which other sources of "
                "these rows have: each must have it, since no value that could be filled in is "
                f"right for all; convert it with --keep-per-token {side}, or leave {name!r} out"
            )
        dtypes.setdefault(documents.side[side].dtype, documents.name)
    if len(dtypes) > 1:
        told = ", ".join(f"{dtype.name} in {source!r}" for dtype, source in dtypes.items())
        raise InputError(
            f"extras: the side array {side!r} is {told}: convert them to one type "
            f"(--keep-per-token {side}:{next(iter(dtypes)).name})"
        )
    return next(iter(dtypes))


def _sources(table: RowTable) -> Iterator[Documents]:
    for _, section in table.sections():
        yield from section.documents


def slot_extras(reading: Reading, extras: Sequence[str]) -> Iterator[Batch]:
    """Each of `extras` for every slot of each batch: (batch_size, seq_len).

    In padding source and document are -1, side arrays 0. These have the value of the slot's input;
    with `target_` before the name that of its target, 0 where it has none.
    """
    seq_len, size = reading.table.seq_len, reading.batch_size
    found = reading.table.origins(reading.found)
    found = found.take(np.flatnonzero(found.slots))
    sides = [extra for extra in extras if extra not in EXTRAS]
    streams = {name: reading.side(name) for name in {*map(side_name, sides)}}
    bounds = np.searchsorted(found.row, np.arange(len(reading.batches) + 1) * size).tolist()
    for number, segments in enumerate(reading.batches):
        values, batch = {name: next(stream) for name, stream in streams.items()}, Batch()
        for extra in sides:
            # In the stream each segment has one token more than slots: the target of its last.
            left_out = segments.first if extra.startswith(TARGET) else segments.last
            batch[extra] = np.delete(values[side_name(extra)], left_out).reshape(size, -1)
        mine = found.take(slice(*bounds[number : number + 2]))
        taken = mine.slots + -mine.slots % reading.table.multiple
        before = np.cumsum(taken) - taken
        first = (mine.row - number * size) * seq_len
        first += before - before[np.searchsorted(mine.row, mine.row)]
        run = np.diff(first, prepend=0, append=size * seq_len)
        for name in [extra for extra in extras if extra in EXTRAS]:
            each = getattr(mine, name).astype(extra_dtype(reading.table, name))
            ids = np.repeat(np.append(each.dtype.type(-1), each), run)
            for begin, stop in segments.padding:
                ids[begin:stop] = -1
            ids[segments.gaps] = -1
            batch[name] = ids.reshape(-1, seq_len)
        yield batch


_MOST_FREE = 8


class BufferPool:
    """Memory for batches, reused once nothing refers to it; safe between threads.

    Fresh arrays of this size come from the kernel page by page, which costs as much as filling
    them.

    Args:
        allocate: makes a writable buffer of a number of bytes.
        most_free: maximum number of free buffers; None for no limit.

    >>> pool = BufferPool()
    >>> array = pool.take(64)
    >>> part, memory = array[:8], array.ctypes.data
    >>> del array
    >>> pool.take(64).ctypes.data == memory  # a part of it is still in use
    False
    >>> del part
    >>> pool.take(64).ctypes.data == memory
    True
    """

    def __init__(
        self, allocate: Callable[[int], Any] = bytearray, most_free: int | None = _MOST_FREE
    ) -> None:
        self._allocate = allocate
        self._free: deque[Any] = deque(maxlen=most_free)
        self._held: dict[int, weakref.ref[Any]] = {}

    def take(self, size: int) -> NDArray[np.uint8]:
        """An uninitialised array of `size` bytes.

        The array and its views keep the memory in use; it is free when the last of them is gone.
        """
        memory = self._find(size)
        # A view of an array made here refers to that array, not to the memory below it.
        whole = np.frombuffer(memory, np.uint8)
        self._held[id(memory)] = weakref.ref(whole, partial(self._release, memory))
        return whole

    def _find(self, size: int) -> Any:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(memory) == size:
                return memory
            self._free.appendleft(memory)
        return self._allocate(size)

    def _release(self, memory: Any, _: Any) -> None:
        del self._held[id(memory)]
        self._free.append(memory)


HOST_BUFFERS = BufferPool()
"""memory of the batches that this process makes for itself"""


def assemble(
    table: RowTable,
    batches: Sequence[Ints],
    batch_size: int,
    extras: Sequence[str] = (),
    buffers: BufferPool = HOST_BUFFERS,
) -> Iterator[Batch]:
    """Read rows into batches.

    Args:
        table: where the rows come from.
        batches: the rows of each batch; a batch of fewer than `batch_size` is completed with
            padding.
        batch_size: rows of a batch.
        extras: arrays to add, some of `rows.reading.EXTRAS` and side arrays.
        buffers: where the memory of the batches comes from.

    Yields:
        `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool), each of
        shape (batch_size, seq_len), and the extras.
    """
    reading = read_batches(table, batches, batch_size)
    nothing: Iterator[Any] = repeat(None)
    masks, blanks = reading.target_masks() or nothing, reading.input_blanks() or nothing
    added = slot_extras(reading, extras) if extras else repeat({})
    made = zip(reading.batches, reading.tokens(), masks, blanks, added, strict=False)
    for segments, stream, mask, blank, more in made:
        batch = _allocate(buffers, batch_size * table.seq_len)
        _write_tokens(batch, segments, stream)
        _write_segments(batch, segments)
        _write_loss(batch["loss_mask"], segments, mask)
        for name in ("targets", "segment_ids", "positions", "loss_mask"):  # inputs are 0 there
            for first, stop in segments.padding:
                batch[name][first:stop] = 0
            batch[name][segments.gaps] = 0
        if blank is not None:
            _clear_blank(batch, more, blank)
        if table.positions == "row":
            along = _slots(batch_size * table.seq_len) % np.int32(table.seq_len)
            batch["positions"] = along * (batch["segment_ids"] > 0)
        arrays = {name: array.reshape(batch_size, -1) for name, array in batch.items()}
        yield {**arrays, **more}


def _allocate(buffers: BufferPool, total: int) -> Batch:
    """The arrays of a batch, not yet written, in one buffer."""
    buffer = buffers.take(total * 17)
    words = buffer[: total * 16].view(np.int32).reshape(4, total)
    names = ("inputs", "targets", "segment_ids", "positions")
    batch: Batch = dict(zip(names, words, strict=True))
    batch["loss_mask"] = buffer[total * 16 :].view(bool)
    return batch


def _write_tokens(batch: Batch, segments: BatchSegments, stream: AnyArray) -> None:
    """Inputs and targets: the inputs shifted by one slot, except in the last slot of a segment."""
    inputs, targets = batch["inputs"], batch["targets"]
    inputs[:] = np.delete(stream, segments.last)
    targets[:-1] = inputs[1:]
    targets[segments.end - 1] = stream[segments.last]


def _write_segments(batch: Batch, segments: BatchSegments) -> None:
    """The number of each slot's segment, and its position there."""
    ids, positions = batch["segment_ids"], batch["positions"]
    # A run is a segment and the padding after it; there may be padding before the first.
    bounds = np.concatenate([[0], segments.begin, [len(ids)]]).astype(np.int32)
    run = bounds[1:] - bounds[:-1]
    ids[:] = np.repeat(np.append(0, segments.number + 1).astype(np.int32), run)
    np.subtract(_slots(len(ids)), np.repeat(bounds[:-1], run), out=positions)


def _write_loss(loss: Bools, segments: BatchSegments, mask: Bools | None) -> None:
    loss[:] = True if mask is None else mask
    loss[(segments.end - 1)[segments.ended]] = False
    loss[consecutive(segments.begin, segments.context)] = False


def _clear_blank(batch: Batch, more: Batch, blank: Bools) -> None:
    """Make padding of the slots of deleted documents; side arrays are 0 already."""
    for array in batch.values():
        array[blank] = 0
    for name in EXTRAS:
        if name in more:
            more[name].reshape(-1)[blank] = -1


@lru_cache(4)
def _slots(total: int) -> NDArray[np.int32]:
    return np.arange(total, dtype=np.int32)
