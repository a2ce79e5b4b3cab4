"""The contract of an input format, and how the format of a file is recognised."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from typing import IO

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import import_all
from jaxdata.converter.inputs.archives import is_archive
from jaxdata.converter.inputs.files import HEAD, FileType, InputFile
from jaxdata.converter.inputs.parsing import (
    BYTE_ORDER_MARK,
    Raw,
    TextPiece,
    Unreadable,
    reading,
    size_of,
)
from jaxdata.converter.inputs.streams import Compression, compression_of, lines, unpacked_head
from jaxdata.converter.inputs.units import Block, Data, FilePart, ReadSettings

_formats: dict[str, Format] = {}


class Format(ABC):
    """How the records of a file are written. One object serves all files of the format."""

    name: str
    """What a :class:`FileType` calls it."""
    suffixes: tuple[str, ...]
    """How names of files end, without the dot; the first is named in messages."""
    counted: str = "row"
    """What its records are called: a "line" or "piece" is numbered from 1, a "row" from 0."""
    table: bool = False
    """Whether it holds columns; such a file is neither compressed nor in an archive."""

    def claims(self, head: bytes, tail: bytes) -> bool:  # noqa: ARG002
        """Tell from its first and last bytes whether a file is of this format for certain."""
        return False

    def recognized(self, head: bytes) -> str:  # noqa: ARG002
        """Return the format that the first bytes show, of a file that is named as of this one."""
        return self.name

    @abstractmethod
    def records(
        self, stream: IO[bytes], settings: ReadSettings
    ) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records of a whole file, decompressed. Bytes are parsed as a JSON object."""

    def is_one_unit(self, file: InputFile, settings: ReadSettings) -> bool:  # noqa: ARG002
        """Tell whether one worker reads the whole file, however large it is."""
        return False

    def cut(
        self,
        number: int,  # noqa: ARG002
        file: InputFile,  # noqa: ARG002
        settings: ReadSettings,  # noqa: ARG002
        unit_bytes: int,  # noqa: ARG002
    ) -> Iterator[Block] | None:
        """Cut an uncompressed file into blocks of about `unit_bytes`.

        None where workers cannot begin in the middle of it: then one process reads it and feeds
        them all.
        """
        return None

    def records_between(
        self, stream: IO[bytes], start: int, stop: int, size: int, settings: ReadSettings
    ) -> Iterator[bytes | TextPiece | Unreadable]:
        """Give the records between two bytes where :meth:`cut` cuts.

        `stream` is a file of `size` bytes, and at `start`.
        """
        raise NotImplementedError

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        """Give the records of a part that :meth:`cut` made: those between two bytes."""
        assert part.stop is not None
        with reading(file.where), file.open(ahead_to=part.stop) as stream:
            stream.seek(part.start)
            yield from self.records_between(stream, part.start, part.stop, file.size, settings)
            if stream.tell() != part.stop:
                raise InputError(
                    f"{file.where} was truncated while being read; do not modify inputs during a "
                    "conversion"
                )

    def read_data(self, data: bytes, settings: ReadSettings) -> Iterator[Raw]:
        """Give the records of bytes that :meth:`cut` or :meth:`blocks` sends with a part."""
        return lines(BytesIO(data), settings.record_bytes)

    def blocks(
        self, stream: IO[bytes], settings: ReadSettings, room: Callable[[], int]
    ) -> Iterator[tuple[Data, int]]:
        """Give the records of a stream, and their bytes, as many at a time as there is room for."""
        records: list[bytes | TextPiece | Unreadable] = []
        size = 0
        for record in self.records(stream, settings):
            records.append(record)
            size += size_of(record)
            if size >= room():
                yield tuple(records), size
                records, size = [], 0
        if records:
            yield tuple(records), size


def register(new: Format) -> None:
    """Make a format known; a module does so when it is imported."""
    _formats[new.name] = new


def all_formats() -> list[Format]:
    """Every format, by name: modules may be imported in any order."""
    import_all(__package__)
    return [_formats[name] for name in sorted(_formats)]


def reader_of(kind: FileType) -> Format:
    """What reads the records of a file."""
    import_all(__package__)
    return _formats[kind.format]


