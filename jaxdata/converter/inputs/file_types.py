"""The type of a file, detected from its name and its content."""

from __future__ import annotations

import re
from functools import cache

from jaxdata.converter.inputs.archives import is_archive
from jaxdata.converter.inputs.compression import Compression, compression_of, unpacked_head
from jaxdata.converter.inputs.formats.base import Format, all_formats, format_named
from jaxdata.converter.inputs.identity import HEAD
from jaxdata.converter.inputs.input_file import FileType
from jaxdata.converter.inputs.raw_records import BYTE_ORDER_MARK

Texts = tuple[str, ...]
"""Suffixes of text files beside those that are known, without the dot."""
OR_TEXTS = "; other texts are read with --text-suffix .py,.rs"
_COMPRESSIONS: dict[str, Compression] = {"gz": "gz", "zst": "zst", "zstd": "zst"}


_file_type = cache(FileType)  # a million files share a few


def reader_of(kind: FileType) -> Format:
    """What reads the records of a file."""
    return format_named(kind.format)


def is_table(kind: FileType) -> bool:
    """Whether a file is a table of columns."""
    return reader_of(kind).table and not kind.archive


def counted(kind: FileType) -> str:
    """What the records of a file are: "line", "piece" (of a text), or "row" (an element, too)."""
    return "line" if kind.archive else reader_of(kind).counted


def first_number(kind: FileType) -> int:
    """How the first record is numbered: lines and pieces count from 1, rows from 0."""
    return int(counted(kind) != "row")


def endings() -> str:
    """The file endings that are read, for messages.

    >>> endings()  # doctest: +NORMALIZE_WHITESPACE
    '.csv, .tsv, .jsonl, .ndjson, .json, .txt, .md, .rst, .html (all also .gz, .zst),
    .tar (also .gz, .zst), .parquet or .arrow'
    """
    texts = [f".{end}" for one in all_formats() if not one.table for end in one.suffixes]
    *tables, last = [f".{one.suffixes[0]}" for one in all_formats() if one.table]
    named = f"{', '.join(texts)} (all also .gz, .zst), .tar (also .gz, .zst)"
    return f"{named}, {', '.join(tables)} or {last}"


def not_read() -> str:
    """What is said of a file of another kind."""
    return f"unsupported file type; expected {endings()}{OR_TEXTS}"


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
        return format_named("txt")
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
    claimed = _COMPRESSIONS.get((named["compression"] or "").lower(), "")
    claimed = "gz" if named["packed"] else claimed
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    if not (compression or is_json or is_archive(head)):
        compression = claimed  # and damaged, or empty
    head = unpacked_head(head, compression, HEAD)
    by_name = named_format(name, texts)
    if is_archive(head) or by_name is None:
        return _file_type("txt", compression, archive=True)
    return _file_type(by_name.recognized(head), compression)
