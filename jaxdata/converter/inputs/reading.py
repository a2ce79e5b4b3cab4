"""Cutting a corpus into units of work, and reading the records of one.

What an input format is stands here, and how the format of a file is recognised.
"""

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import IO

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import import_all
from jaxdata.base.ragged import in_runs
from jaxdata.converter.inputs import parsing, streams
from jaxdata.converter.inputs.files import (
    HEAD,
    UNIT_BYTES,
    Blocks,
    Data,
    FilePart,
    FileType,
    InputFile,
    ReadSettings,
    Unit,
)
from jaxdata.dataset.index import Member

Records = Iterator[parsing.Raw]
"""In the order of the file."""
_formats: "dict[str, Format]" = {}


class Format(ABC):
    """How the records of a file are written. One object serves all files of the format."""

    name: str
    """What a :class:`FileType` calls it."""
    suffixes: tuple[str, ...]
    """How names of files end, without the dot; the first is named in messages."""
    counted: str = "row"
    """What its records are called: a "line" or "piece" is numbered from 1, a "row" from 0."""
    magic: bytes = b""
    """What every file begins and ends with, and no other."""
    table: bool = False
    """Whether it holds columns; such a file is neither compressed nor in an archive."""

    @property
    def first_number(self) -> int:
        """How the first record is numbered."""
        return int(self.counted != "row")

    def recognized(self, head: bytes) -> str:  # noqa: ARG002
        """Return the format that the first bytes show, of a file that is named as of this one."""
        return self.name

    @abstractmethod
    def records(self, stream: IO[bytes], settings: ReadSettings) -> Records:
        """Give the records of a whole file, decompressed, or of bytes that are sent with a part.

        Bytes are parsed as a JSON object.
        """

    def is_one_unit(self, file: InputFile, settings: ReadSettings) -> bool:  # noqa: ARG002
        """Tell whether one worker reads the whole file, however large it is."""
        return False

    def blocks(
        self, stream: IO[bytes], settings: ReadSettings, room: Callable[[], int]
    ) -> Iterator[tuple[Data, int]]:
        """Give the records of a stream, and their bytes, as many at a time as there is room for."""
        for records, size in in_runs(self.records(stream, settings), parsing.size_of, room):
            yield tuple(records), size


class SplittableFormat(Format):
    """A format whose uncompressed files workers can begin to read in the middle.

    Of others one process reads a file and feeds them all.
    """

    @abstractmethod
    def cut(self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int) -> Blocks:
        """Cut a file into blocks of about `unit_bytes`; `number` is the file's."""

    @abstractmethod
    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Records:
        """Give the records of a part that :meth:`cut` made."""


def register(new: Format) -> None:
    """Make a format known; a module does so when it is imported."""
    _formats[new.name] = new


def all_formats() -> list[Format]:
    """Every format, by name: modules may be imported in any order."""
    import_all("jaxdata.converter.inputs.formats")
    return [_formats[name] for name in sorted(_formats)]


def reader_of(kind: FileType) -> Format:
    """What reads the records of a file; of an archive they are counted as lines."""
    import_all("jaxdata.converter.inputs.formats")
    return _formats[kind.format]


Texts = tuple[str, ...]
"""Suffixes of text files beside those that are known, without the dot."""
_COMPRESSIONS: dict[str, streams.Compression] = {"gz": "gz", "zst": "zst", "zstd": "zst"}
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


def expected() -> str:
    """The endings, and what else can be read."""
    return f"{endings()}; other texts are read with --set text_suffix=.py,.rs"


