"""Cutting a corpus into units of work, and reading the records of one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import IO

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.archives import Entry, entries
from jaxdata.converter.inputs.files import HEAD, FileType, InputFile
from jaxdata.converter.inputs.formats.base import (
    counted,
    endings,
    first_number,
    is_readable,
    is_table,
    kind_of,
    reader_of,
)
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable, reading
from jaxdata.converter.inputs.streams import unpacked
from jaxdata.converter.inputs.units import (
    UNIT_BYTES,
    Block,
    Data,
    FilePart,
    ReadSettings,
    Unit,
    next_multiple,
)
from jaxdata.dataset.index import Member

Run = tuple[Member | None, Iterator[Raw]]
"""Records that follow each other; in an archive those of one file, and which is the first."""

_LINK = FileType("jsonl")  # of no meaning: it is not read


@dataclass(frozen=True)
class Content:
    """What lies in a file: all of it, or a file of an archive, while that is read."""

    where: str  # for errors
    kind: FileType
    stream: io.BufferedReader  # decompressed
    first: Member | None = None  # its first record, in an archive
    link: Unreadable | None = None  # what stands for a link in an archive, which is not read

    def records(self, settings: ReadSettings) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records; what is wrong with the bytes is an InputError."""
        with reading(self.where):
            yield from (
                [self.link] if self.link else reader_of(self.kind).records(self.stream, settings)
            )

    def blocks(self, settings: ReadSettings, room: Callable[[], int]) -> Iterator[tuple[Data, int]]:
        """Give the records, and their bytes, as many at a time as there is room for."""
        with reading(self.where):
            if self.link:
                yield (self.link,), 0
            else:
                yield from reader_of(self.kind).blocks(self.stream, settings, room)


def raw_records(file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
    r"""Give every record of a part of a file: lines, array elements, table rows, texts.

    Blank lines are given too, so that counting what comes counts lines. A line ends with \n or
    \r\n; a byte order mark at the beginning of a file is left out.
    """
    return chain.from_iterable(records for _, records in record_runs(file, part, settings))


def record_runs(file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Run]:
    """Give the records of :func:`raw_records`, those of each file of an archive by themselves."""
    if isinstance(part.data, tuple):
        yield part.member, iter(part.data)
    elif part.data is not None:
        yield part.member, reader_of(file.kind).read_data(part.data, settings)
    elif is_table(file.kind) or part.stop is not None:
        yield None, reader_of(file.kind).read_part(file, part, settings)
    else:
        with reading(file.where), file.open() as packed:
            for content in contents(file, packed, settings.expansion):
                yield content.first, content.records(settings)


def contents(file: InputFile, packed: IO[bytes], expansion: int) -> Iterator[Content]:
    """Give what is in an open file: itself, or each file of an archive."""
    path = file.where
    stream = unpacked(packed, file.kind.compression, path, expansion)
    if not file.kind.archive:
        yield Content(path, file.kind, stream)
        return
    found = False
    for entry in entries(stream, path):
        if any(name.startswith(".") for name in entry.name.split("/") if name != "."):
            continue
        where = f"{path}: {entry.name}"
        if entry.link:
            link = Unreadable(f"{entry.link}, which is not followed", entry.target.encode())
            yield Content(where, _LINK, entry.content, Member(entry.name, "line", 1), link)
        elif is_readable(entry.name):
            found = True
            kind = _kind_of_entry(where, entry)
            first = Member(entry.name, counted(kind), first_number(kind))
            opened = unpacked(entry.content, kind.compression, where, expansion)
            yield Content(where, kind, opened, first)
    if not found:
        raise InputError(f"{path} is an archive without any file that ends in {endings()}")


def _kind_of_entry(where: str, entry: Entry) -> FileType:
    with reading(where):
        kind = kind_of(entry.name, entry.content.peek(HEAD)[:HEAD])
    if kind.archive or is_table(kind):
        raise InputError(
            f"{where} is {'an archive' if kind.archive else 'a table'} in an archive, which cannot "
            "be read in one pass: unpack the archive and give its files"
        )
    return kind


def feed_blocks(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[Block]:
    """Give a file in blocks of about `unit_bytes`, each with its records in it."""
    feed = _Feed(number, unit_bytes)
    with reading(file.where), file.open() as raw:
        before = 0
        for content in contents(file, raw, settings.expansion):
            place = content.first
            for data, size in content.blocks(settings, lambda: feed.room):
                full = size >= feed.room
                feed.add(data, size, place)
                place = place and place.after(_records_in(data))
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
        self.parts: list[FilePart] = []

    @property
    def room(self) -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return next_multiple(self._offset, self._unit_bytes) - self._offset

    def add(self, data: Data, size: int, member: Member | None) -> None:
        self.parts.append(FilePart(self._file, self._offset, data=data, member=member))
        self._offset += size

    def take(self, packed_size: int) -> Block:
        parts, size = tuple(self.parts), self._offset - self._start
        self.parts, self._start = [], self._offset
        return parts, packed_size, size


def _records_in(data: Data) -> int:
    """How many records these are."""
    if isinstance(data, tuple):
        return len(data)
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


_ALONE = 2**20  # bytes from which a file shares no unit


def cut(
    files: list[InputFile],
    settings: ReadSettings,
    unit_bytes: int = UNIT_BYTES,
    first_file: int = 0,
) -> Iterator[Unit]:
    """Give the units of a corpus in order, of about `unit_bytes` of text each.

    `files` are sorted; `first_file` is the number of the first in the names of units.
    """
    for unit in _units(files, settings, unit_bytes):
        file, block = unit.place
        own = tuple(files[part.file] for part in unit.parts)
        yield replace(unit, name=_name(first_file + file, block), files=own)


def _units(files: list[InputFile], settings: ReadSettings, unit_bytes: int) -> Iterator[Unit]:
    small: list[int] = []
    held = 0  # bytes of text in the small ones
    for number, file in enumerate(files):
        alone = file.size >= min(_ALONE, unit_bytes)
        if small and (alone or held + file.text_bytes > unit_bytes):
            yield _group(files, small)
            small, held = [], 0
        if alone:
            yield from _cut_file(files, number, settings, unit_bytes)
        else:
            small.append(number)
            held += file.text_bytes
    if small:
        yield _group(files, small)


def _group(files: list[InputFile], numbers: list[int]) -> Unit:
    parts = tuple(FilePart(number) for number in numbers)
    size = sum(files[number].size for number in numbers)
    text_bytes = sum(files[number].text_bytes for number in numbers)
    return Unit(_name(numbers[0], 0), parts, size, text_bytes)


def _cut_file(
    files: list[InputFile], number: int, settings: ReadSettings, unit_bytes: int
) -> Iterator[Unit]:
    file = files[number]
    kind = file.kind
    if not kind.archive and reader_of(kind).is_one_unit(file, settings):
        yield _group(files, [number])
        return
    blocks = None
    if not (kind.compression or kind.archive):
        blocks = reader_of(kind).cut(number, file, settings, unit_bytes)
    blocks = blocks or feed_blocks(number, file, settings, unit_bytes)
    for block, (parts, size, text_bytes) in enumerate(blocks):
        yield Unit(_name(number, block), parts, size, text_bytes)


def _name(file: int, block: int) -> str:
    return f"{file:05d}-{block:05d}"
