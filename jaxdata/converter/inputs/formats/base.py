"""The contract of an input format, and how the format of a file is recognised."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import IO

from jaxdata.base.lazy import import_all
from jaxdata.base.ragged import in_runs
from jaxdata.converter.inputs.archives import is_archive
from jaxdata.converter.inputs.files import (
    HEAD,
    Block,
    Data,
    FilePart,
    FileType,
    InputFile,
    ReadSettings,
)
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Raw, TextPiece, Unreadable, size_of
from jaxdata.converter.inputs.streams import Compression, compression_of, unpacked_head

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
    def records(
        self, stream: IO[bytes], settings: ReadSettings
    ) -> Iterator[bytes | TextPiece | Unreadable]:
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
        for records, size in in_runs(self.records(stream, settings), size_of, room):
            yield tuple(records), size


class SplittableFormat(Format):
    """A format whose uncompressed files workers can begin to read in the middle.

    Of others one process reads a file and feeds them all.
    """

    @abstractmethod
    def cut(
        self, number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
    ) -> Iterator[Block]:
        """Cut a file into blocks of about `unit_bytes`; `number` is the file's."""

    @abstractmethod
    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        """Give the records of a part that :meth:`cut` made."""


def register(new: Format) -> None:
    """Make a format known; a module does so when it is imported."""
    _formats[new.name] = new


def all_formats() -> list[Format]:
    """Every format, by name: modules may be imported in any order."""
    import_all(__package__)
    return [_formats[name] for name in sorted(_formats)]


def reader_of(kind: FileType) -> Format:
    """What reads the records of a file; of an archive they are counted as lines."""
    import_all(__package__)
    return _formats[kind.format]


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
    compression = compression_of(head)
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    if not (compression or is_json or is_archive(head)):  # it is damaged, or empty
        said = "gz" if named["packed"] else (named["compression"] or "").lower()
        compression = _COMPRESSIONS.get(said, "")
    head = unpacked_head(head, compression, HEAD)
    suffix = (named["format"] or "").lower()
    if is_archive(head) or not suffix:
        return _file_type("jsonl", compression, archive=True)
    suffix = "txt" if suffix in texts else suffix
    by_name = next(one for one in all_formats() if suffix in one.suffixes)
    return _file_type(by_name.recognized(head), compression)


def matches(path: str, pattern: str) -> bool:
    """Tell whether a glob matches a path: `*` in a folder, `**` over folders, no hidden names.

    >>> [matches(f"gs://b/{name}", "gs://b/**/*.txt")
    ...     for name in ("a.txt", "c/d/a.txt", ".c/a.txt", "c/.a.txt", "c/a.txt/b")]
    [True, True, False, False, False]
    """
    return _matches(path.split("/"), pattern.split("/"))


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not names
    visible = bool(names) and not names[0].startswith(".")
    if parts[0] == "**":
        return _matches(names, parts[1:]) or (visible and _matches(names[1:], parts))
    found = visible or (bool(names) and parts[0].startswith("."))
    return found and fnmatchcase(names[0], parts[0]) and _matches(names[1:], parts[1:])
