"""A worker process: it reads the documents of a unit, writes its shards and then its receipt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from jaxdata.base.processes import Report
from jaxdata.converter.changes import ContentHash, content_of
from jaxdata.converter.document_batch import Document, Documents, in_pieces
from jaxdata.converter.filters import LengthFilter
from jaxdata.converter.hashes import DocumentHashes
from jaxdata.converter.inputs.files import FilePart, InputFile, Unit, stamp_of
from jaxdata.converter.inputs.parsing import (
    BadRecord,
    Raw,
    TextPiece,
    Unreadable,
    field_of,
    field_or_none,
    in_runs,
    parse,
    plain_value,
)
from jaxdata.converter.inputs.reading import record_runs
from jaxdata.converter.job import Finished, Job
from jaxdata.converter.outputs import Outputs
from jaxdata.converter.receipts import Members, OutputReceipt, Quarantined, Receipt
from jaxdata.converter.splits import Ratio, read_ratio
from jaxdata.converter.statistics import DROPPED, count_documents, sizes_of
from jaxdata.converter.tasks.base import Dropped, Record, Task, Unencodable
from jaxdata.converter.transform import TransformFailed, load_transform, transformed


class StoppedAtBad(Exception):
    """A bad record, in a conversion that stops at the first one."""


class UnitReader:
    """Reads the documents of a unit, and keeps count of records that became none."""

    def __init__(self, unit: Unit, job: Job, task: Task) -> None:
        self._unit, self._job, self._task = unit, job, task
        self._parameters = parameters = job.parameters
        self._reading = job.reading(task)
        self._transform = load_transform(name) if (name := parameters.transform) else None
        hashed = not parameters.split_contiguous  # contiguous splits are assigned later
        ratio = parameters.split_ratio if hashed else None
        self._ratio = Ratio(read_ratio(ratio)) if ratio else None
        self._plain_key = _plain_key(job, task)
        self._texts_only = not (self._transform or self._parameters.columns or task.keys is None)
        self._read_bytes = 0
        self._batch = Documents()
        self._records = [0] * len(unit.parts)
        self._contents = [ContentHash() for _ in unit.parts]
        self._members: Members = {}
        self._quarantined: list[Quarantined] = []
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def batches(self) -> Iterator[Documents]:
        """Give the documents of the unit in order, some hundred at a time."""
        for number, (file, part) in enumerate(self._unit.reads):
            yield from self._batches_of_part(number, file, part)
        if self._batch:
            yield self._batch

    def _batches_of_part(self, number: int, file: InputFile, part: FilePart) -> Iterator[Documents]:
        content = self._contents[number]
        for member, records in record_runs(file, part, self._reading):
            content.begin(member)
            if member:
                self._members.setdefault(number, []).append((self._records[number], member))
            for run, size in in_runs(records):
                content.add(run)
                texts = _plain_texts(run, self._plain_key) if self._plain_key else None
                if texts is None:
                    yield from self._batches_of_run(run, number)
                else:
                    self._batch.append_texts(*texts, number, self._records[number], self._job.split)
                    self._records[number] += len(run)
                self._read_bytes += size
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
                    self._batch.append(document, self._task.weight(document.content))
                    yield from self._full_batch()

    def _transformed(self, record: Record) -> Iterable[Record]:
        if not self._transform:
            return (record,)
        made = list(transformed(self._transform, record))
        self._count_made(len(made), "left out by the transform")
        return made

    def _count_made(self, count: int, reason: str) -> None:
        """Count a record that became no document, for a reason, or more than one."""
        if not count:
            self.dropped[reason] += 1
        elif count > 1:
            self.counts["added"] += count - 1

    def _documents_of(self, record: Record, raw: Raw, part: int, place: int) -> Iterator[Document]:
        try:
            if isinstance(raw, TextPiece) and not raw.whole:
                contents, raw_texts = self._task.prepare_piece(record, raw)
            else:
                contents, raw_texts = self._task.prepare(record)
            kept = self._kept(record, raw, part) if self._parameters.keep else b""
            split = self._split_of_key(record)
        except BadRecord as bad:
            self._quarantine(bad, raw, part, place)
            return
        except Dropped as dropped:
            self.dropped[dropped.reason] += 1
            return
        if len(contents) != 1:
            self._count_made(len(contents), "no document in it")
        raw_sizes = counted = sizes_of(raw_texts)
        left_out: list[tuple[int, int]] = []
        for content in contents:
            if isinstance(content, Dropped):
                self.dropped[content.reason] += 1
                continue
            texts = self._task.texts(content)
            sizes = raw_sizes if texts == raw_texts else sizes_of(texts)
            if dropped_for := self._parameters.limits.of_characters(sizes[0]):
                self.dropped[dropped_for.reason] += 1
                left_out.append(sizes)
                continue
            split_of = split or self._split_of(content)
            yield Document(content, part, place, split_of, *sizes, *counted, kept)
            counted = 0, 0
        if left_out:  # `counted` are still the record's where none of it became a document
            sums = *counted, *map(sum, zip(*left_out, strict=True))
            self.counts.update(dict(zip(DROPPED, sums, strict=True)))

    def _kept(self, record: Record, raw: Raw, part: int) -> bytes:
        """The line of JSON with the fields to keep; one that is missing is null.

        A text file has its path, as its origin names it.
        """
        if isinstance(raw, TextPiece):
            record = {"path": self._path(part), **record}
        kept = {key: field_or_none(record, key) for key in self._parameters.keep}
        return json.dumps(kept, default=plain_value).encode() + b"\n"

    def _path(self, part: int) -> str:
        name = self._unit.files[part].name
        return f"{name}: {self._members[part][-1][1].name}" if part in self._members else name

    def _split_of_key(self, record: Record) -> str | None:
        if not self._ratio or not self._parameters.split_by:
            return None
        return self._ratio.of_key(field_of(record, self._parameters.split_by))

    def _split_of(self, content: Any) -> str:
        return self._ratio.of_texts(self._task.hashed(content)) if self._ratio else self._job.split

    def _quarantine(self, bad: BadRecord, raw: Raw, part: int, place: int) -> None:
        self._set_aside(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))

    def _set_aside(self, bad: Quarantined) -> None:
        self._quarantined.append(bad)
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def drop(self, batch: Documents, encoded: Sequence[Any]) -> None:
        """Count the documents of a batch that were not encoded but `Dropped`, or set them aside."""
        left_out = {n: one for n, one in enumerate(encoded) if isinstance(one, Dropped)}
        for n, one in left_out.items():
            if isinstance(one, Unencodable):
                self._set_aside(Quarantined(batch.part[n], batch.record[n], one.reason, None))
            else:
                self.dropped[one.reason] += 1
        count_documents(self.counts, batch.take([*left_out]), DROPPED)

    def share(self) -> float:
        """The share of the unit that has been read, 0 to 1, as an estimate."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))

    def receipt(self, outputs: dict[str, OutputReceipt]) -> Receipt:
        """Return the receipt of the unit, with what was written."""
        return Receipt(
            self._records,
            outputs,
            sorted(self._quarantined, key=lambda bad: (bad.part, bad.record)),
            self.dropped,
            +self.counts,
            self._members,
            [content.hexdigest() for content in self._contents],
            stamp_of(self._unit.files),
        )


