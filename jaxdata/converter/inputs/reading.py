"""Cutting a corpus into units of work, and reading the records of one."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.archives import entries
from jaxdata.converter.inputs.files import (
    HEAD,
    UNIT_BYTES,
    Block,
    Data,
    FilePart,
    InputFile,
    ReadSettings,
    Unit,
    next_multiple,
)
from jaxdata.converter.inputs.formats.base import (
    Format,
    SplittableFormat,
    endings,
    is_readable,
    kind_of,
    reader_of,
)
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable, reading
from jaxdata.converter.inputs.streams import unpacked
from jaxdata.dataset.index import Member

Run = tuple[Member | None, Iterator[Raw]]
"""Records that follow each other; in an archive those of one file, and which is the first."""


class _Link(Format):
    """A link in an archive, which is not followed: it may lead anywhere."""

    name = ""

    def records(self, _stream: IO[bytes], _: ReadSettings) -> Iterator[Unreadable]:
        yield Unreadable("a link, which is not followed", b"")


@dataclass(frozen=True)
class Content:
    """What lies in a file: all of it, or a file of an archive, while that is read."""

    where: str  # for errors
    format: Format
    stream: IO[bytes]  # decompressed
    first: Member | None = None  # its first record, in an archive

    def records(self, settings: ReadSettings) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records; what is wrong with the bytes is an InputError."""
        with reading(self.where):
            yield from self.format.records(self.stream, settings)

    def blocks(self, settings: ReadSettings, room: Callable[[], int]) -> Iterator[tuple[Data, int]]:
        """Give the records, and their bytes, as many at a time as there is room for."""
        with reading(self.where):
            yield from self.format.blocks(self.stream, settings, room)


def raw_records(file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
    r"""Give every record of a part of a file: lines, array elements, table rows, texts.

    Blank lines are given too, so that counting what comes counts lines. A line ends with \n or
    \r\n; a byte order mark at the beginning of a file is left out.
    """
    return chain.from_iterable(records for _, records in record_runs(file, part, settings))


def record_runs(file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Run]:
    """Give the records of :func:`raw_records`, those of each file of an archive by themselves."""
    reader = reader_of(file.kind)
    if isinstance(part.data, tuple):
        yield part.member, iter(part.data)
    elif part.data is not None:
        yield part.member, reader.records(io.BytesIO(part.data), settings)
    elif isinstance(reader, SplittableFormat) and (reader.table or part.stop is not None):
        yield None, reader.read_part(file, part, settings)
    else:
        with reading(file.where), file.open() as packed:
            for content in contents(file, packed):
                yield content.first, content.records(settings)


def contents(file: InputFile, packed: io.BufferedReader) -> Iterator[Content]:
    """Give what is in an open file: itself, or each file of an archive."""
    path = file.where
    stream = unpacked(packed, file.kind.compression, path)
    if not file.kind.archive:
        yield Content(path, reader_of(file.kind), stream)
        return
    found = False
    for name, content in entries(stream, path):
        hidden = any(one.startswith(".") and one != "." for one in name.split("/"))
        where = f"{path}: {name}"
        if content is None and not hidden:
            yield Content(where, _Link(), stream, Member(name, "line", 1))
        if content is None or hidden or not is_readable(name):
            continue
        found = True
        with reading(where):
            kind = kind_of(name, content.peek(HEAD)[:HEAD])
        reader = reader_of(kind)
        if kind.archive or reader.table:
            raise InputError(
                f"{where} is {'an archive' if kind.archive else 'a table'} in an archive, "
                "which cannot be read in one pass: unpack the archive and give its files"
            )
        first = Member(name, reader.counted, reader.first_number)
        yield Content(where, reader, unpacked(content, kind.compression, where), first)
    if not found:
        raise InputError(f"{path} is an archive without any file that ends in {endings()}")


def feed_blocks(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[Block]:
    """Give a file in blocks of about `unit_bytes`, each with its records in it."""
    parts: list[FilePart] = []
    start = offset = before = 0

    def room() -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return next_multiple(offset, unit_bytes) - offset

    with reading(file.where), file.open() as raw:
        for content in contents(file, raw):
            place = content.first
            for data, size in content.blocks(settings, room):
                full = size >= room()
                parts.append(FilePart(number, offset, data=data, member=place))
                place = place and place.after(_records_in(data))
                offset += size
                if full:
                    yield tuple(parts), raw.tell() - before, offset - start
                    parts, start, before = [], offset, raw.tell()
        if parts:
            yield tuple(parts), raw.tell() - before, offset - start


def _records_in(data: Data) -> int:
    """How many records these are."""
    if isinstance(data, tuple):
        return len(data)
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


_ALONE = 2**20  # bytes from which a file shares no unit


def cut(
    files: Sequence[InputFile],
    settings: ReadSettings,
    unit_bytes: int = UNIT_BYTES,
    first_file: int = 0,
) -> Iterator[Unit]:
    """Give the units of a corpus in order, of about `unit_bytes` of text each.

    `files` are sorted; a large one shares no unit. `first_file` is the number of the first in the
    names of units.
    """

    def units(first: int, blocks: Iterable[Block]) -> Iterator[Unit]:
        for block, (parts, size, text_bytes) in enumerate(blocks):
            name = f"{first_file + first:05d}-{block:05d}"
            yield Unit(name, parts, size, text_bytes, tuple(files[part.file] for part in parts))

    def together(first: int, stop: int) -> Iterator[Unit]:
        """Some files as one unit, which a worker reads."""
        own = files[first:stop]
        sizes = sum(file.size for file in own), sum(file.text_bytes for file in own)
        block = tuple(map(FilePart, range(first, stop))), *sizes
        return units(first, [block] if own else [])

    first = held = 0  # the first small file that is in no unit, and bytes of text from it on
    for number, file in enumerate(files):
        large = file.size >= min(_ALONE, unit_bytes)
        if large or held + file.text_bytes > unit_bytes:
            yield from together(first, number)
            first, held = number, 0
        held += file.text_bytes
        if large:
            reader, whole = reader_of(file.kind), not (file.kind.compression or file.kind.archive)
            if not file.kind.archive and reader.is_one_unit(file, settings):
                yield from together(number, number + 1)
            elif whole and isinstance(reader, SplittableFormat):
                yield from units(number, reader.cut(number, file, settings, unit_bytes))
            else:
                yield from units(number, feed_blocks(number, file, settings, unit_bytes))
            first, held = number + 1, 0
    yield from together(first, len(files))
