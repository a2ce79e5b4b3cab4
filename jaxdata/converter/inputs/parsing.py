"""Raw records: what files hold, parsed to a mapping with a text, or to why there is none."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from jaxdata.base.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BETWEEN_TEXTS = "\n\n"
"""What joins the texts of several fields."""
_HEAD = 1_024  # bytes of a record too long that are kept


class Unreadable(NamedTuple):
    """A record that cannot be taken in, and what is kept of it."""

    reason: str
    raw: bytes | None


class TextPiece(NamedTuple):
    """A text file, or a piece of a huge one."""

    raw: bytes


Raw = bytes | dict[str, Any] | TextPiece | Unreadable
"""A line or an element of an array, a row of a table, a text."""


def size_of(record: Raw) -> int:
    """Bytes of a record, about."""
    if type(record) is bytes:
        return len(record)
    if isinstance(record, dict):
        values = record.values()
        texts = sum([len(value) for value in values if isinstance(value, str | bytes)])
        return texts + sum([value.nbytes for value in values if isinstance(value, np.ndarray)])
    return len(record.raw) if isinstance(record, TextPiece) else 0


def plain_value(value: Any) -> Any:
    """What stands for a value that JSON does not know: a list for an array, else a text."""
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def too_long(head: bytes, limit: int) -> Unreadable:
    """What stands for a record of more than `limit` bytes."""
    return Unreadable(f"longer than {limit:,} bytes", head[:_HEAD])


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an InputError with its name."""
    try:
        yield
    except (EOFError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        raise InputError(
            f"{path} cannot be read to its end ({str(error).rstrip('. ')}): it is truncated "
            "or damaged; replace it, or remove it from the inputs"
        ) from error


class BadRecord(Exception):
    """A record without a usable text.

    The reason is in words that are the same for every record with this fault; `keys` are those of
    an object that lacks the text key.
    """

    def __init__(self, reason: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.keys = reason, keys


def parse(raw: Raw, text_key: str, texts_only: bool = False) -> dict[str, Any] | None:
    """Return the fields of a raw record, None for a blank line; raises BadRecord.

    The text of a text file is its field `text_key`. `texts_only` is faster; whole numbers of more
    than 64 bits become fractions.

    >>> parse(b'{"text": "hello"}', "text")
    {'text': 'hello'}
    """
    if isinstance(raw, TextPiece):
        return {text_key: decode(raw.raw)}
    if isinstance(raw, Unreadable):
        raise BadRecord(raw.reason)
    if isinstance(raw, dict):
        return raw
    record = None
    if texts_only:
        with suppress(orjson.JSONDecodeError):  # the slower parser says what is wrong with it
            record = orjson.loads(raw)
    if record is None:
        if not raw.strip():
            return None
        try:
            record = json.loads(decode(raw))
        except (ValueError, RecursionError):
            raise BadRecord("not JSON") from None
    if not isinstance(record, dict):
        raise BadRecord("JSON, but not an object")
    return record


def field_of(record: Mapping[str, Any], key: str) -> Any:
    """Return a field; a key with dots goes into objects within. Raises BadRecord without it.

    >>> field_of({"data": {"text": "hello"}}, "data.text")
    'hello'
    """
    if key in record:
        return record[key]
    value: Any = record
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise BadRecord(f"no key {key!r}", tuple(map(str, record)))
        value = value[name]
    return value


def field_or_none(record: Mapping[str, Any], key: str) -> Any:
    """The same, None without it."""
    try:
        return field_of(record, key)
    except BadRecord:
        return None


def text_of(record: Mapping[str, Any], key: str) -> str:
    """Return the text of a field; raises BadRecord where it holds none."""
    text = field_of(record, key)
    if text is None:
        raise BadRecord(f"{key!r} is null")
    if isinstance(text, bytes):  # a column of bytes
        return decode(text)
    if not isinstance(text, str):
        raise BadRecord(f"{key!r} is not a string")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can write a lone surrogate, UTF-8 cannot
            raise BadRecord(f"{key!r} holds half a surrogate pair") from None
    return text


def texts_of(record: Mapping[str, Any], key: str) -> str | list[str]:
    """Return the text of a field, or those of all objects of the list that its key goes through.

    >>> texts_of({"messages": [{"content": "Hi"}, {"content": "Ho"}]}, "messages.content")
    ['Hi', 'Ho']
    """
    name, dot, rest = key.partition(".")
    if not dot or key in record or name not in record:
        return text_of(record, key)
    inner = record[name]
    if isinstance(inner, list):
        if not all(isinstance(one, Mapping) for one in inner):
            raise BadRecord(f"{name!r} is not a list of objects")
        found = [texts_of(one, rest) for one in inner]
        if not all(isinstance(text, str) for text in found):
            raise BadRecord(f"{key!r} goes through more than one list")
        return [text for text in found if isinstance(text, str)]
    if not isinstance(inner, Mapping):
        raise BadRecord(f"{name!r} is not an object")
    return texts_of(inner, rest)


def joined_text_of(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    r"""Return the texts of several fields, joined; one that is missing or null is left out.

    >>> joined_text_of({"title": "A", "subtitle": None, "body": "b"}, ("title", "body"))
    'A\n\nb'
    """
    if len(keys) == 1:
        return text_of(record, keys[0])
    texts = [text_of(record, key) for key in keys if field_or_none(record, key) is not None]
    return BETWEEN_TEXTS.join(texts) if texts else text_of(record, keys[0])


def decode(raw: bytes) -> str:
    """Return bytes as text; raises BadRecord where they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRecord("not UTF-8") from None
