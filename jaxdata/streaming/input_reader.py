"""The documents of files in order, read from any position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from jaxdata.converter.document_batch import Document
from jaxdata.converter.inputs.cutting import cut
from jaxdata.converter.inputs.file_types import first_number
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.job import Job
from jaxdata.converter.merged_receipts import place_of
from jaxdata.converter.tasks import Task
from jaxdata.converter.transform import TransformFailed
from jaxdata.converter.unit_reader import UnitReader
from jaxdata.errors import InputError
from jaxdata.facts import digest
from jaxdata.streaming.text_source import InputCounts, Position

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


@dataclass(frozen=True)
class FileSource:
    """Files, in the order of their names (see `TextSource`)."""

    files: list[InputFile]

    start = StreamPosition()

    def __str__(self) -> str:
        return f"{len(self.files)} files"

    def identity(self, inputs: dict[str, str]) -> dict[str, Any]:
        return {"files": len(self.files), "inputs": digest(inputs)[:8]}

    def advice(self) -> tuple[str, str]:
        megabytes = sum(file.size for file in self.files) / 1e6
        more = " …" * (len(self.files) > 1)
        return f"{megabytes:,.1f} MB", f"{Path(self.files[0].name).name}{more}"

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
    receipt = reader.receipt({})
    counts.left_out += receipt.dropped
    for bad in receipt.quarantined:
        counts.left_out[bad.reason] += 1
        if counts.first_bad is None:
            first = line + sum(receipt.records[: bad.part]) + first_number(file.kind)
            place = place_of(file, first, receipt, bad.part, bad.record)
            counts.first_bad = f"{place}: {bad.reason}"
    return sum(receipt.records)
