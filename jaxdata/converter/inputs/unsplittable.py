"""Non-splittable streams: one process reads them and feeds all workers.

They are cut where a plain file with the same content is cut.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.inputs.read_errors import reading
from jaxdata.converter.inputs.readers import contents
from jaxdata.converter.inputs.units import Block, Data, FilePart, ReadSettings, next_multiple
from jaxdata.format.archive_members import Member


def feed_blocks(
    number: int, file: InputFile, settings: ReadSettings, unit_bytes: int
) -> Iterator[Block]:
    """Give a file in blocks of about `unit_bytes`, each with its records in it."""
    feed = _Feed(number, unit_bytes)
    with reading(file.where), file.open() as raw:
        before = 0
        for content in contents(file, raw, settings.expansion):
            place = content.first
            for data, size in content.blocks(settings, lambda: feed.room):
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
        self.parts: list[FilePart] = []

    @property
    def room(self) -> int:
        """Bytes until the unit is full: when the stream passes a multiple of the unit's."""
        return next_multiple(self._offset, self._unit_bytes) - self._offset

    def add(self, data: Data, size: int, member: Member | None) -> None:
        self.parts.append(FilePart(self._file, self._offset, data=data, member=member))
        self._offset += size

    def take(self, packed_size: int) -> Block:
        parts, size = tuple(self.parts), self._offset - self._start
        self.parts, self._start = [], self._offset
        return parts, packed_size, size


def _records_in(data: Data) -> int:
    """How many records these are."""
    if isinstance(data, tuple):
        return len(data)
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
