"""An object of any size from beginning to end, a few pieces of it in memory at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from jaxdata.base.errors import DatasetError
from jaxdata.storage.contract import Truncated, missing
from jaxdata.storage.patience import Request

_PIECE = 2**24
_AT_ONCE = 3
_FOREVER = 2**62

Read = Callable[[slice], Any]
"""Asks for a range of an object; returns a tensorstore future."""


def scan_object(read: Read, url: str, size: int | None) -> Iterator[bytes]:
    """Give an object in pieces, all of one version; some are under way at a time.

    `size` is how many bytes it should have. If that is unknown, or wrong, its end shows where an
    answer says so.

    Raises:
        DatasetError: it is missing, cannot be read, or changes meanwhile.
    """
    starts = iter(range(0, _FOREVER if size is None else size - _PIECE, _PIECE))
    asked = deque((start, _piece(read, url, start)) for start in islice(starts, _AT_ONCE))
    version: bytes | None = None
    start = 0
    while asked:
        start, request = asked.popleft()
        try:
            found = request.result()
        except Truncated:
            break
        version = _same(found, version, url)
        yield found.value
        start += _PIECE
        asked.extend((one, _piece(read, url, one)) for one in islice(starts, 1))
    try:
        found = Request(lambda: read(slice(start, None)), url, slice(start, start)).result()
    except Truncated:  # it ends where the last piece does
        return
    _same(found, version, url)
    yield found.value


def _piece(read: Read, url: str, start: int) -> Request:
    part = slice(start, start + _PIECE)
    return Request(lambda: read(part), url, part)


def _same(found: Any, version: bytes | None, url: str) -> bytes:
    """The version that an answer is of."""
    if found.state == "missing":
        raise missing(url)
    seen: bytes = found.stamp.generation
    if version not in (None, seen):
        raise DatasetError(f"{url} changed while it was read: run the same command again")
    return seen