def kind_of(name: str, head: bytes, tail: bytes = b"", texts: Texts = ()) -> FileType:
    """Tell how to read a file that :func:`is_readable` from its content.

    Compression and archives show in the first bytes, tables at both ends, and JSON in an array is
    told from JSON in lines. Otherwise the name is right: JSON in a .txt is text. `head` has the
    first `HEAD` bytes.
    """
    named = _match(name, texts)
    assert named is not None
    for one in all_formats():
        if one.magic and head.startswith(one.magic) and tail.endswith(one.magic):
            return _file_type(one.name)
    compression = streams.compression_of(head)
    is_json = head.removeprefix(parsing.BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    if not (compression or is_json or streams.is_archive(head)):  # it is damaged, or empty
        said = "gz" if named["packed"] else (named["compression"] or "").lower()
        compression = _COMPRESSIONS.get(said, "")
    head = streams.unpacked_head(head, compression, HEAD)
    suffix = (named["format"] or "").lower()
    if streams.is_archive(head) or not suffix:
        return _file_type("jsonl", compression, archive=True)
    suffix = "txt" if suffix in texts else suffix
    by_name = next(one for one in all_formats() if suffix in one.suffixes)
    return _file_type(by_name.recognized(head), compression)


Run = tuple[Member | None, Records]
"""Records that follow each other; in an archive those of one file, and which is the first."""


class _Link(Format):
    """A link in an archive, which is not followed: it may lead anywhere."""

    name = ""

    def records(self, _stream: IO[bytes], _: ReadSettings) -> Records:
        yield parsing.Unreadable("a link, which is not followed", b"")


@dataclass(frozen=True)
class Content:
    """What lies in a file: all of it, or a file of an archive, while that is read."""

    where: str  # for errors
    format: Format
    stream: IO[bytes]  # decompressed
    first: Member | None = None  # its first record, in an archive

    def records(self, settings: ReadSettings) -> Records:
        """Give the records; what is wrong with the bytes is an InputError."""
        with parsing.reading(self.where):
            yield from self.format.records(self.stream, settings)

    def blocks(self, settings: ReadSettings, room: Callable[[], int]) -> Iterator[tuple[Data, int]]:
        """Give the records, and their bytes, as many at a time as there is room for."""
        with parsing.reading(self.where):
            yield from self.format.blocks(self.stream, settings, room)


def raw_records(file: InputFile, part: FilePart, settings: ReadSettings) -> Records:
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
        with parsing.reading(file.where), file.open() as packed:
            for content in contents(file, packed):
                yield content.first, content.records(settings)


def contents(file: InputFile, packed: io.BufferedReader) -> Iterator[Content]:
    """Give what is in an open file: itself, or each file of an archive."""
    path = file.where
    stream = streams.unpacked(packed, file.kind.compression, path)
    if not file.kind.archive:
        yield Content(path, reader_of(file.kind), stream)
        return
    found = False
    for name, content in streams.entries(stream, path):
        hidden = any(one.startswith(".") and one != "." for one in name.split("/"))
        where = f"{path}: {name}"
        if content is None and not hidden:
            yield Content(where, _Link(), stream, Member(name, "line", 1))
        if content is None or hidden or not is_readable(name):
            continue
        found = True
        with parsing.reading(where):
            kind = kind_of(name, content.peek(HEAD)[:HEAD])
        reader = reader_of(kind)
        if kind.archive or reader.table:
            raise InputError(
                f"{where} is {'an archive' if kind.archive else 'a table'} in an archive, "
                "which cannot be read in one pass: unpack the archive and give its files"
            )
        first = Member(name, reader.counted, reader.first_number)
        yield Content(where, reader, streams.unpacked(content, kind.compression, where), first)
    if not found:
        raise InputError(f"{path} is an archive without any file that ends in {endings()}")


def _feed_blocks(number: int, file: InputFile, settings: ReadSettings, unit_bytes: int) -> Blocks:
    """Give a file in blocks of about `unit_bytes`, each with its records in it."""
    parts: list[FilePart] = []
    start = offset = before = 0

    def room() -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return next_multiple(offset, unit_bytes) - offset

    with parsing.reading(file.where), file.open() as raw:
        for content in contents(file, raw):
            place = content.first
            for data, size in content.blocks(settings, room):
                full = size >= room()
                parts.append(FilePart(number, offset, data=data, member=place))
                # Only the last line of a file may be without its end.
                records = len(data) if isinstance(data, tuple) else data.count(b"\n")
                place = place and place.after(records)
                offset += size
                if full:
                    yield tuple(parts), raw.tell() - before, offset - start
                    parts, start, before = [], offset, raw.tell()
        if parts:
            yield tuple(parts), raw.tell() - before, offset - start


def next_multiple(start: int, unit_bytes: int) -> int:
    """The first multiple of `unit_bytes` after `start`."""
    return (start // unit_bytes + 1) * unit_bytes


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

    def units(first: int, blocks: Blocks) -> Iterator[Unit]:
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
                yield from units(number, _feed_blocks(number, file, settings, unit_bytes))
            first, held = number + 1, 0
    yield from together(first, len(files))