def _plain_key(job: Job, task: Task) -> str | None:
    """The field whose text is the document unchanged; None if any option needs more."""
    parameters = job.parameters
    key = parameters.text_key
    more = parameters.transform or parameters.columns or parameters.split_ratio
    limited = parameters.limits != LengthFilter() or job.cleaner()
    return None if more or limited or not task.plain or "." in key else key


def _raw(raw: Raw) -> bytes | None:
    """The bytes that quarantine keeps: of the record or the only column, or the row as JSON."""
    if isinstance(raw, Unreadable):
        return raw.raw
    if isinstance(raw, TextPiece):
        return raw.data
    if isinstance(raw, dict) and len(raw) == 1:
        (raw,) = raw.values()
    return (
        raw
        if raw is None or isinstance(raw, bytes)
        else json.dumps(raw, default=plain_value).encode()
    )


def _plain_texts(records: list[Raw], key: str) -> tuple[list[str], list[int]] | None:
    r"""The text of each record, and its bytes in UTF-8; None if any record is unusual.

    >>> _plain_texts([b'{"text": "one"}', b'{"text": "\xc3\xa9"}'], "text")
    (['one', 'é'], [3, 2])
    >>> _plain_texts([b'{"text": "one"}', b'{"text": null}'], "text")
    """
    kinds = set(map(type, records))
    try:
        if kinds == {bytes}:
            texts = [orjson.loads(line)[key] for line in records]  # type: ignore[arg-type]
        elif kinds == {dict}:
            texts = [row[key] for row in records]  # type: ignore[call-overload]
        else:
            return None
        if set(map(type, texts)) != {str}:
            return None
        return texts, [len(text) if text.isascii() else len(text.encode()) for text in texts]
    except (orjson.JSONDecodeError, KeyError, TypeError, UnicodeEncodeError):
        return None


