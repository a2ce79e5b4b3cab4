"""Cutting a corpus into units of work.

The cuts follow from the files alone: about `unit_bytes` of text a unit, cut at record ends. Files
of 1 MiB and more never share a unit; smaller ones are grouped in sorted order.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from jaxdata.convert.contents import contents, records_of
from jaxdata.convert.inputs import InputFile, reading
from jaxdata.convert.kinds import Format
from jaxdata.convert.parts import UNIT_BYTES, Batches, Data, Part, ReadSettings, Unit
from jaxdata.convert.splitting import BYTE_ORDER_MARK, Unreadable
from jaxdata.convert.tables import Table, in_pieces, open_table, packed
from jaxdata.convert.text_files import huge, piece_end

__all__ = ["cut"]

_ALONE = 2**20  # bytes from which a file shares no unit
_LINE = 2**20  # bytes of a long line looked at at a time


def cut(
    files: list[InputFile],
    settings: ReadSettings,
    unit_bytes: int = UNIT_BYTES,
    first_file: int = 0,
) -> Iterator[Unit]:
    """Give the units of a corpus in order.

    Args:
        files: the inputs, sorted.
        settings: which columns are read, and how much is too much.
        unit_bytes: text a unit holds, about.
        first_file: the number of the first file in the names of units.
    """
    for unit in _units(files, settings, unit_bytes):
        file, block = unit.place
        yield replace(unit, name=_name(first_file + file, block))


def _units(files: list[InputFile], settings: ReadSettings, unit_bytes: int) -> Iterator[Unit]:
    small: list[int] = []
    for number, file in enumerate(files):
        alone = file.size >= min(_ALONE, unit_bytes)
        if small and (alone or _text_bytes(files, [*small, number]) > unit_bytes):
            yield _group(files, small)
            small = []
        if alone:
            yield from _cut_file(files, number, settings, unit_bytes)
        else:
            small.append(number)
    if small:
        yield _group(files, small)


def _group(files: list[InputFile], numbers: list[int]) -> Unit:
    size = sum(files[number].size for number in numbers)
    parts = tuple(Part(number) for number in numbers)
    return Unit(_name(numbers[0], 0), parts, size, _text_bytes(files, numbers))


def _text_bytes(files: list[InputFile], numbers: list[int]) -> int:
    return sum(files[number].text_bytes for number in numbers)


def _cut_file(
    files: list[InputFile], number: int, settings: ReadSettings, unit_bytes: int
) -> Iterator[Unit]:
    file = files[number]
    if _is_one_text(file, settings):
        yield _group(files, [number])
        return
    if file.kind.table:
        blocks = _cut_table(number, file, settings, unit_bytes)
    elif file.kind.format == "jsonl" and not file.kind.compression:
        blocks = _cut_lines(number, file, unit_bytes)
    elif file.kind.format == "txt" and not (file.kind.compression or file.kind.archive):
        blocks = _cut_text(number, file, settings, unit_bytes)
    else:
        blocks = _cut_stream(number, file, settings, unit_bytes)
    for block, (parts, size, text_bytes) in enumerate(blocks):
        yield Unit(_name(number, block), parts, size, text_bytes)


_Block = tuple[tuple[Part, ...], int, int]  # parts, their bytes on disk, their bytes of records


def _cut_lines(number: int, file: InputFile, unit_bytes: int) -> Iterator[_Block]:
    """Cut after the first line end at or behind each multiple of `unit_bytes`."""
    with reading(file.path), file.path.open("rb") as lines:
        start = 0
        while start < file.size:
            lines.seek(_next_multiple(start, unit_bytes))
            while (piece := lines.readline(_LINE)) and not piece.endswith(b"\n"):
                pass
            stop = min(lines.tell(), file.size)
            yield (Part(number, start, stop),), stop - start, stop - start
            start = stop


def _is_one_text(file: InputFile, settings: ReadSettings) -> bool:
    """Tell whether a file is a text that one worker reads; of a compressed one it is a guess."""
    text = file.kind.format == "txt" and not file.kind.archive
    return text and not huge(_text_bytes([file], [0]), settings)


def _cut_text(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[_Block]:
    """Cut where the first piece ends at or behind each multiple of `unit_bytes`."""
    size = settings.piece_bytes
    with reading(file.path), file.path.open("rb") as text:
        start = 0
        while start < file.size:
            wanted = _next_multiple(start, unit_bytes)
            piece = max(wanted // size, start // size + 1)
            stop = piece_end(text, piece * size, file.size, settings)
            if stop < wanted:
                stop = piece_end(text, (piece + 1) * size, file.size, settings)
            yield (Part(number, start, stop),), stop - start, stop - start
            start = stop


def _cut_stream(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[_Block]:
    """Read a file here, cut as `_cut_lines` does: nobody can begin in its middle."""
    feed = _Feed(number, unit_bytes)
    with reading(file.path), file.path.open("rb") as raw:
        before = 0
        for format_, stream in contents(file, raw, settings.expansion):
            for data, size in _pieces(stream, format_, feed, settings):
                full = size >= feed.room
                feed.add(data, size)
                if full:
                    yield feed.take(raw.tell() - before)
                    before = raw.tell()
        if feed.parts:
            yield feed.take(raw.tell() - before)


class _Feed:
    """The parts of the next unit of a stream."""

    def __init__(self, file: int, unit_bytes: int) -> None:
        self._file, self._unit_bytes = file, unit_bytes
        self._start = self._offset = 0
        self.parts: list[Part] = []

    @property
    def room(self) -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return _next_multiple(self._offset, self._unit_bytes) - self._offset

    def add(self, data: Data, size: int) -> None:
        self.parts.append(Part(self._file, self._offset, data=data))
        self._offset += size

    def take(self, packed_size: int) -> _Block:
        parts, size = tuple(self.parts), self._offset - self._start
        self.parts, self._start = [], self._offset
        return parts, packed_size, size


def _pieces(
    stream: io.BufferedReader, format_: Format, feed: _Feed, settings: ReadSettings
) -> Iterator[tuple[Data, int]]:
    """Give records of a stream, and their bytes, so many at a time as the feed has room for."""
    if format_ == "jsonl":
        mark = BYTE_ORDER_MARK
        while block := stream.read(feed.room):
            block += _line_end(stream, settings.record_bytes)
            yield block.removeprefix(mark), len(block)
            mark = b""
        return
    records: list[bytes | Unreadable] = []
    size = 0
    for record in records_of(stream, format_, settings):
        records.append(record)
        size += len(record) if isinstance(record, bytes) else 0
        if size >= feed.room:
            yield tuple(records), size
            records, size = [], 0
    if records:
        yield tuple(records), size


def _line_end(stream: IO[bytes], limit: int) -> bytes:
    """The rest of a line; of one that is too long so much that the worker sees it is."""
    end = stream.readline(limit + 2)
    if len(end) == limit + 2 and not end.endswith(b"\n"):
        while (piece := stream.readline(_LINE)) and not piece.endswith(b"\n"):
            pass
        end += b"\n"
    return end


def _cut_table(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[_Block]:
    """Runs of groups, each closed when its text reaches `unit_bytes`; a huge group is cut."""
    with open_table(file) as table:
        sizes = table.sizes(settings.columns)
        share = file.size / max(1, sum(sizes))
        start = held = 0
        for group, size in enumerate(sizes):
            if size >= 2 * unit_bytes:
                if group > start:
                    yield (Part(number, start, group),), int(held * share), held
                yield from _cut_group(number, table, group, settings, unit_bytes, share)
                start, held = group + 1, 0
                continue
            held += size
            if held >= unit_bytes or group + 1 == len(sizes):
                yield (Part(number, start, group + 1),), int(held * share), held
                start, held = group + 1, 0


def _cut_group(
    number: int, table: Table, group: int, settings: ReadSettings, unit_bytes: int, share: float
) -> Iterator[_Block]:
    """Read a group here: nobody can begin in its middle."""
    batches = []
    size = 0
    read = table.batches(settings.columns, group, group + 1)
    for batch in (piece for whole in read for piece in in_pieces(whole, unit_bytes)):
        batches.append(batch)
        size += batch.nbytes
        if size >= unit_bytes:
            yield (Part(number, group, data=Batches(packed(batches))),), int(size * share), size
            batches, size = [], 0
    if batches:
        yield (Part(number, group, data=Batches(packed(batches))),), int(size * share), size


def _next_multiple(start: int, unit_bytes: int) -> int:
    return (start // unit_bytes + 1) * unit_bytes


def _name(file: int, block: int) -> str:
    return f"{file:05d}-{block:05d}"
