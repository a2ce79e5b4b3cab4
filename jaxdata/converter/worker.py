"""A conversion as its workers get it: a worker process reads a unit's documents and writes shards.

Its receipt, written last, is what the worker answers with.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson

from jaxdata import tokenizers
from jaxdata.base.hashing import Hashes
from jaxdata.base.processes import report
from jaxdata.base.ragged import AnyArray, in_runs
from jaxdata.base.source_text import function_named
from jaxdata.converter.filters import Cleaning, LengthFilter, make_cleaner
from jaxdata.converter.hashes import DocumentHashes
from jaxdata.converter.inputs import parsing
from jaxdata.converter.inputs.files import InputFile, ReadSettings, Unit, stamp_of
from jaxdata.converter.inputs.formats.tables import check_columns, check_strings, list_type
from jaxdata.converter.inputs.reading import reader_of, record_runs
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import OutputReceipt, Quarantined, Receipt
from jaxdata.converter.splits import Ratio, read_ratio
from jaxdata.converter.statistics import Document, Streams, count, in_pieces, sizes_of
from jaxdata.converter.tasks import Dropped, Encoded, Record, Task, Unencodable, make_task
from jaxdata.converter.transform import TransformFailed, transformed
from jaxdata.dataset.index import ShardWriter
from jaxdata.dataset.lease import Lease, UnfinishedJob
from jaxdata.storage import Store, open_store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.choice import Choice, attach


@dataclass(frozen=True)
class Job:
    """A conversion, as every unit sees it; sent to each worker once.

    Attributes:
        url: the dataset.
        split: the split that documents go to, or the first of several.
        source: what the source is called in it.
        files: the inputs, as parts of units count them.
        stop_at_bad: stop at the first bad record instead of setting it aside.
        encoder: what encodes texts with the ids of the tokenizer's library.
        unread: files that were found and are of no kind that is read, by suffix.
        lease: the right to write to the dataset; None for whoever writes elsewhere.
    """

    url: str
    split: str
    source: str
    files: list[InputFile]
    parameters: Parameters
    tokenizer_files: dict[str, bytes]
    stop_at_bad: bool
    encoder: Choice = field(default_factory=Choice)
    lease: Lease | None = None
    unread: Mapping[str, int] = field(default_factory=dict)

    def for_workers(self) -> "Job":
        """The job without the list of its inputs, which may be long: units bring their own."""
        parameters = self.parameters.model_copy(update={"inputs": {}})
        return replace(self, files=[], parameters=parameters)

    @property
    def folder(self) -> str:
        """Where receipts and quarantine lie: "<split>/<source>"."""
        return f"{self.split}/{self.source}"

    def store(self) -> Store:
        """Open the dataset, to write as long as the lease is held."""
        store = open_store(self.url)
        return self.lease.fenced(store) if self.lease else store

    @property
    def unfinished(self) -> UnfinishedJob:
        """What this job leaves behind when it is killed."""
        return UnfinishedJob(self.store(), self.folder)

    @property
    def splits(self) -> list[str]:
        """The splits that documents are assigned to."""
        return self.parameters.splits(self.split)

    def output(self, split: str, stream: str) -> str:
        """The source that a stream of the task feeds: "<split>/<source>[/<stream>]"."""
        return "/".join(filter(None, (split, self.source, stream)))

    def outputs(self, task: Task) -> list[str]:
        """The sources that it may write."""
        return [self.output(split, stream) for split in self.splits for stream in task.streams]

    def task(self, tokenizer: Tokenizer) -> Task:
        """Make the task, which cleans every text first."""
        return make_task(self.parameters.task, tokenizer, make_cleaner(self.parameters))

    def reading(self, task: Task) -> ReadSettings:
        """What is read from files, and the limits on sizes."""
        columns = tuple(dict.fromkeys((*(task.keys or ()), *self.parameters.columns)))
        transform = self.parameters.transform
        return ReadSettings(
            None if transform or task.keys is None else columns,
            self.parameters.max_record_bytes,
            self.parameters.piece_bytes,
            arrays=() if transform else task.array_keys,
        )

    def check_tables(self, task: Task) -> None:
        """Raise InputError where a table lacks a column; a transform may make it."""
        for file in self.files:
            if reader_of(file.kind).table and not self.parameters.transform:
                check_columns(file, self.parameters.columns, "--keep or split_by")
                if task.strings:
                    check_strings(file, task.keys or ())
                else:
                    check_columns(file, task.keys or (), self.parameters.task.key_options)
                for name in task.side:
                    list_type(file, name)

    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer in this process, with its encoder."""
        entry = self.parameters.tokenizer
        ids = entry.model_dump(include={"eod_id", "bos_id", "pad_id"})
        made = tokenizers.restore(entry.kind, self.tokenizer_files, name=entry.name, **ids)
        attach(made, self.encoder)
        return made


