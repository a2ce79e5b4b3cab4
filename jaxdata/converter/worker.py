"""A worker process: it reads the documents of a unit, writes its shards and then its receipt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from jaxdata.base.processes import Report
from jaxdata.converter.filters import Cleaning, LengthFilter
from jaxdata.converter.hashes import DocumentHashes
from jaxdata.converter.inputs.files import Unit, stamp_of
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
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import Quarantined, Receipt
from jaxdata.converter.splits import Ratio, read_ratio
from jaxdata.converter.statistics import DROPPED, Document, count_documents, in_pieces, sizes_of
from jaxdata.converter.tasks.base import Dropped, Record, Task, Unencodable
from jaxdata.converter.transform import TransformFailed, load_transform, transformed

_CHARACTERS = 2**20
_DOCUMENTS = 1_024
"""How many are encoded at a time, about; a run of records stays together."""


class StoppedAtBad(Exception):
    """A bad record, in a conversion that stops at the first one."""


class UnitReader:
    """Reads the documents of a unit; its `receipt` counts records that became none."""

    def __init__(self, unit: Unit, job: Job, task: Task) -> None:
        self._unit, self._job, self._task = unit, job, task
        self._parameters = parameters = job.parameters
        self._reading = job.reading(task)
        self._transform = load_transform(name) if (name := parameters.transform) else None
        self._ratio = Ratio(read_ratio(ratio)) if (ratio := parameters.split_ratio) else None
        self._plain_key = _plain_key(parameters, task)
        self._texts_only = not (self._transform or parameters.columns or task.keys is None)
        self._read_bytes = 0
        self.receipt = Receipt(unit.name, [0] * len(unit.parts), stamp_of(unit.files))

    def batches(self) -> Iterator[list[Document]]:
        """Give the documents of the unit in order, some hundred at a time."""
        batch: list[Document] = []
        size = 0
        for number, (file, part) in enumerate(self._unit.reads):
            records = self.receipt.records
            for member, raws in record_runs(file, part, self._reading):
                if member:
                    self.receipt.members.setdefault(number, []).append((records[number], member))
                for run, read_bytes in in_runs(raws):
                    plain = self._plain(run, number) if self._plain_key else []
                    for document in () if plain else self._documents(run, number):
                        batch.append(document)
                        size += document.characters + self._task.weight(document.content)
                    batch += plain
                    size += read_bytes if plain else 0
                    self._read_bytes += read_bytes
                    if size >= _CHARACTERS or len(batch) >= _DOCUMENTS:
                        yield batch
                        batch, size = [], 0
        if batch:
            yield batch

    def _plain(self, run: list[Raw], part: int) -> list[Document]:
        """The documents of a run of records where that is quick; none where any is unusual."""
        found = _plain_texts(run, self._plain_key or "")
        if found is None:
            return []
        texts, sizes = found
        first, count, lengths = self.receipt.records[part], len(run), list(map(len, texts))
        self.receipt.records[part] += count
        places = [part] * count, range(first, first + count), [self._job.split] * count
        columns = texts, *places, lengths, sizes, lengths, sizes, [b""] * count
        return list(map(Document._make, zip(*columns, strict=True)))  # a third of the time

    def _documents(self, run: list[Raw], part: int) -> Iterator[Document]:
        text_key = self._parameters.text_key
        for place, raw in enumerate(run, self.receipt.records[part]):
            self.receipt.records[part] = place + 1
            try:
                record = parse(raw, text_key, self._texts_only)
            except BadRecord as bad:
                self._set_aside(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))
                continue
            if record is None:
                self.receipt.counts["blank"] += 1
                continue
            for one in self._transformed(record):
                yield from self._documents_of(one, raw, part, place)

    def _transformed(self, record: Record) -> Iterable[Record]:
        if not self._transform:
            return (record,)
        made = list(transformed(self._transform, record))
        self._count_made(len(made), "left out by the transform")
        return made

    def _count_made(self, count: int, reason: str) -> None:
        """Count a record that became no document, for a reason, or more than one."""
        if not count:
            self.receipt.dropped[reason] += 1
        elif count > 1:
            self.receipt.counts["added"] += count - 1

    def _documents_of(self, record: Record, raw: Raw, part: int, place: int) -> Iterator[Document]:
        try:
            if isinstance(raw, TextPiece) and not raw.whole:
                contents, raw_texts = self._task.prepare_piece(record, raw)
            else:
                contents, raw_texts = self._task.prepare(record)
            kept = self._kept(record, raw, part) if self._parameters.keep else b""
            key = self._parameters.split_by
            split = self._ratio.of_key(field_of(record, key)) if self._ratio and key else None
        except BadRecord as bad:
            self._set_aside(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))
            return
        except Dropped as dropped:
            self.receipt.dropped[dropped.reason] += 1
            return
        if len(contents) != 1:
            self._count_made(len(contents), "no document in it")
        raw_sizes = counted = sizes_of(raw_texts)
        left_out: list[tuple[int, int]] = []
        for content in contents:
            if isinstance(content, Dropped):
                self.receipt.dropped[content.reason] += 1
                continue
            texts = self._task.texts(content)
            sizes = raw_sizes if texts == raw_texts else sizes_of(texts)
            if dropped_for := self._parameters.of_characters(sizes[0]):
                self.receipt.dropped[dropped_for.reason] += 1
                left_out.append(sizes)
                continue
            split_of = split or self._split_of(content)
            yield Document(content, part, place, split_of, *sizes, *counted, kept)
            counted = 0, 0
        if left_out:  # `counted` are still the record's where none of it became a document
            sums = *counted, *map(sum, zip(*left_out, strict=True))
            self.receipt.counts.update(dict(zip(DROPPED, sums, strict=True)))

    def _kept(self, record: Record, raw: Raw, part: int) -> bytes:
        """The line of JSON with the fields to keep; one that is missing is null.

        A text file has its path, as its origin names it.
        """
        if isinstance(raw, TextPiece):
            path, members = self._unit.files[part].name, self.receipt.members.get(part)
            record = {"path": f"{path}: {members[-1][1].name}" if members else path, **record}
        kept = {key: field_or_none(record, key) for key in self._parameters.keep}
        return json.dumps(kept, default=plain_value).encode() + b"\n"

    def _split_of(self, content: Any) -> str:
        return self._ratio.of_texts(self._task.hashed(content)) if self._ratio else self._job.split

    def _set_aside(self, bad: Quarantined) -> None:
        self.receipt.quarantined.append(bad)
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def drop(self, document: Document, dropped: Dropped) -> None:
        """Count a document that was not encoded, or set its record aside."""
        if isinstance(dropped, Unencodable):
            self._set_aside(Quarantined(document.part, document.record, dropped.reason, None))
        else:
            self.receipt.dropped[dropped.reason] += 1
        count_documents(self.receipt.counts, [document], DROPPED)

    def share(self) -> float:
        """The share of the unit that has been read, 0 to 1, as an estimate."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))


