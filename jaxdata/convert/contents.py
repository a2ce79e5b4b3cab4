"""The raw records of files: of a whole file, or of a part of one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from jaxdata.convert.archives import Entry, entries
from jaxdata.convert.columns import rows
from jaxdata.convert.inputs import InputFile, reading
from jaxdata.convert.kinds import ENDINGS, HEAD, Kind, is_readable, kind_of
from jaxdata.convert.parts import Batches, Data, Part, ReadSettings
from jaxdata.convert.splitting import BYTE_ORDER_MARK, Unreadable, json_values, lines
from jaxdata.convert.streams import unpacked
from jaxdata.convert.tables import open_table, unpacked_batches
from jaxdata.convert.text_files import pieces, text_records
from jaxdata.errors import InputError
from jaxdata.format.members import Member

__all__ = ["Content", "Raw", "contents", "raw_records"]

Raw = bytes | dict[str, Any] | Unreadable
"""A line, an element of an array or a text file as it lies there, or a row of a table."""

_LINK = Kind("jsonl")  # of no meaning: it is not read


@dataclass(frozen=True)
class Content:
    """What lies in a file: all of it, or a file of an archive, while that is read.

    Attributes:
        where: what errors call it.
        kind: how its records are written.
        stream: its bytes, decompressed.
        first: its first record, in an archive; None in none.
        link: of a link in an archive, what stands for its record: nothing of it is read.
    """

    where: str
    kind: Kind
    stream: io.BufferedReader
    first: Member | None = None
    link: Unreadable | None = None

    def records(self, settings: ReadSettings) -> Iterator[bytes | Unreadable]:
        """Give the records; what is wrong with the bytes is an InputError."""
        with reading(self.where):
            if self.link:
                yield self.link
            elif self.kind.format == "json":
                yield from json_values(self.stream, settings.record_bytes)
            elif self.kind.format == "txt":
                yield from text_records(self.stream, settings)
            else:
                yield from _without_mark(lines(self.stream, settings.record_bytes))


def raw_records(
    file: InputFile,
    part: Part,
    settings: ReadSettings,
    members: list[tuple[int, Member]] | None = None,
) -> Iterator[Raw]:
    r"""Give every record of a part of a file: lines, array elements, table rows, texts.

    Blank lines are given too, so that counting what comes counts lines. A line ends with \n or
    \r\n; a byte order mark at the beginning of a file is left out.

    Args:
        file: one of the inputs.
        part: what is read of it.
        settings: what is read of files.
        members: where in an archive records are is added to it, as in `Receipt.members`.
    """
    members = [] if members is None else members
    limit = settings.record_bytes
    if part.data is not None:
        members += [(0, part.member)] if part.member else []
        yield from _records_of_data(part.data, limit)
    elif file.kind.table:
        with open_table(file) as table:
            for batch in table.batches(settings.columns, part.start, part.stop):
                yield from rows(batch, limit)
    elif part.stop is not None:
        with reading(file.path), file.path.open("rb") as stream:
            yield from _range(file, stream, part, settings)
    else:
        with reading(file.path), file.path.open("rb") as packed:
            yield from _records_of_file(file, packed, settings, members)


def _records_of_file(
    file: InputFile, packed: IO[bytes], settings: ReadSettings, members: list[tuple[int, Member]]
) -> Iterator[bytes | Unreadable]:
    count = 0
    for content in contents(file, packed, settings.expansion):
        members += [(count, content.first)] if content.first else []
        for record in content.records(settings):
            yield record
            count += 1


def contents(file: InputFile, packed: IO[bytes], expansion: int) -> Iterator[Content]:
    """Give what is in an open file: itself, or each file of an archive."""
    stream = unpacked(packed, file.kind.compression, str(file.path), expansion)
    if not file.kind.archive:
        yield Content(str(file.path), file.kind, stream)
        return
    found = False
    for entry in entries(stream, str(file.path)):
        if any(name.startswith(".") for name in entry.name.split("/") if name != "."):
            continue
        where = f"{file.path}: {entry.name}"
        if entry.link:
            link = Unreadable(f"{entry.link}, which is not followed", entry.target.encode())
            yield Content(where, _LINK, entry.content, Member(entry.name, "line", 1), link)
        elif is_readable(entry.name):
            found = True
            kind = _kind_of_entry(where, entry)
            first = Member(entry.name, kind.counted, kind.first_number)
            opened = unpacked(entry.content, kind.compression, where, expansion)
            yield Content(where, kind, opened, first)
    if not found:
        raise InputError(f"{file.path} is an archive of no file that ends in {ENDINGS}")


def _kind_of_entry(where: str, entry: Entry) -> Kind:
    with reading(where):
        kind = kind_of(entry.name, entry.content.peek(HEAD)[:HEAD])
    if kind.archive or kind.table:
        raise InputError(
            f"{where} is {'an archive' if kind.archive else 'a table'} in an archive, which cannot "
            "be read in one pass: unpack the archive and give its files"
        )
    return kind


def _without_mark(records: Iterator[bytes | Unreadable]) -> Iterator[bytes | Unreadable]:
    for first in records:
        yield first.removeprefix(BYTE_ORDER_MARK) if isinstance(first, bytes) else first
        yield from records


def _records_of_data(data: Data, limit: int) -> Iterator[Raw]:
    if isinstance(data, tuple):
        yield from data
    elif isinstance(data, Batches):
        for batch in unpacked_batches(data):
            yield from rows(batch, limit)
    else:
        yield from lines(io.BytesIO(data), limit)


def _range(
    file: InputFile, stream: IO[bytes], part: Part, settings: ReadSettings
) -> Iterator[bytes | Unreadable]:
    """The lines of a file, or the pieces of a text, between two bytes."""
    assert part.stop is not None
    stream.seek(part.start)
    if file.kind.format == "txt":
        yield from pieces(stream, part.start, part.stop, file.size, settings)
    else:
        records = lines(stream, settings.record_bytes, part.stop - part.start)
        yield from records if part.start else _without_mark(records)
    if stream.tell() != part.stop:
        raise InputError(f"{file.path} became shorter while it was read; leave it alone")
