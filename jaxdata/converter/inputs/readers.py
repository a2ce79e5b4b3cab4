"""What a file holds: its records, those of a part of it, or those of the files in an archive."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO

from jaxdata.converter.inputs.archives import Entry, entries
from jaxdata.converter.inputs.compression import unpacked
from jaxdata.converter.inputs.file_types import (
    counted,
    endings,
    first_number,
    is_readable,
    is_table,
    kind_of,
    reader_of,
)
from jaxdata.converter.inputs.identity import HEAD
from jaxdata.converter.inputs.input_file import FileType, InputFile
from jaxdata.converter.inputs.raw_records import Raw, TextPiece, Unreadable
from jaxdata.converter.inputs.read_errors import reading
from jaxdata.converter.inputs.units import Data, FilePart, ReadSettings
from jaxdata.errors import InputError
from jaxdata.format.archive_members import Member

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
