"""Raw records: what files hold, before it is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEAD = 1_024  # bytes of a record too long that are kept
_RECORDS = 256
_BYTES = 2**20


class Unreadable(NamedTuple):
    """A record that cannot be taken in, and what is kept of it."""

    reason: str
    raw: bytes | None


class TextPiece(NamedTuple):
    """A text file, or a piece of one: a document, or a part that begins or ends one."""

    data: bytes
    begins: bool = True
    ends: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is a document by itself."""
        return self.begins and self.ends


Raw = bytes | dict[str, Any] | TextPiece | Unreadable
"""A line or an element of an array, a row of a table, a text."""


def size_of(record: Raw) -> int:
    """Bytes of a record, about."""
    if type(record) is bytes:
        return len(record)
    if isinstance(record, dict):
        return sum([_size_of_value(value) for value in record.values()])
    return len(record.data) if isinstance(record, TextPiece) else 0


def _size_of_value(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return value.nbytes if isinstance(value, np.ndarray) else 0


def plain_value(value: Any) -> Any:
    """What stands for a value that JSON does not know: a list for an array, else a text."""
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def too_long(head: bytes, limit: int) -> Unreadable:
    """What stands for a record of more than `limit` bytes."""
    return Unreadable(f"longer than {limit:,} bytes (--max-record-bytes)", head[:_HEAD])


def in_runs(records: Iterable[Raw]) -> Iterator[tuple[list[Raw], int]]:
    """Runs of records, and their bytes: enough to pay, little enough for the memory."""
    run: list[Raw] = []
    size = 0
    for record in records:
        run.append(record)
        size += size_of(record)
        if size >= _BYTES or len(run) == _RECORDS:
            yield run, size
            run, size = [], 0
    if run:
        yield run, size
