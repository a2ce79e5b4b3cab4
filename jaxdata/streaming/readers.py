"""The documents of files or of records that a program gives, in order, from any position."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError, StateMismatch, counted, digest
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, Unit
from jaxdata.converter.inputs.given_records import fields_of
from jaxdata.converter.inputs.reading import cut, reader_of
from jaxdata.converter.receipts import RecordPlace
from jaxdata.converter.statistics import Document
from jaxdata.converter.tasks import Task
from jaxdata.converter.transform import TransformFailed
from jaxdata.converter.worker import Job, UnitReader


@dataclass(frozen=True)
class Position:
    """The next row of a stream, as its state has it; in a reader, the next record."""

    epoch: int = 0
    block: int = 0
    """number in the epoch"""
    document: int = 0
    """documents before the block, in the epoch"""
    row: int = 0
    """number in the block"""


@dataclass
class InputCounts:
    """What became of the records read so far; a thread that reads ahead adds to it."""

    documents: int = 0
    tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Bad records and dropped documents by reason."""
    first_bad: str | None = None

    def __str__(self) -> str:
        said = f"{counted(self.documents, 'document')}, {counted(self.tokens, 'token')}"
        if self.left_out:
            reasons = [f"{count:,} {reason}" for reason, count in dict(self.left_out).items()]
            said += f"; left out: {', '.join(reasons)}"
        return said + (f"; the first is {self.first_bad}" if self.first_bad else "")


class TextSource(ABC):
    """Documents in an order of their own, read from any position; `str()` says what it is."""

    files: Sequence[InputFile] = ()
    """that it reads, if it does"""
    start: Position
    """of the first record"""
    inputs: str
    """what the command that converts it is given"""

    @abstractmethod
    def identity(self, inputs: dict[str, str]) -> dict[str, Any]:
        """The named facts by which a state knows it; `inputs` are the files' digests."""

    @abstractmethod
    def documents(
        self, job: Job, task: Task, start: Any, counts: InputCounts
    ) -> Iterator[tuple[list[Document], Position]]:
        """Read from a position on; records without documents go to `counts`.

        Yields:
            (documents of a record, position after the record).
        """


_UNIT_BYTES = 4 * 2**20  # of text read at a time; what is skipped to return to a position


@dataclass(frozen=True)
class StreamPosition(Position):
    """A position in files."""

    file: int = 0
    unit: int = 0
    """number in the file, as the converter cuts it"""
    part: int = 0
    """number in the unit"""
    record: int = 0
    """number in the part, of the first record of the block"""
    line: int = 0
    """records of the file before the unit"""


class FileSource(TextSource):
    """Files, in the order of their names."""

    start = StreamPosition()

    def __init__(self, files: Sequence[InputFile]) -> None:
        self.files = files
        self.inputs = Path(files[0].name).name + " …" * (len(files) > 1)

    def __str__(self) -> str:
        return f"{len(self.files)} files ({sum(file.size for file in self.files) / 1e6:,.1f} MB)"

    def identity(self, inputs: dict[str, str]) -> dict[str, Any]:
        return {"files": len(self.files), "inputs": digest(inputs)[:8]}

    def documents(
        self, job: Job, task: Task, start: StreamPosition, counts: InputCounts
    ) -> Iterator[tuple[list[Document], StreamPosition]]:
        document = start.document
        for number in range(start.file, len(job.files)):
            at = start if number == start.file else StreamPosition()
            begin, line = (at.unit, at.part, at.record), at.line
            one = replace(job, files=[job.files[number]])
            for unit, cut_off in enumerate(cut(one.files, one.reading(task), _UNIT_BYTES)):
                if unit < at.unit:
                    continue
                reader = UnitReader(cut_off, one, task)
                for (part, record), found in _by_record(reader, job.parameters.transform):
                    if (unit, part, record) >= begin:
                        document += len(found)
                        place = document, 0, number, unit, part, record + 1, line
                        yield found, StreamPosition(start.epoch, start.block, *place)
                line += _count_left_out(reader, job.files[number], line, counts)


def _by_record(
    reader: UnitReader, transform: str | None
) -> Iterator[tuple[tuple[int, int], list[Document]]]:
    """The documents of each record, with the number of its part in the unit and its own in that."""
    try:
        documents = chain.from_iterable(reader.batches())
        for place, found in groupby(documents, lambda one: (one.part, one.record)):
            yield place, list(found)
    except TransformFailed as error:
        raise InputError(f"{transform}: {error}") from None


