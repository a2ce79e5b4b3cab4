"""From the bytes of a record to its text, or to the reason why it has none."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["BadRecord", "text_of_bytes", "text_of_line"]


class BadRecord(Exception):
    """A record without a usable text.

    Attributes:
        reason: why, in words that are the same for every record with this fault.
        keys: the keys of an object that lacks the text key, else empty.
    """

    def __init__(self, reason: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys = keys


def text_of_line(line: bytes | None, key: str) -> str | None:
    """Return the text of one line of JSON, None for a blank line; raises BadRecord.

    >>> text_of_line(b'{"text": "hello"}', "text")
    'hello'
    """
    if line is None or not line.strip():
        return None
    record = _parse(_decode(line))
    if not isinstance(record, dict):
        raise BadRecord("JSON, but not an object")
    if key not in record:
        raise BadRecord(f"no key {key!r}", tuple(record))
    text = record[key]
    if text is None:
        raise BadRecord(f"{key!r} is null")
    if not isinstance(text, str):
        raise BadRecord(f"{key!r} is not a string")
    if not _encodable(text):
        raise BadRecord(f"{key!r} holds half a surrogate pair")
    return text


def text_of_bytes(raw: bytes | None, key: str) -> str:
    """Return the text of a value of a table, or of a whole file; raises BadRecord."""
    if raw is None:
        raise BadRecord(f"{key!r} is null")
    return _decode(raw)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise BadRecord("not JSON") from None


def _encodable(text: str) -> bool:
    """Tell whether the text is Unicode: JSON can write a lone surrogate, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
