"""Streams that nobody can begin in the middle of: read in one process, they feed all others.

They are cut where a plain file with the same content is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from jaxdata.convert.contents import Content, contents
from jaxdata.convert.inputs import InputFile, reading
from jaxdata.convert.parts import Data, Part, ReadSettings
from jaxdata.convert.splitting import BYTE_ORDER_MARK, Unreadable
from jaxdata.format.members import Member

__all__ = ["Block", "fed", "next_multiple"]

_LINE = 2**20  # bytes of a long line looked at at a time

Block = tuple[tuple[Part, ...], int, int]
"""The parts of a unit, their bytes on disk, their bytes of records."""


def fed(number: int, file: InputFile, settings: ReadSettings, unit_bytes: int) -> Iterator[Block]:
    """Give a file in blocks of about `unit_bytes`, each with its records in it."""
    feed = _Feed(number, unit_bytes)
    with reading(file.path), file.path.open("rb") as raw:
        before = 0
        for content in contents(file, raw, settings.expansion):
            place = content.first
            for data, size in _pieces(content, feed, settings):
                full = size >= feed.room
                feed.add(data, size, place)
                place = place and place.after(_records_in(data))
                if full:
                    yield feed.take(raw.tell() - before)
                    before = raw.tell()
        if feed.parts:
            yield feed.take(raw.tell() - before)


class _Feed:
    """The parts of the next unit of a stream."""

    def __init__(self, file: int, unit_bytes: int) -> None:
        self._file, self._unit_bytes = file, unit_bytes
        self._start = self._offset = 0
        self.parts: list[Part] = []

    @property
    def room(self) -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return next_multiple(self._offset, self._unit_bytes) - self._offset

    def add(self, data: Data, size: int, member: Member | None) -> None:
        self.parts.append(Part(self._file, self._offset, data=data, member=member))
        self._offset += size

    def take(self, packed_size: int) -> Block:
        parts, size = tuple(self.parts), self._offset - self._start
        self.parts, self._start = [], self._offset
        return parts, packed_size, size


def _pieces(content: Content, feed: _Feed, settings: ReadSettings) -> Iterator[tuple[Data, int]]:
    """Give records of a stream, and their bytes, so many at a time as the feed has room for."""
    if content.kind.format == "jsonl" and not content.link:
        with reading(content.where):
            yield from _lines(content.stream, feed, settings.record_bytes)
        return
    records: list[bytes | Unreadable] = []
    size = 0
    for record in content.records(settings):
        records.append(record)
        size += len(record) if isinstance(record, bytes) else 0
        if size >= feed.room:
            yield tuple(records), size
            records, size = [], 0
    if records:
        yield tuple(records), size


def _lines(stream: IO[bytes], feed: _Feed, limit: int) -> Iterator[tuple[bytes, int]]:
    mark = BYTE_ORDER_MARK
    while block := stream.read(feed.room):
        block += _line_end(stream, limit)
        yield block.removeprefix(mark), len(block)
        mark = b""


def _records_in(data: Data) -> int:
    """How many records these are."""
    if isinstance(data, tuple):
        return len(data)
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


def _line_end(stream: IO[bytes], limit: int) -> bytes:
    """The rest of a line; of one that is too long so much that the worker sees it is."""
    end = stream.readline(limit + 2)
    if len(end) == limit + 2 and not end.endswith(b"\n"):
        while (piece := stream.readline(_LINE)) and not piece.endswith(b"\n"):
            pass
        end += b"\n"
    return end


def next_multiple(start: int, unit_bytes: int) -> int:
    """The first multiple of `unit_bytes` behind `start`."""
    return (start // unit_bytes + 1) * unit_bytes