def worker_of(job: Job) -> Callable[[Unit, Report], Finished]:
    """What converts units of a job, in this process."""
    return UnitConverter(job).convert


class UnitConverter:
    """Converts units of one job, in one process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._store = job.store()
        self._unfinished = job.unfinished(self._store)
        self._tokenizer = job.tokenizer()
        self._task = job.task(self._tokenizer, job.cleaner())
        self._reading = job.reading(self._task)
        kept = job.parameters.hashes
        self._hashes = DocumentHashes(kept, self._task, self._tokenizer) if kept.hashing else None

    def convert(self, unit: Unit, report: Report) -> Finished:
        """Write the shards and the receipt of a unit, unless it has one that still holds.

        `report` is called with the share that is done, 0 to 1; it may raise to end it there.
        """
        changed: tuple[str, ...] = ()
        if unit.recheck:
            receipt = self._unfinished.receipt(unit.name, Receipt.decode)
            now = [content_of(*read, self._reading) for read in unit.reads]
            if now == receipt.contents:
                self._commit(unit, replace(receipt, stamp=stamp_of(unit.files)), report)
                return Finished()
            pairs = zip(unit.files, receipt.contents, now, strict=False)
            changed = tuple(dict.fromkeys(file.name for file, was, new in pairs if was != new))
        return replace(self._convert(unit, report), changed=changed)

    def _convert(self, unit: Unit, report: Report) -> Finished:
        reader = UnitReader(unit, self.job, self._task)
        if self._tokenizer.guard:
            self._tokenizer.guard.begin()
        unknown = self._tokenizer.unk_id
        try:
            with Outputs(self._store, self.job, self._task, unit, unknown, self._hashes) as outputs:
                self._write(reader, outputs, report)
                receipt = self._encoded(reader.receipt(outputs.finish()))
        except StoppedAtBad:
            return Finished(stopped=reader.receipt({}))
        except TransformFailed as failed:
            return Finished(stopped=reader.receipt({}), failure=str(failed))
        self._commit(unit, receipt, report)
        return Finished()

    def _encoded(self, receipt: Receipt) -> Receipt:
        """The receipt of a unit, with what encoded it."""
        guard = self._tokenizer.guard
        return replace(receipt, encoder=guard.name, encoding=guard.counts) if guard else receipt

    def _commit(self, unit: Unit, receipt: Receipt, report: Report) -> None:
        report(1.0)
        self._unfinished.commit(unit.name, receipt.encode())

    def _write(self, reader: UnitReader, outputs: Outputs, report: Report) -> None:
        limits = self.job.parameters.limits
        for batch in reader.batches():
            encoded = limits.of_tokens(self._task.encode(batch.content))
            taken = [number for number, one in enumerate(encoded) if not isinstance(one, Dropped)]
            if len(taken) < len(encoded):
                reader.drop(batch, encoded)
            streams = [one for one in encoded if not isinstance(one, Dropped)]
            documents, pieces = in_pieces(batch.take(taken), streams)
            reader.counts["added"] += len(pieces) - len(streams)
            outputs.add(documents, pieces)
            report(reader.share())
