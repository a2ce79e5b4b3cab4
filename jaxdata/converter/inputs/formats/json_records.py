"""JSON: in lines, each an object; and in arrays, or objects one after the other."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.files import Blocks, Data, FilePart, InputFile, ReadSettings
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Raw, Unreadable, reading, too_long
from jaxdata.converter.inputs.reading import Format, SplittableFormat, next_multiple, register
from jaxdata.converter.inputs.streams import lines, pass_line


class JsonLines(SplittableFormat):
    """An object a line. It is cut after lines."""

    name = "jsonl"
    suffixes = ("jsonl", "ndjson")
    counted = "line"

    def recognized(self, head: bytes) -> str:
        return _shape(head, lines_only=True)

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes | Unreadable]:
        return _without_mark(lines(stream, settings.record_bytes))

    def cut(self, number: int, file: InputFile, _: ReadSettings, unit_bytes: int) -> Blocks:
        """After the first line end at or after each multiple of `unit_bytes`."""
        with reading(file.where), file.open() as stream:
            start = 0
            while start < file.size:
                stream.seek(next_multiple(start, unit_bytes))
                pass_line(stream)
                stop = min(stream.tell(), file.size)
                yield (FilePart(number, start, stop),), stop - start, stop - start
                start = stop

    def read_part(self, file: InputFile, part: FilePart, settings: ReadSettings) -> Iterator[Raw]:
        assert part.stop is not None
        with reading(file.where), file.open(ahead_to=part.stop) as stream:
            stream.seek(part.start)
            found = lines(stream, settings.record_bytes, part.stop - part.start)
            yield from found if part.start else _without_mark(found)
            if stream.tell() != part.stop:
                raise InputError(
                    f"{file.where} was truncated while being read; do not modify inputs during a "
                    "conversion"
                )

    def blocks(
        self, stream: IO[bytes], settings: ReadSettings, room: Callable[[], int]
    ) -> Iterator[tuple[Data, int]]:
        """Whole lines, which are parsed where they are sent to."""
        limit = settings.record_bytes
        while block := stream.read(room()):
            end = stream.readline(limit + 2)
            if len(end) == limit + 2 and not end.endswith(b"\n"):
                pass_line(stream)  # what is kept is so much that the worker sees it is too long
                end += b"\n"
            block += end
            yield block, len(block)


class JsonArray(Format):
    """The elements of an array, or objects one after the other."""

    name = "json"
    suffixes = ("json",)

    def recognized(self, head: bytes) -> str:
        return _shape(head, lines_only=False)

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes | Unreadable]:
        return json_values(stream, settings.record_bytes)


def _without_mark(records: Iterator[bytes | Unreadable]) -> Iterator[bytes | Unreadable]:
    for first in records:
        yield first.removeprefix(BYTE_ORDER_MARK) if isinstance(first, bytes) else first
        yield from records


def _shape(head: bytes, lines_only: bool) -> str:
    """Tell an array from lines, and from objects over several lines where these may be.

    Lines of JSON are told by the first: it is a value by itself.
    """
    text = head.removeprefix(BYTE_ORDER_MARK).strip()
    first, _, rest = text.partition(b"\n")
    array = re.match(rb"\[\s*[{\]]" if lines_only else rb"\[", text)
    if not array and (lines_only or not rest or not text.startswith(b"{")):
        return "jsonl"
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return "json"
    return "jsonl" if rest else "json"


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