def _count_left_out(reader: UnitReader, file: InputFile, line: int, counts: InputCounts) -> int:
    """Count what a unit left out; returns its records."""
    receipt = reader.receipt
    counts.left_out += receipt.dropped
    for bad in receipt.quarantined:
        counts.left_out[bad.reason] += 1
        if counts.first_bad is None:
            first = line + sum(receipt.records[: bad.part]) + reader_of(file.kind).first_number
            place = RecordPlace(file, first + bad.record, receipt.member(bad.part, bad.record))
            counts.first_bad = f"{place}: {bad.reason}"
    return sum(receipt.records)


_TOGETHER = 256
_CHECKED = 8  # records after a position; one may be the same by chance
_PLACE = InputFile("", "records", 0, FileType("parquet"), digest="", stamp=0)
"""What stands for their file: like rows of a table, they are numbered from 0."""


@dataclass(frozen=True)
class RecordPosition(Position):
    """A position in records."""

    record: int = 0
    """records before the block"""
    check: str = ""
    """16 hex digits over the next records; "" at the beginning"""


Taken = tuple[dict[str, Any], bytes]
"""a record, and its digest"""


class RecordSource(TextSource):
    """The records of an iterable, dicts or texts."""

    start = RecordPosition()
    inputs = "FILE (save them as JSON lines or parquet)"

    def __init__(self, records: Iterable[Any], epochs: int | None) -> None:
        self._records, self._once, self._begun = records, isinstance(records, Iterator), False
        if self._once and epochs != 1:
            raise InputError(
                f"epochs={epochs}: a generator can be read only once: use epochs=1, or give an "
                "iterable that begins anew, such as a list or a dataset"
            )

    def __str__(self) -> str:
        return "these records"

    def identity(self, _: dict[str, str]) -> dict[str, Any]:
        return {"inputs": "records"}

    def documents(
        self, job: Job, task: Task, start: RecordPosition, counts: InputCounts
    ) -> Iterator[tuple[list[Document], RecordPosition]]:
        job, first, document = replace(job, files=[_PLACE]), start.record, start.document
        held: list[Taken] = []
        taken = self._from(start, job.parameters.text_key)
        while held := [*held, *islice(taken, _TOGETHER + _CHECKED - len(held))]:
            ended = len(held) < _TOGETHER + _CHECKED
            here = held if ended else held[:_TOGETHER]
            part = FilePart(0, data=tuple(record for record, _ in here))
            reader = UnitReader(Unit("records", (part,), 0, 0, (_PLACE,)), job, task)
            for (_, number), found in _by_record(reader, job.parameters.transform):
                document += len(found)
                place = first + number + 1, _check(held[number + 1 :])
                yield found, RecordPosition(start.epoch, start.block, document, 0, *place)
            _count_left_out(reader, _PLACE, first, counts)
            first, held = first + len(here), held[len(here) :]

    def _from(self, start: RecordPosition, key: str) -> Iterator[Taken]:
        """The records from a position on, which must be those that followed it."""
        if self._once and self._begun:
            raise InputError(
                "a generator can be read only once: give an iterable that begins anew, such as a "
                "list or a dataset, or make a new stream of a new generator"
            )
        self._begun = True
        given = islice(self._records, start.record, None)
        fields = (fields_of(one, number, key) for number, one in enumerate(given, start.record))
        taken = ((record, _digest(record)) for record in fields)
        ahead = list(islice(taken, _CHECKED))
        if start.check and _check(ahead) != start.check:
            raise StateMismatch(
                f"from record {start.record:,} on, the source gives others than when the state was "
                "saved: it must give the same records in the same order (a seed for its shuffles), "
                "and end where it ended"
            )
        return chain(ahead, taken)


def _digest(record: dict[str, Any]) -> bytes:
    """Of a record; of values that JSON does not know, only the type counts."""
    content = json.dumps(record, default=lambda value: type(value).__name__, skipkeys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).digest()


def _check(following: list[Taken]) -> str:
    digests = b"".join(digest for _, digest in following[:_CHECKED])
    return hashlib.blake2b(digests, digest_size=8).hexdigest()
