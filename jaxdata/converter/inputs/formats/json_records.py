"""JSON: in lines, each an object; and in arrays, or objects one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from jaxdata.converter.inputs.formats.base import Format, SplittableFormat, register
from jaxdata.converter.inputs.parsing import BYTE_ORDER_MARK, Unreadable, reading
from jaxdata.converter.inputs.streams import json_values, lines
from jaxdata.converter.inputs.units import Block, Data, FilePart, ReadSettings, next_multiple

if TYPE_CHECKING:
    from jaxdata.converter.inputs.files import InputFile

_LINES = 100  # that are looked at to tell lines from an array
_LINE = 2**20  # bytes of a long line looked at at a time


class JsonLines(SplittableFormat):
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
                while (piece := stream.readline(_LINE)) and not piece.endswith(b"\n"):
                    pass
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
        mark = BYTE_ORDER_MARK
        while block := stream.read(room()):
            block += _line_end(stream, settings.record_bytes)
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


def _line_end(stream: IO[bytes], limit: int) -> bytes:
    """The rest of a line; of one that is too long so much that the worker sees it is."""
    end = stream.readline(limit + 2)
    if len(end) == limit + 2 and not end.endswith(b"\n"):
        while (piece := stream.readline(_LINE)) and not piece.endswith(b"\n"):
            pass
        end += b"\n"
    return end


register(JsonLines())
register(JsonArray())
