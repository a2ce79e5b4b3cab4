"""Documents in the order of the input files, and the place where reading goes on behind each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from typing import NamedTuple

from jaxdata.convert.batches import Document
from jaxdata.convert.job import Job
from jaxdata.convert.places import place_of
from jaxdata.convert.statistics import Measured
from jaxdata.convert.tally import Tally as UnitTally
from jaxdata.convert.tasks import Task
from jaxdata.convert.transform import TransformFailed
from jaxdata.convert.units import cut
from jaxdata.errors import InputError

__all__ = ["Found", "Place", "Reader", "Tally"]

_UNIT_BYTES = 4 * 2**20  # of text read at a time; what is passed over to come back to a place


class Place(NamedTuple):
    """Before a record of the input files; what a stream's state remembers."""

    file: int = 0
    unit: int = 0
    """number of a stretch of the file, as the converter cuts it"""
    part: int = 0
    """number of the part of it"""
    record: int = 0
    """number of the record in that"""
    line: int = 0
    """records of the file before the stretch"""
    document: int = 0
    """documents before it, in all files"""


class Found(NamedTuple):
    """The documents of one record."""

    documents: Sequence[Document]
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
        job: the files, and what a conversion would make of them.
    """

    job: Job

    @cached_property
    def _cleaner(self) -> Measured:
        return Measured(self.job.cleaner())

    @cached_property
    def task(self) -> Task:
        """What takes the documents out of records."""
        return self.job.task(self.job.tokenizer(), self._cleaner)

    def documents(self, start: Place, tally: Tally) -> Iterator[Found]:
        """Documents from a place on; records that give none are counted in `tally`."""
        number = start.document
        for place, some in self._records(start, tally):
            stop = number + len(some)
            yield Found(some, number, place._replace(document=stop))
            number = stop

    def _records(self, start: Place, tally: Tally) -> Iterator[tuple[Place, list[Document]]]:
        """The documents of each record, with the place behind it."""
        for number in range(start.file, len(self.job.files)):
            begin, line = (start[1:4], start.line) if number == start.file else ((0, 0, 0), 0)
            for unit, made in self._units(number, begin[0]):
                for (part, record), some in groupby(self._read(made), _record_of):
                    if (unit, part, record) >= begin:
                        yield Place(number, unit, part, record + 1, line), list(some)
                line += self._count(number, made, line, tally)

    def _units(self, number: int, first: int) -> Iterator[tuple[int, UnitTally]]:
        """The stretches of a file from one on, each to be read."""
        job = replace(self.job, files=[self.job.files[number]])
        for unit, stretch in enumerate(cut(job.files, job.reading(self.task), _UNIT_BYTES)):
            if unit >= first:
                yield unit, UnitTally(stretch, job, self.task, self._cleaner)

    def _read(self, made: UnitTally) -> Iterator[Document]:
        try:
            yield from chain.from_iterable(made.batches())
        except TransformFailed as error:
            raise InputError(f"{self.job.parameters.transform}: {error}") from None

    def _count(self, number: int, made: UnitTally, line: int, tally: Tally) -> int:
        """Count what a stretch left out; returns its records."""
        receipt, file = made.receipt({}), self.job.files[number]
        tally.left_out += receipt.dropped
        for bad in receipt.quarantined:
            tally.left_out[bad.reason] += 1
            if tally.first_bad is None:
                first = line + sum(receipt.records[: bad.part]) + file.kind.first_number
                place = place_of(file, first, receipt, bad.part, bad.record)
                tally.first_bad = f"{place}: {bad.reason}"
        return sum(receipt.records)


def _record_of(document: Document) -> tuple[int, int]:
    return document.part, document.record
