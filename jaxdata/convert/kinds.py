"""What a file is: by its name, and by its first bytes where those say otherwise."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from jaxdata.convert.archives import is_archive
from jaxdata.convert.splitting import BYTE_ORDER_MARK
from jaxdata.convert.streams import Compression, compression_of, unpacked_head

__all__ = ["ENDINGS", "HEAD", "Format", "Kind", "is_readable", "kind_of"]

Format = Literal["jsonl", "json", "txt", "parquet", "arrow"]

ENDINGS = ".jsonl, .json, .txt (all also .gz, .zst), .tar (also .gz, .zst), .parquet or .arrow"
"""What is read, for people."""

_FORMATS: dict[str, Format] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "txt": "txt",
    "parquet": "parquet",
    "arrow": "arrow",
}
_COMPRESSIONS: dict[str, Compression] = {"gz": "gz", "zst": "zst", "zstd": "zst"}
_NAME = re.compile(
    rf"\.(?:(?P<format>{'|'.join(_FORMATS)})|(?P<tar>tar)|(?P<packed>tgz))"
    rf"(?:\.(?P<compression>{'|'.join(_COMPRESSIONS)}))?$",
    re.IGNORECASE,
)
_COUNTED: dict[Format, str] = {"jsonl": "line", "txt": "piece"}
HEAD = 2**16
_LINES = 100
_PARQUET, _ARROW = b"PAR1", b"ARROW1"  # at both ends


@dataclass(frozen=True)
class Kind:
    """How to read a file.

    Attributes:
        format: how its records are written; of an archive, "txt" and of no meaning.
        compression: how the whole file is compressed.
        archive: whether it is a tar archive of such files.
    """

    format: Format
    compression: Compression = ""
    archive: bool = False

    @property
    def table(self) -> bool:
        """Whether it is a table of columns."""
        return self.format in ("parquet", "arrow") and not self.archive

    @property
    def counted(self) -> str:
        """What its records are: "line", "piece" (of a text), or "row" (an element, too)."""
        return "line" if self.archive else _COUNTED.get(self.format, "row")

    @property
    def first_number(self) -> int:
        """How the first record is numbered: lines and pieces count from 1, rows from 0."""
        return int(self.counted != "row")


def is_readable(name: str) -> bool:
    """Tell from a file's name whether we read it.

    >>> [is_readable(name) for name in ("a.jsonl", "a.json.gz", "a.jsonl.zst.tar", "a.csv", "gz")]
    [True, True, True, False, False]
    """
    return bool(_NAME.search(name))


def kind_of(name: str, head: bytes, tail: bytes = b"") -> Kind:
    """Tell how to read a file that :func:`is_readable` from its content.

    Compression and archives show in the first bytes, tables at both ends, and JSON in an array is
    told from JSON in lines. Otherwise the name is right: JSON in a .txt is text.

    Args:
        name: its name, perhaps with folders.
        head: its first `HEAD` bytes.
        tail: its last bytes.
    """
    named = _NAME.search(name)
    assert named is not None
    if head.startswith(_PARQUET) and tail.endswith(_PARQUET):
        return Kind("parquet")
    if head.startswith(_ARROW) and tail.endswith(_ARROW):
        return Kind("arrow")
    compression = compression_of(head)
    claimed = _COMPRESSIONS.get((named["compression"] or "").lower(), "")
    claimed = "gz" if named["packed"] else claimed
    if not compression and claimed and not _is_known(head):
        compression = claimed  # and damaged, or empty
    head = unpacked_head(head, compression, HEAD)
    if is_archive(head) or not named["format"]:
        return Kind("txt", compression, archive=True)
    return Kind(_format(_FORMATS[named["format"].lower()], head), compression)


def _is_known(head: bytes) -> bool:
    """Tell whether this is for certain one of the uncompressed kinds."""
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"["))
    return is_json or is_archive(head)


def _format(named: Format, head: bytes) -> Format:
    if named not in ("jsonl", "json"):
        return named
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    first = text.partition(b"\n")[0].strip()
    if text.startswith(b"["):
        return "json" if named == "json" or _is_array(text) else "jsonl"
    if named == "json" and text.startswith(b"{") and first != text.strip() and not _is_json(first):
        return "json"  # objects written over several lines
    return "jsonl"


def _is_array(text: bytes) -> bool:
    """Tell whether what should be lines of JSON is an array of objects, and no line of it."""
    first, *others = (line.strip() for line in text.strip().split(b"\n"))
    if not re.match(rb"\[\s*[{\]]", text) or (others and _is_json(first)):
        return False
    return text.rstrip().endswith(b"]") or not any(
        line.startswith(b"{") and _is_json(line) for line in others[:_LINES]
    )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
