"""Streams of bytes cut into records: lines, and the values of a JSON array.

A record that is longer than the limit is read past, and only its head is kept: memory stays flat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from jaxdata.converter.inputs.raw_records import BYTE_ORDER_MARK, Unreadable, too_long

_CHUNK = 2**18
_SPACE = b" \t\r\n"
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


def lines(stream: IO[bytes], limit: int, size: int = 2**63) -> Iterator[bytes | Unreadable]:
    r"""Give the lines of the next `size` bytes without their end, \n or \r\n."""
    while size > 0 and (line := stream.readline(min(limit + 2, size))):
        size -= len(line)
        if len(line) > limit and not line.endswith(b"\n"):
            size -= _past_line(stream, size)
            yield too_long(line, limit)
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _past_line(stream: IO[bytes], size: int) -> int:
    """Read to the end of the line, at most `size` bytes; the bytes read."""
    passed = 0
    while passed < size and (piece := stream.readline(min(_CHUNK, size - passed))):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed


def json_values(stream: IO[bytes], limit: int) -> Iterator[bytes | Unreadable]:
    """Give the elements of a JSON array, or JSON objects one after the other, unparsed.

    Brackets and strings are all that is looked at; whether an element is JSON shows when it is
    parsed.

    Raises:
        EOFError: the array does not end.
        ValueError: something follows the array.

    >>> import io
    >>> list(json_values(io.BytesIO(b'[{"a": "]"}, 2]'), 99))
    [b'{"a": "]"}', b' 2']
    """
    return _Scanner(limit).scan(stream)


class _Scanner:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._array: bool | None = None  # known with the first byte that is no space
        self._depth = 0
        self._in_string = self._escaped = self._done = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._count = 0

    def scan(self, stream: IO[bytes]) -> Iterator[bytes | Unreadable]:
        chunk = stream.read(_CHUNK).removeprefix(BYTE_ORDER_MARK)
        while chunk:
            yield from self._chunk(chunk)
            chunk = stream.read(_CHUNK)
        if self._array and not self._done:
            raise EOFError("the JSON array does not end")
        yield from self._close(only_if_full=True)

    def _chunk(self, chunk: bytes) -> Iterator[bytes | Unreadable]:
        position = 0
        if self._array is None:
            rest = chunk.lstrip(_SPACE)
            if not rest:
                return
            self._array = rest.startswith(b"[")
            position = len(chunk) - len(rest) + self._array
            self._depth = int(self._array)
        start = position
        while position < len(chunk):
            if self._done:
                self._check_nothing_follows(chunk[position:])
                return
            if self._in_string:
                position = self._through_string(chunk, position)
                continue
            found = _OUTSIDE.search(chunk, position)
            if not found:
                break
            position = found.end()
            if ends := self._meet(found.group()):
                self._take(chunk[start : position - (ends != b"}")])
                yield from self._close(only_if_full=ends == b"]" and not self._count)
                start = position
        self._take(chunk[start:])

    def _meet(self, what: bytes) -> bytes:
        """Go on past a quote, bracket or comma; return it if it ends a value."""
        top = int(bool(self._array))
        if what == b'"':
            self._in_string = True
        elif what in b"[{":
            self._depth += 1
        elif what in b"]}" and self._depth > top:
            self._depth -= 1
            return b"}" if not self._array and not self._depth else b""
        elif what == b"]" and self._array:
            self._done = True
            return what
        elif what == b"," and self._array and self._depth == top:
            return what
        return b""

    def _through_string(self, chunk: bytes, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        inside = _INSIDE.match(chunk, position)
        assert inside is not None
        position = inside.end()
        if position < len(chunk):
            self._in_string = chunk[position] != ord('"')
            self._escaped = self._in_string  # a backslash that ends the chunk
            position += 1
        return position

    def _take(self, piece: bytes) -> None:
        room = self._limit + 1 - self._size
        if room > 0:
            self._pieces.append(piece[:room])
        self._size += len(piece)

    def _close(self, only_if_full: bool) -> Iterator[bytes | Unreadable]:
        value = b"".join(self._pieces)
        too_much = self._size > self._limit
        self._pieces, self._size = [], 0
        if only_if_full and not value.strip(_SPACE):
            return
        self._count += 1
        yield too_long(value, self._limit) if too_much else value

    def _check_nothing_follows(self, rest: bytes) -> None:
        if rest.strip(_SPACE):
            raise ValueError("something follows the end of the JSON array")