def _plain_key(parameters: Parameters, task: Task) -> str | None:
    """The field whose text is the document unchanged; None if any option needs more."""
    key, given = parameters.text_key, parameters.own().keys()
    changed = given & {*Cleaning.model_fields, *LengthFilter.model_fields}
    more = parameters.transform or parameters.columns or parameters.split_ratio or changed
    return None if more or not task.plain or "." in key else key


def _raw(raw: Raw) -> bytes | None:
    """The bytes that quarantine keeps: of the record or the only column, or the row as JSON."""
    if isinstance(raw, Unreadable):
        return raw.raw
    if isinstance(raw, TextPiece):
        return raw.data
    if isinstance(raw, dict) and len(raw) == 1:
        (raw,) = raw.values()
    if raw is None or isinstance(raw, bytes):
        return raw
    return json.dumps(raw, default=plain_value).encode()


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
        self._tokenizer = job.tokenizer()
        self._task = job.task(self._tokenizer)
        kept = job.parameters
        made = DocumentHashes(kept.exact_hash, kept.minhash, self._task, self._tokenizer)
        self._hashes = made if kept.hashing else None

    def convert(self, unit: Unit, report: Report) -> Finished:
        """Write the shards and the receipt of a unit.

        `report` is called with the share that is done, 0 to 1; it may raise to end it there.

        Raises:
            EncoderDiffers: the encoder of the job gave other ids than its library.
        """
        reader, guard = UnitReader(unit, self.job, self._task), self._tokenizer.guard
        receipt = reader.receipt
        if guard:
            guard.begin()
        unknown = self._tokenizer.unk_id
        try:
            with Outputs(self.job, self._task, unit, unknown, self._hashes) as outputs:
                self._write(reader, outputs, report)
                receipt.outputs.update(outputs.finish())
        except StoppedAtBad:
            return Finished(stopped=receipt)
        except TransformFailed as failed:
            return Finished(stopped=receipt, failure=str(failed))
        if guard:
            receipt.encoder, receipt.encoding = guard.name, guard.counts
        report(1.0)
        receipt.quarantined.sort(key=lambda bad: (bad.part, bad.record))
        self.job.unfinished.commit(receipt.unit, receipt.encode())
        return Finished()

    def _write(self, reader: UnitReader, outputs: Outputs, report: Report) -> None:
        limits = self.job.parameters
        for batch in reader.batches():
            encoded = limits.of_tokens(self._task.encode([one.content for one in batch]))
            streams = [one for one in encoded if not isinstance(one, Dropped)]
            if len(streams) < len(batch):
                pairs = list(zip(batch, encoded, strict=True))
                batch = [document for document, one in pairs if not isinstance(one, Dropped)]
                for document, one in pairs:
                    if isinstance(one, Dropped):
                        reader.drop(document, one)
            documents, pieces = in_pieces(batch, streams)
            reader.receipt.counts["added"] += len(pieces) - len(streams)
            outputs.add(documents, pieces)
            report(reader.share())