def is_table(kind: FileType) -> bool:
    """Whether a file is a table of columns.

    >>> is_table(FileType("parquet")), is_table(FileType("txt", archive=True))
    (True, False)
    """
    return reader_of(kind).table


def counted(kind: FileType) -> str:
    """What the records of a file are: "line", "piece" (of a text), or "row" (an element, too)."""
    return "line" if kind.archive else reader_of(kind).counted


def first_number(kind: FileType) -> int:
    """How the first record is numbered: lines and pieces count from 1, rows from 0."""
    return int(counted(kind) != "row")


Texts = tuple[str, ...]
"""Suffixes of text files beside those that are known, without the dot."""
_COMPRESSIONS: dict[str, Compression] = {"gz": "gz", "zst": "zst", "zstd": "zst"}
_file_type = cache(FileType)  # a million files share a few


def endings() -> str:
    """The file endings that are read, for messages.

    >>> endings()  # doctest: +NORMALIZE_WHITESPACE
    '.csv, .json, .jsonl, .ndjson, .tsv, .txt, .md, .rst, .html (all also .gz, .zst),
    .tar (also .gz, .zst), .arrow or .parquet'
    """
    texts = [f".{end}" for one in all_formats() if not one.table for end in one.suffixes]
    tables = [f".{one.suffixes[0]}" for one in all_formats() if one.table]
    return f"{', '.join(texts)} (all also .gz, .zst), .tar (also .gz, .zst), {' or '.join(tables)}"


def _match(name: str, texts: Texts = ()) -> re.Match[str] | None:
    """Find in a name what it says: `format`, or `tar` or `packed`, and `compression`."""
    known = [suffix for one in all_formats() for suffix in one.suffixes]
    return _pattern(*known, *texts).search(name)


@cache
def _pattern(*suffixes: str) -> re.Pattern[str]:
    return re.compile(
        rf"\.(?:(?P<format>{'|'.join(map(re.escape, suffixes))})|(?P<tar>tar)|(?P<packed>tgz))"
        rf"(?:\.(?P<compression>{'|'.join(_COMPRESSIONS)}))?$",
        re.IGNORECASE,
    )


def is_readable(name: str, texts: Texts = ()) -> bool:
    """Tell from its name whether a file can be read; `texts` are more suffixes of texts.

    >>> [is_readable(name) for name in ("a.jsonl", "a.json.gz", "a.jsonl.zst.tar", "a.py", "gz")]
    [True, True, True, False, False]
    >>> is_readable("a.py", ("py",))
    True
    """
    return _match(name, texts) is not None


def named_format(name: str, texts: Texts = ()) -> Format | None:
    """The format that a name says; None of an archive, and of a file that is not read.

    >>> getattr(named_format("a.jsonl.gz"), "name", None), named_format("a.jsonl.tar")
    ('jsonl', None)
    """
    named = _match(name, texts)
    if named is None or not named["format"]:
        return None
    suffix = named["format"].lower()
    if suffix in texts:
        return reader_of(FileType("txt"))
    return next(one for one in all_formats() if suffix in one.suffixes)


def kind_of(name: str, head: bytes, tail: bytes = b"", texts: Texts = ()) -> FileType:
    """Tell how to read a file that :func:`is_readable` from its content.

    Compression and archives show in the first bytes, tables at both ends, and JSON in an array is
    told from JSON in lines. Otherwise the name is right: JSON in a .txt is text. `head` has the
    first `HEAD` bytes.
    """
    named = _match(name, texts)
    assert named is not None
    if certain := next((one for one in all_formats() if one.claims(head, tail)), None):
        return _file_type(certain.name)
    compression = compression_of(head)
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    if not (compression or is_json or is_archive(head)):  # it is damaged, or empty
        said = "gz" if named["packed"] else (named["compression"] or "").lower()
        compression = _COMPRESSIONS.get(said, "")
    head = unpacked_head(head, compression, HEAD)
    by_name = named_format(name, texts)
    if is_archive(head) or by_name is None:
        return _file_type("txt", compression, archive=True)
    return _file_type(by_name.recognized(head), compression)
