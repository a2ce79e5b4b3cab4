"""Reading the documents of one unit, and counting what its receipt will say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from jaxdata.convert.batches import Document, Documents
from jaxdata.convert.contents import Raw, raw_records
from jaxdata.convert.documents import parse
from jaxdata.convert.job import Job
from jaxdata.convert.limits import Limits
from jaxdata.convert.parts import Part, Unit
from jaxdata.convert.plain import in_runs, plain_texts
from jaxdata.convert.receipts import Members, OutputReceipt, Quarantined, Receipt
from jaxdata.convert.records import BadRecord, field_of, utf8_bytes
from jaxdata.convert.split_ratio import Ratio, read_ratio
from jaxdata.convert.splitting import Unreadable
from jaxdata.convert.statistics import Measured
from jaxdata.convert.tasks import Dropped, Record, Task
from jaxdata.convert.transform import load_transform, transformed

__all__ = ["StoppedAtBad", "Tally"]


class StoppedAtBad(Exception):
    """A bad record, in a conversion that is to stop at the first."""


class Tally:
    """Reads the documents of a unit, and keeps what the receipt says of what became none."""

    def __init__(self, unit: Unit, job: Job, task: Task, measured: Measured) -> None:
        self._unit, self._job, self._task, self._measured = unit, job, task, measured
        self._parameters = job.parameters
        self._transform = load_transform(name) if (name := job.parameters.transform) else None
        self._ratio = _ratio(job)
        self._plain_key = _plain_key(job, task)
        self._texts_only = not (self._transform or self._parameters.columns or task.keys is None)
        self._read_bytes = 0
        self._batch = Documents()
        self._records = [0] * len(unit.parts)
        self._members: Members = {}
        self._quarantined: list[Quarantined] = []
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def batches(self) -> Iterator[Documents]:
        """Give the documents of the unit in order, some hundred at a time."""
        for number, part in enumerate(self._unit.parts):
            yield from self._batches_of_part(number, part)
        if self._batch:
            yield self._batch

    def _batches_of_part(self, number: int, part: Part) -> Iterator[Documents]:
        settings = self._job.reading(self._task)
        file, members = self._job.files[part.file], self._members.setdefault(number, [])
        for run in in_runs(raw_records(file, part, settings, members)):
            texts = plain_texts(run, self._plain_key) if self._plain_key else None
            if texts is None:
                yield from self._batches_of_run(run, number)
            else:
                self._batch.append_texts(*texts, number, self._records[number], self._job.split)
                self._records[number] += len(run)
            self._read_bytes += sum(len(raw) for raw in run if isinstance(raw, bytes))
            yield from self._full_batch()

    def _full_batch(self) -> Iterator[Documents]:
        if self._batch.full:
            batch, self._batch = self._batch, Documents()
            yield batch

    def _batches_of_run(self, run: list[Raw], part: int) -> Iterator[Documents]:
        text_key = self._parameters.text_key
        for place, raw in enumerate(run, self._records[part]):
            self._records[part] = place + 1
            try:
                record = parse(raw, text_key, self._texts_only)
            except BadRecord as bad:
                self._quarantine(bad, raw, part, place)
                continue
            if record is None:
                self.counts["blank"] += 1
                continue
            for one in self._transformed(record):
                for document in self._documents_of(one, raw, part, place):
                    self._batch.append(document)
                    yield from self._full_batch()

    def _transformed(self, record: Record) -> Iterable[Record]:
        if not self._transform:
            return (record,)
        made = list(transformed(self._transform, record))
        self._count_made(len(made), "left out by the transform")
        return made

    def _count_made(self, count: int, reason: str) -> None:
        """Count what became of one record: nothing, which needs a reason, or more than one."""
        if not count:
            self.dropped[reason] += 1
        elif count > 1:
            self.counts["added"] += count - 1

    def _documents_of(self, record: Record, raw: Raw, part: int, place: int) -> Iterator[Document]:
        try:
            contents = self._task.prepare(record)
            kept = self._kept(record) if self._parameters.keep else b""
            split = self._split_of_key(record) if self._ratio else None
        except BadRecord as bad:
            self._measured.take()
            self._quarantine(bad, raw, part, place)
            return
        except Dropped as dropped:
            self._measured.take()
            self.dropped[dropped.reason] += 1
            return
        if len(contents) != 1:
            self._count_made(len(contents), "no document in it")
        raw_size = self._measured.take()
        for content in contents:
            if isinstance(content, Dropped):
                self.dropped[content.reason] += 1
                continue
            texts = self._task.texts(content)
            characters = sum(map(len, texts))
            if dropped_for := self._parameters.limits.of_characters(characters):
                self.dropped[dropped_for.reason] += 1
                continue
            text_bytes = sum(map(utf8_bytes, texts))
            dealt = split or (self._ratio.of_texts(texts) if self._ratio else self._job.split)
            yield Document(content, part, place, dealt, characters, text_bytes, *raw_size, kept)
            raw_size = 0, 0

    def _kept(self, record: Record) -> bytes:
        """The line of JSON with the fields to keep; one that is missing is null."""
        kept = {key: _field_or_none(record, key) for key in self._parameters.keep}
        return json.dumps(kept, default=str).encode() + b"\n"

    def _split_of_key(self, record: Record) -> str | None:
        if not self._ratio or not self._parameters.split_by:
            return None
        return self._ratio.of_key(field_of(record, self._parameters.split_by))

    def _quarantine(self, bad: BadRecord, raw: Raw, part: int, place: int) -> None:
        self._quarantined.append(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def share(self) -> float:
        """Return how much of the unit has been read, 0 to 1, as well as that is known."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))

    def receipt(self, outputs: dict[str, OutputReceipt]) -> Receipt:
        """Return the receipt of the unit, with what was written."""
        members = {part: starts for part, starts in self._members.items() if starts}
        return Receipt(
            self._records, outputs, self._quarantined, self.dropped, +self.counts, members
        )


def _plain_key(job: Job, task: Task) -> str | None:
    """The field whose text is a document as it is, where nothing else is asked for; else None."""
    parameters = job.parameters
    key = parameters.text_key
    more = parameters.transform or parameters.columns or parameters.split_ratio
    limited = parameters.limits != Limits() or job.cleaner()
    return None if more or limited or not task.plain or "." in key else key


def _ratio(job: Job) -> Ratio | None:
    """How documents are dealt while they are read; contiguous splits are cut at the end."""
    ratio = job.parameters.split_ratio
    return Ratio(read_ratio(ratio)) if ratio and not job.parameters.split_contiguous else None


def _field_or_none(record: Record, key: str) -> Any:
    try:
        return field_of(record, key)
    except BadRecord:
        return None


def _raw(raw: Raw) -> bytes | None:
    """What quarantine keeps: the bytes, or those of the only column, or the row as JSON."""
    if isinstance(raw, Unreadable):
        return raw.raw
    if isinstance(raw, dict) and len(raw) == 1:
        (raw,) = raw.values()
    return raw if raw is None or isinstance(raw, bytes) else json.dumps(raw, default=str).encode()
