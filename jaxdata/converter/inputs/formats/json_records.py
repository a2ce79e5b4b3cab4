"""JSON: in lines, each an object; and in arrays, or objects one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, TYPE_CHECKING

from jaxdata.converter.inputs.formats.base import Format, register
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Unreadable, reading, too_long
from jaxdata.converter.inputs.streams import lines, pass_line
from jaxdata.converter.inputs.units import Block, Data, FilePart, ReadSettings, next_multiple

if TYPE_CHECKING:
    from jaxdata.converter.inputs.files import InputFile

_LINES = 100  # that are looked at to tell lines from an array


class JsonLines(Format):
    """An object a line. It is cut after lines."""

    name = "jsonl"
    suffixes = ("jsonl", "ndjson")
    counted = "line"

    def recognized(self, head: bytes) -> str:
        text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
        return "json" if text.startswith(b"[") and _is_array(text) else self.name

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes | Unreadable]:
        return _without_mark(lines(stream, settings.record_bytes))

    def cut(
        self,
        number: int,
        file: InputFile,
        settings: ReadSettings,  # noqa: ARG002
        unit_bytes: int,
    ) -> Iterator[Block]:
        """After the first line end at or after each multiple of `unit_bytes`."""
        with reading(file.where), file.open() as stream:
            start = 0
            while start < file.size:
                stream.seek(next_multiple(start, unit_bytes))
                pass_line(stream)
                stop = min(stream.tell(), file.size)
                yield (FilePart(number, start, stop),), stop - start, stop - start
                start = stop

    def records_between(
        self,
        stream: IO[bytes],
        start: int,
        stop: int,
        size: int,  # noqa: ARG002
        settings: ReadSettings,
    ) -> Iterator[bytes | Unreadable]:
        found = lines(stream, settings.record_bytes, stop - start)
        return found if start else _without_mark(found)

    def blocks(
        self, stream: IO[bytes], settings: ReadSettings, room: Callable[[], int]
    ) -> Iterator[tuple[Data, int]]:
        """Whole lines, which are parsed where they are sent to."""
        limit, mark = settings.record_bytes, BYTE_ORDER_MARK
        while block := stream.read(room()):
            end = stream.readline(limit + 2)
            if len(end) == limit + 2 and not end.endswith(b"\n"):
                pass_line(stream)  # what is kept is so much that the worker sees it is too long
                end += b"\n"
            block += end
            yield block.removeprefix(mark), len(block)
            mark = b""


class JsonArray(Format):
    """The elements of an array, or objects one after the other."""

    name = "json"
    suffixes = ("json",)

    def recognized(self, head: bytes) -> str:
        text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
        first = text.partition(b"\n")[0].strip()
        spread = text.startswith(b"{") and first != text.strip() and not _is_json(first)
        return self.name if text.startswith(b"[") or spread else "jsonl"

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes | Unreadable]:
        return json_values(stream, settings.record_bytes)


def _without_mark(records: Iterator[bytes | Unreadable]) -> Iterator[bytes | Unreadable]:
    for first in records:
        yield first.removeprefix(BYTE_ORDER_MARK) if isinstance(first, bytes) else first
        yield from records


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


_CHUNK = 2**18
_SPACE = b" \t\r\n"
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)  # a string is one mark
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


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
    pieces: list[bytes] = []
    size = count = 0
    for piece, end in _pieces(_chunks(stream)):
        pieces.append(piece[: max(0, limit + 1 - size)])
        size += len(piece)
        if end is None:
            continue
        value = b"".join(pieces)
        # Nothing at all between commas is the parser's to refuse.
        if value.strip(_SPACE) or end == b"," or (end == b"]" and count):
            count += 1
            yield too_long(value, limit) if size > limit else value
        pieces, size = [], 0


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """A stream from its first value on; no chunk ends between a backslash and what it escapes."""
    begun = False
    chunk = stream.read(_CHUNK).removeprefix(BYTE_ORDER_MARK)
    while chunk:
        while chunk.endswith(b"\\") and (more := stream.read(1)):
            chunk += more
        if chunk := chunk if begun else chunk.lstrip(_SPACE):
            begun = True
            yield chunk
        chunk = stream.read(_CHUNK)


def _pieces(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """Give pieces of values, each with what ends the value after it; None if that goes on."""
    first = next(chunks, b"")
    depth = top = int(first.startswith(b"["))  # the array is not a part of its elements
    in_string = False
    for chunk in chain([first[top:]], chunks):
        start = at = 0
        if in_string and (rest := _REST_OF_STRING.match(chunk)):
            in_string, at = not rest[1], rest.end()
        for mark in _MARK.finditer(chunk, at):
            end = mark.end()
            what = chunk[mark.start() : mark.start() + 1]
            if what == b'"':
                in_string = not mark[1]
            elif what in b"[{":
                depth += 1
            elif what == b",":
                if top == depth == 1:
                    yield chunk[start : end - 1], what
                    start = end
            elif depth > top:
                depth -= 1
                if not depth:
                    yield chunk[start:end], b"}"
                    start = end
            elif top and what == b"]":
                yield chunk[start : end - 1], what
                if any(rest.strip(_SPACE) for rest in chain([chunk[end:]], chunks)):
                    raise ValueError("something follows the end of the JSON array")
                return
        yield chunk[start:], None
    if top:
        raise EOFError("the JSON array does not end")
    yield b"", b""


register(JsonLines())
register(JsonArray())
