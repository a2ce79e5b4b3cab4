"""Documents in the order of the input files, and the place where reading goes on behind each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxdata.convert.columns import check_strings
from jaxdata.convert.contents import raw_records
from jaxdata.convert.documents import parse
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.parts import ReadSettings
from jaxdata.convert.records import BadRecord
from jaxdata.convert.tasks import Dropped, Record, Task
from jaxdata.convert.units import cut

__all__ = ["Found", "Place", "Reader", "Tally"]

_UNIT_BYTES = 4 * 2**20  # of text read at a time; what is passed over to come back to a place


class Place(NamedTuple):
    """Before a record of the input files; what a stream's state remembers."""

    file: int = 0
    unit: int = 0
    """number of a stretch of the file, as the converter cuts it"""
    record: int = 0
    """number of the record in it"""
    line: int = 0
    """number of the record in the file"""
    document: int = 0
    """documents before it, in all files"""


class Found(NamedTuple):
    """The documents of one record, as a task prepared them."""

    contents: Sequence[Any]
    first: int
    """number of the first of them"""
    after: Place


@dataclass
class Tally:
    """What became of the records read so far; a thread that reads ahead adds to it."""

    documents: int = 0
    tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Bad records and dropped documents by reason."""
    first_bad: str | None = None


@dataclass(frozen=True)
class Reader:
    """Reads the documents of files in order, from any place on.

    Args:
        files: the inputs, sorted.
        task: what takes the documents out of a record.
        text_key: the field that a text file's text is.
    """

    files: list[InputFile]
    task: Task
    text_key: str

    def check(self) -> None:
        """Raise InputError where a table lacks a column."""
        for file in self.files:
            if file.kind.table:
                for key in self.task.keys or ():
                    check_strings(file, key)

    def documents(self, start: Place, tally: Tally) -> Iterator[Found]:
        """Documents from a place on; records that give none are counted in `tally`."""
        number = start.document
        for after, file, raw in self._records(start):
            contents = self._contents(file, raw, after.line, tally)
            if contents:
                stop = number + len(contents)
                yield Found(contents, number, after._replace(document=stop))
                number = stop

    def _contents(self, file: InputFile, raw: Any, line: int, tally: Tally) -> Sequence[Any]:
        try:
            record: Record | None = parse(raw, self.text_key)
            return [] if record is None else self.task.prepare(record)
        except Dropped as dropped:
            tally.left_out[dropped.reason] += 1
        except BadRecord as bad:
            tally.left_out[bad.reason] += 1
            place = f"{file.path}:{line - 1 + file.kind.first_number}"
            tally.first_bad = tally.first_bad or f"{place}: {bad.reason}"
        return []

    def _records(self, start: Place) -> Iterator[tuple[Place, InputFile, Any]]:
        """Raw records from a place on, each with the place behind it."""
        settings = ReadSettings(self.task.keys)
        for number in range(start.file, len(self.files)):
            file, line = self.files[number], start.line - start.record
            begin = (start.unit, start.record) if number == start.file else (0, 0)
            line = line if number == start.file else 0
            for unit, stretch in enumerate(cut([file], settings, _UNIT_BYTES)):
                if unit < begin[0]:
                    continue
                parts = (raw_records(file, part, settings) for part in stretch.parts)
                for record, raw in enumerate(raw for part in parts for raw in part):
                    line += 1
                    if (unit, record) >= begin:
                        yield Place(number, unit, record + 1, line), file, raw
