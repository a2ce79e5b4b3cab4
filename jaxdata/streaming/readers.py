"""The documents of files or of records that a program gives, in order, from any position."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.base.facts import digest
from jaxdata.base.wording import counted
from jaxdata.converter.inputs.files import FilePart, FileType, InputFile, Unit
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.given_records import fields_of
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.job import Job
from jaxdata.converter.receipts import RecordPlace
from jaxdata.converter.statistics import Document
from jaxdata.converter.tasks.base import Task
from jaxdata.converter.transform import TransformFailed
from jaxdata.converter.worker import UnitReader


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
                for (part, record), found in by_record(reader, job.parameters.transform):
                    if (unit, part, record) >= begin:
                        document += len(found)
                        place = document, 0, number, unit, part, record + 1, line
                        yield found, StreamPosition(start.epoch, start.block, *place)
                line += count_left_out(reader, job.files[number], line, counts)


def by_record(
    reader: UnitReader, transform: str | None
) -> Iterator[tuple[tuple[int, int], list[Document]]]:
    """The documents of each record, with the number of its part in the unit and its own in that."""
    try:
        documents = chain.from_iterable(reader.batches())
        for place, found in groupby(documents, lambda one: (one.part, one.record)):
            yield place, list(found)
    except TransformFailed as error:
        raise InputError(f"{transform}: {error}") from None


def count_left_out(reader: UnitReader, file: InputFile, line: int, counts: InputCounts) -> int:
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
_CHECKED = 8  # records after a position; of a shuffle buffer, one may be the same by chance
_PLACE = InputFile("", "records", 0, FileType("parquet"), digest="", stamp=0)
"""What stands for their file: like rows of a table, they are numbered from 0."""


@dataclass(frozen=True)
class RecordPosition(Position):
    """A position in records."""

    record: int = 0
    """records before the block"""
    source: str = ""
    """the source's own state before the block, in JSON; "" if it has none"""
    check: str = ""
    """16 hex digits over the next records; "" at the beginning"""


class _Taken(NamedTuple):
    """A record, its digest, and the source's own state after it."""

    record: dict[str, Any]
    digest: bytes
    source: str


class RecordSource(TextSource):
    """The records of an iterable, dicts or texts."""

    start = RecordPosition()
    inputs = "FILE (save them as JSON lines or parquet)"

    def __init__(self, records: Iterable[Any], epochs: int | None) -> None:
        self._records: Any = _private(records)
        self._has_state = hasattr(records, "state_dict") and hasattr(records, "load_state_dict")
        self._first = deepcopy(self._records.state_dict()) if self._has_state else None
        self._once = isinstance(records, Iterator) and not self._has_state
        self._begun = False
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
        job, record, document = replace(job, files=[_PLACE]), start.record, start.document
        held: list[_Taken] = []
        key = job.parameters.text_key
        taken = self._from(start, key)
        while held := [*held, *islice(taken, _TOGETHER + _CHECKED - len(held))]:
            ended = len(held) < _TOGETHER + _CHECKED
            here = held if ended else held[:_TOGETHER]
            part = FilePart(0, data=tuple(one.record for one in here))
            reader = UnitReader(Unit("records", (part,), 0, 0, (_PLACE,)), job, task)
            for (_, number), found in by_record(reader, job.parameters.transform):
                document += len(found)
                place = record + number + 1, here[number].source, _check(held[number + 1 :])
                yield found, RecordPosition(start.epoch, start.block, document, 0, *place)
            count_left_out(reader, _PLACE, record, counts)
            record, held = record + len(here), held[len(here) :]

    def _from(self, start: RecordPosition, key: str) -> Iterator[_Taken]:
        """The records from a position on: by the source's own state, else by counting."""
        if self._has_state and start.source:
            with suppress(Exception):  # whatever a library makes of a state of another version
                self._records.load_state_dict(json.loads(start.source))
                if found := self._same(iter(self._records), start, key):
                    return found
        found = self._same(islice(self._begin(), start.record, None), start, key)
        if found is None:
            raise StateMismatch(
                f"from record {start.record:,} on, the source gives others than when the state was "
                "saved: it must give the same records in the same order (a seed for its shuffles), "
                "and end where it ended"
            )
        return found

    def _same(
        self, records: Iterator[Any], start: RecordPosition, key: str
    ) -> Iterator[_Taken] | None:
        """The records, if the next ones are those that followed when the state was saved."""
        taken = self._take(records, start.record, key)
        ahead = list(islice(taken, _CHECKED))
        return None if start.check and _check(ahead) != start.check else chain(ahead, taken)

    def _begin(self) -> Iterator[Any]:
        if self._once and self._begun:
            raise InputError(
                "a generator can be read only once: give an iterable that begins anew, such as a "
                "list or a dataset, or make a new stream of a new generator"
            )
        self._begun = True
        if self._has_state:
            self._records.load_state_dict(deepcopy(self._first))
        return iter(self._records)

    def _take(self, records: Iterator[Any], number: int, key: str) -> Iterator[_Taken]:
        for place, given in enumerate(records, number):
            record = fields_of(given, place, key)
            yield _Taken(record, _digest(record), self._state())

    def _state(self) -> str:
        """The source's own state now; "" where it has none, or none that JSON restores."""
        if not self._has_state:
            return ""
        state = self._records.state_dict()
        try:
            written = json.dumps(state)
        except (TypeError, ValueError):
            return ""
        return written if json.loads(written) == state else ""


def _private(records: Any) -> Any:
    """A dataset of Hugging Face's without the state that others have left in it.

    There `iter` begins at the beginning only if no state was loaded, and `state_dict` may be where
    somebody looked at a record.
    """
    theirs = type(records).__module__.partition(".")[0] == "datasets"
    return records.shard(1, 0) if theirs and hasattr(records, "state_dict") else records


def _digest(record: dict[str, Any]) -> bytes:
    """Of a record; of values that JSON does not know, only the type counts."""
    content = json.dumps(record, default=lambda value: type(value).__name__, skipkeys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).digest()


def _check(following: list[_Taken]) -> str:
    digests = b"".join(one.digest for one in following[:_CHECKED])
    return hashlib.blake2b(digests, digest_size=8).hexdigest()
