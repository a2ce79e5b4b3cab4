"""The raw records of files: of a whole file, or of a part of one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, Any

from jaxdata.convert.archives import Member, members
from jaxdata.convert.columns import rows
from jaxdata.convert.inputs import InputFile, reading
from jaxdata.convert.kinds import ENDINGS, HEAD, Format, Kind, is_readable, kind_of
from jaxdata.convert.parts import Batches, Data, Part, ReadSettings
from jaxdata.convert.splitting import BYTE_ORDER_MARK, Unreadable, json_values, lines
from jaxdata.convert.streams import unpacked
from jaxdata.convert.tables import open_table, unpacked_batches
from jaxdata.convert.text_files import pieces, text_records
from jaxdata.errors import InputError

__all__ = ["Raw", "contents", "raw_records", "records_of"]

Raw = bytes | dict[str, Any] | Unreadable
"""A line, an element of an array or a text file as it lies there, or a row of a table."""


def raw_records(file: InputFile, part: Part, settings: ReadSettings) -> Iterator[Raw]:
    r"""Give every record of a part of a file: lines, array elements, table rows, whole files.

    Blank lines are given too, so that counting what comes counts lines. A line ends with \n or
    \r\n; a byte order mark at the beginning of a file is left out.
    """
    limit = settings.record_bytes
    if part.data is not None:
        yield from _records_of_data(part.data, limit)
    elif file.kind.table:
        with open_table(file) as table:
            for batch in table.batches(settings.columns, part.start, part.stop):
                yield from rows(batch, limit)
    else:
        with reading(file.path), file.path.open("rb") as packed:
            if part.stop is not None:
                yield from _range(file, packed, part, settings)
                return
            for format_, stream in contents(file, packed, settings.expansion):
                yield from records_of(stream, format_, settings)


def contents(
    file: InputFile, packed: IO[bytes], expansion: int
) -> Iterator[tuple[Format, io.BufferedReader]]:
    """Give what is in an open file, decompressed: itself, or each file of an archive."""
    stream = unpacked(packed, file.kind.compression, str(file.path), expansion)
    if not file.kind.archive:
        yield file.kind.format, stream
        return
    found = False
    for member in members(stream, str(file.path)):
        hidden = any(name.startswith(".") for name in member.name.split("/") if name != ".")
        if is_readable(member.name) and not hidden:
            found = True
            name = f"{file.path}: {member.name}"
            kind = _kind_of_member(name, member)
            yield kind.format, unpacked(member.content, kind.compression, name, expansion)
    if not found:
        raise InputError(f"{file.path} is an archive of no file that ends in {ENDINGS}")


def _kind_of_member(name: str, member: Member) -> Kind:
    kind = kind_of(member.name, member.content.peek(HEAD)[:HEAD])
    if kind.archive or kind.table:
        raise InputError(
            f"{name} is {'an archive' if kind.archive else 'a table'} in an archive, which cannot "
            "be read in one pass: unpack the archive and give its files"
        )
    return kind


def records_of(
    stream: io.BufferedReader, format_: Format, settings: ReadSettings
) -> Iterator[bytes | Unreadable]:
    """Give the records of what lies in a stream from its beginning."""
    limit = settings.record_bytes
    if format_ == "json":
        yield from json_values(stream, limit)
    elif format_ == "txt":
        yield from text_records(stream, settings)
    else:
        yield from _without_mark(lines(stream, limit))


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
