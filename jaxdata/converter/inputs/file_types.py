"""The type of a file, detected from its name and its content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from jaxdata.converter.inputs.archives import is_archive
from jaxdata.converter.inputs.compression import Compression, compression_of, unpacked_head
from jaxdata.converter.inputs.formats.base import Format, all_formats, format_named
from jaxdata.converter.inputs.identity import HEAD
from jaxdata.converter.inputs.raw_records import BYTE_ORDER_MARK

_COMPRESSIONS: dict[str, Compression] = {"gz": "gz", "zst": "zst", "zstd": "zst"}


@dataclass(frozen=True)
class FileType:
    """How to read a file."""

    format: str  # meaningless ("txt") for an archive
    compression: Compression = ""  # of the whole file
    archive: bool = False

    @property
    def reader(self) -> Format:
        """What reads its records."""
        return format_named(self.format)

    @property
    def table(self) -> bool:
        """Whether it is a table of columns."""
        return self.reader.table and not self.archive

    @property
    def counted(self) -> str:
        """What its records are: "line", "piece" (of a text), or "row" (an element, too)."""
        return "line" if self.archive else self.reader.counted

    @property
    def first_number(self) -> int:
        """How the first record is numbered: lines and pieces count from 1, rows from 0."""
        return int(self.counted != "row")


_file_type = cache(FileType)  # a million files share a few


def endings() -> str:
    """The file endings that are read, for messages.

    >>> endings()
    '.jsonl, .json, .txt (all also .gz, .zst), .tar (also .gz, .zst), .parquet or .arrow'
    """
    streams = ", ".join(f".{one.suffixes[0]}" for one in all_formats() if not one.table)
    *tables, last = [f".{one.suffixes[0]}" for one in all_formats() if one.table]
    return f"{streams} (all also .gz, .zst), .tar (also .gz, .zst), {', '.join(tables)} or {last}"


def _match(name: str) -> re.Match[str] | None:
    """Find in a name what it says: `format`, or `tar` or `packed`, and `compression`."""
    return _pattern(*(suffix for one in all_formats() for suffix in one.suffixes)).search(name)


@cache
def _pattern(*suffixes: str) -> re.Pattern[str]:
    return re.compile(
        rf"\.(?:(?P<format>{'|'.join(map(re.escape, suffixes))})|(?P<tar>tar)|(?P<packed>tgz))"
        rf"(?:\.(?P<compression>{'|'.join(_COMPRESSIONS)}))?$",
        re.IGNORECASE,
    )


def is_readable(name: str) -> bool:
    """Tell from its name whether a file can be read.

    >>> [is_readable(name) for name in ("a.jsonl", "a.json.gz", "a.jsonl.zst.tar", "a.csv", "gz")]
    [True, True, True, False, False]
    """
    return _match(name) is not None


def named_format(name: str) -> Format | None:
    """The format that a name says; None of an archive, and of a file that is not read.

    >>> getattr(named_format("a.jsonl.gz"), "name", None), named_format("a.jsonl.tar")
    ('jsonl', None)
    """
    named = _match(name)
    if named is None or not named["format"]:
        return None
    suffix = named["format"].lower()
    return next(one for one in all_formats() if suffix in one.suffixes)


def kind_of(name: str, head: bytes, tail: bytes = b"") -> FileType:
    """Tell how to read a file that :func:`is_readable` from its content.

    Compression and archives show in the first bytes, tables at both ends, and JSON in an array is
    told from JSON in lines. Otherwise the name is right: JSON in a .txt is text. `head` has the
    first `HEAD` bytes.
    """
    named = _match(name)
    assert named is not None
    if certain := next((one for one in all_formats() if one.claims(head, tail)), None):
        return _file_type(certain.name)
    compression = compression_of(head)
    claimed = _COMPRESSIONS.get((named["compression"] or "").lower(), "")
    claimed = "gz" if named["packed"] else claimed
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    if not (compression or is_json or is_archive(head)):
        compression = claimed  # and damaged, or empty
    head = unpacked_head(head, compression, HEAD)
    by_name = named_format(name)
    if is_archive(head) or by_name is None:
        return _file_type("txt", compression, archive=True)
    return _file_type(by_name.recognized(head), compression)