@dataclass(frozen=True)
class Finished:
    """A worker finished its unit, or stopped at a record, having written nothing."""

    stopped: Receipt | None = None
    """Of what was read, the record last; None where the unit is done."""
    failure: str | None = None
    """What the transform did wrong at that record; None where the record is bad."""


_BYTES, _RECORDS = 2**20, 256
"""Of records in a row that are parsed together: enough to pay, little enough for the memory."""
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
        name = parameters.transform
        self._transform = function_named(name, "--transform ") if name else None
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
                for run, read_bytes in in_runs(raws, parsing.size_of, lambda: _BYTES, _RECORDS):
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

    def _plain(self, run: list[parsing.Raw], part: int) -> list[Document]:
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

    def _documents(self, run: list[parsing.Raw], part: int) -> Iterator[Document]:
        text_key = self._parameters.text_key
        for place, raw in enumerate(run, self.receipt.records[part]):
            self.receipt.records[part] = place + 1
            try:
                record = parsing.parse(raw, text_key, self._texts_only)
            except parsing.BadRecord as bad:
                self._set_aside(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))
                continue
            if record is None:
                self.receipt.counts["blank"] += 1
                continue
            made: list[Record] = [record]
            if self._transform:
                made = list(transformed(self._transform, record))
                self._count_made(len(made), "left out by the transform")
            for one in made:
                yield from self._documents_of(one, raw, part, place)

    def _count_made(self, count: int, reason: str) -> None:
        """Count a record that became no document, for a reason, or more than one."""
        if not count:
            self.receipt.dropped[reason] += 1
        elif count > 1:
            self.receipt.counts["added"] += count - 1

    def _documents_of(
        self, record: Record, raw: parsing.Raw, part: int, place: int
    ) -> Iterator[Document]:
        try:
            contents, raw_texts = self._task.prepare(record)
            kept = self._kept(record, raw, part) if self._parameters.keep else b""
            key = self._parameters.split_by
            split = (
                self._ratio.of_key(parsing.field_of(record, key)) if self._ratio and key else None
            )
        except parsing.BadRecord as bad:
            self._set_aside(Quarantined(part, place, bad.reason, _raw(raw), bad.keys))
            return
        except Dropped as dropped:
            self.receipt.dropped[dropped.reason] += 1
            return
        self._count_made(len(contents), "no document in it")
        raw_sizes = counted = sizes_of(raw_texts)
        for content in contents:
            texts = () if isinstance(content, Dropped) else self._task.texts(content)
            sizes = raw_sizes if texts == raw_texts else sizes_of(texts)
            limits = self._parameters
            left_out = content if isinstance(content, Dropped) else limits.of_characters(sizes[0])
            if left_out:
                self.receipt.dropped[left_out.reason] += 1
                continue
            where = split or self._split_of(content)
            yield Document(content, part, place, where, *sizes, *counted, kept)
            counted = 0, 0

    def _kept(self, record: Record, raw: parsing.Raw, part: int) -> bytes:
        """The line of JSON with the fields to keep; one that is missing is null.

        A text file has its path, as its origin names it.
        """
        if isinstance(raw, parsing.TextPiece):
            path, members = self._unit.files[part].name, self.receipt.members.get(part)
            record = {"path": f"{path}: {members[-1][1].name}" if members else path, **record}
        kept = {key: parsing.field_or_none(record, key) for key in self._parameters.keep}
        return json.dumps(kept, default=parsing.plain_value).encode() + b"\n"

    def _split_of(self, content: Any) -> str:
        return self._ratio.of_texts(self._task.hashed(content)) if self._ratio else self._job.split

    def _set_aside(self, bad: Quarantined) -> None:
        self.receipt.quarantined.append(bad)
        if self._job.stop_at_bad:
            raise StoppedAtBad

    def stored(
        self, batch: Sequence[Document], encoded: Sequence[tuple[Encoded, ...] | Dropped]
    ) -> tuple[Sequence[Document], Streams]:
        """The documents that were encoded, in pieces; others are counted, or set aside."""
        documents: list[Document] = []
        streams: list[tuple[Encoded, ...]] = []
        for document, made in zip(batch, encoded, strict=True):
            if isinstance(made, Unencodable):
                self._set_aside(Quarantined(document.part, document.record, made.reason, None))
            elif isinstance(made, Dropped):
                self.receipt.dropped[made.reason] += 1
            else:
                documents.append(document)
                streams.append(made)
        self.receipt.counts["added"] += sum(len(made[0].cuts) for made in streams)
        return in_pieces(documents, streams)

    def share(self) -> float:
        """The share of the unit that has been read, 0 to 1, as an estimate."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))


def _plain_key(parameters: Parameters, task: Task) -> str | None:
    """The field whose text is the document unchanged; None if any option needs more."""
    key, given = parameters.text_key, parameters.own().keys()
    changed = given & {*Cleaning.model_fields, *LengthFilter.model_fields}
    more = parameters.transform or parameters.columns or parameters.split_ratio or changed
    return None if more or not task.plain or "." in key else key


def _raw(raw: parsing.Raw) -> bytes | None:
    """The bytes that quarantine keeps: of the record or the only column, or the row as JSON."""
    if isinstance(raw, parsing.Unreadable | parsing.TextPiece):
        return raw.raw
    value = next(iter(raw.values())) if isinstance(raw, dict) and len(raw) == 1 else raw
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, default=parsing.plain_value).encode()


def _plain_texts(records: list[parsing.Raw], key: str) -> tuple[list[str], list[int]] | None:
    r"""The text of each record, and its bytes in UTF-8; None if any record is unusual.

    >>> _plain_texts([b'{"text": "one"}', b'{"text": "\xc3\xa9"}'], "text")
    (['one', 'é'], [3, 2])
    >>> _plain_texts([b'{"text": "one"}', b'{"text": null}'], "text")
    """
    kinds = set(map(type, records))
    try:
        if kinds == {bytes}:
            texts = [orjson.loads(line)[key] for line in records]  # type: ignore[arg-type]
        else:
            texts = [row[key] for row in records] if kinds == {dict} else []  # type: ignore[call-overload]
        if set(map(type, texts)) != {str}:
            return None
        return texts, [len(text) if text.isascii() else len(text.encode()) for text in texts]
    except (orjson.JSONDecodeError, KeyError, TypeError, UnicodeEncodeError):
        return None


class Outputs:
    """Write documents to the shards of a unit: one for each source it feeds, opened when needed.

    They are published when `shards` ends well.
    """

    def __init__(
        self, job: Job, task: Task, unit: Unit, tokenizer: Tokenizer, shards: ExitStack
    ) -> None:
        self._job, self._task, self._unit, self._shards = job, task, unit, shards
        self._store, self._unknown_id, kept = job.store(), tokenizer.unk_id, job.parameters
        self._hashes = DocumentHashes(kept.exact_hash, kept.minhash is not None, task, tokenizer)
        self._open: dict[str, _Shards] = {}

    def add(self, documents: Sequence[Document], encoded: Streams) -> None:
        """Append documents in order, each to one source for each stream."""
        for split in {document.split for document in documents}:
            mine, own = documents, encoded
            if len(self._job.splits) > 1:
                pairs = zip(documents, encoded, strict=True)
                mine, own = zip(*(one for one in pairs if one[0].split == split), strict=True)
            hashes = self._hashes([one.content for one in mine], own)
            for place, stream in enumerate(self._task.streams):
                output = self._job.output(split, stream)
                if output not in self._open:
                    self._open[output] = self._new(output)
                several = len(self._task.streams) > 1
                share = [self._sized(one, stream) for one in mine] if several else mine
                # The hashes of all streams are beside the first.
                self._open[output].add(share, [one[place] for one in own], {} if place else hashes)

    def _sized(self, document: Document, stream: str) -> Document:
        """A document with the sizes of the texts that a stream gets."""
        size, text_bytes = sizes_of(self._task.texts(document.content, stream))
        return document._replace(characters=size, text_bytes=text_bytes)

    def _new(self, output: str) -> "_Shards":
        spec = self._job.parameters.record_spec(self._task.masked)
        specs = {side: spec.of_side(dtype) for side, dtype in self._task.side.items()}
        writers = {}
        for side, own in {"": spec, **specs}.items():
            name = f"{output}/{self._unit.name}{f'.{side}' if side else ''}.array_record"
            path = self._shards.enter_context(self._store.create(name))
            writers[side] = name, self._shards.enter_context(ShardWriter(path, own))
        return _Shards(writers, self._unknown_id)

    def finish(self) -> dict[str, OutputReceipt]:
        """End the shards and describe them, by output."""
        return {name: self._open[name].finish() for name in sorted(self._open)}


class _Shards:
    """The shards of one source in the making, and where its documents came from."""

    def __init__(
        self, writers: Mapping[str, tuple[str, ShardWriter]], unknown_id: int | None
    ) -> None:
        self._writers, self._unknown_id = writers, unknown_id
        self._columns: defaultdict[str, list[AnyArray]] = defaultdict(list)
        self._counts: Counter[str] = Counter()

    def add(
        self, documents: Sequence[Document], encoded: Sequence[Encoded], hashes: dict[str, Hashes]
    ) -> None:
        masks = [one.mask for one in encoded if one.mask is not None]
        for side, (_, writer) in self._writers.items():
            if side:
                writer.extend([one.side[side] for one in encoded])
            else:
                writer.extend([one.tokens for one in encoded], masks or None)
        self._columns["part"].append(np.array([one.part for one in documents], np.uint32))
        self._columns["record"].append(np.array([one.record for one in documents], np.uint32))
        if kept := b"".join([one.kept for one in documents]):
            self._columns["kept"].append(np.frombuffer(kept, np.uint8))
        for name, column in hashes.items():
            self._columns[name].append(column.ravel())
        self._counts.update(count(documents, encoded, self._unknown_id))

    def finish(self) -> OutputReceipt:
        shards, pages = {}, {}
        for side, (name, writer) in self._writers.items():
            writer.close()
            shards[side], pages[side] = writer.entry(name), writer.pages
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        columns["length"] = self._writers[""][1].lengths
        return OutputReceipt(shards, pages, columns, self._counts)


def worker_of(job: Job) -> Callable[[Unit], Finished]:
    """What converts units of a job in this process: it writes their shards, and then the receipt.

    It raises EncoderDiffers where the encoder of the job gave other ids than its library.
    """
    tokenizer = job.tokenizer()
    task, guard = job.task(tokenizer), tokenizer.guard

    def convert(unit: Unit) -> Finished:
        reader = UnitReader(unit, job, task)
        receipt = reader.receipt
        if guard:
            guard.begin()
        try:
            with ExitStack() as shards:
                outputs = Outputs(job, task, unit, tokenizer, shards)
                for batch in reader.batches():
                    encoded = task.encode([one.content for one in batch])
                    outputs.add(*reader.stored(batch, job.parameters.of_tokens(encoded)))
                    report(reader.share())
                receipt.outputs.update(outputs.finish())
        except StoppedAtBad:
            return Finished(stopped=receipt)
        except TransformFailed as failed:
            return Finished(stopped=receipt, failure=str(failed))
        if guard:
            receipt.encoder, receipt.encoding = guard.name, guard.counts
        report(1.0)
        receipt.quarantined.sort(key=lambda bad: (bad.part, bad.record))
        job.unfinished.commit(receipt.unit, receipt.encode())
        return Finished()

    return convert
