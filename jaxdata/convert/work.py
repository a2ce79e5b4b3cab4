"""What a worker process does: take a unit, write its shard and then its receipt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from jaxdata import tokenizers
from jaxdata.convert.documents import raw_records, text_parser
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.receipts import Quarantined, Receipt
from jaxdata.convert.records import BadRecord
from jaxdata.convert.units import Part, Unit
from jaxdata.format.manifest import ShardEntry
from jaxdata.format.records import RecordLayout
from jaxdata.format.shards import ShardWriter
from jaxdata.format.storage import open_store
from jaxdata.tokenizers import Tokenizer

__all__ = ["Finished", "Job", "Progress", "receipt_name", "serve"]

_BATCH_CHARACTERS = 2**20
_BATCH_DOCUMENTS = 1_024


@dataclass(frozen=True)
class Job:
    """What every unit of one conversion has in common; sent to each worker once."""

    url: str
    folder: str
    files: list[InputFile]
    text_key: str
    bos: bool
    layout: RecordLayout
    tokenizer_kind: str
    tokenizer_name: str
    tokenizer_files: dict[str, bytes]
    special_ids: dict[str, int | None]
    stop_at_bad: bool

    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer in this process."""
        return tokenizers.restore(
            self.tokenizer_kind,
            self.tokenizer_files,
            name=self.tokenizer_name,
            **self.special_ids,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Progress:
    """A worker got on: the share of its unit, 0 to 1, that it has read."""

    share: float


@dataclass(frozen=True)
class Finished:
    """A worker finished its unit, or stopped at its first bad record, having written nothing."""

    stopped: Receipt | None = None
    """Of what was read, the bad record last; None where the unit is done."""


def receipt_name(folder: str, unit: str) -> str:
    """Where the receipt of a unit lies."""
    return f"{folder}/work/{unit}.receipt"


def serve(connection: Connection, job: Job) -> None:
    """Convert the units that come through the connection until it closes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process has one core
    converter = _Converter(connection, job)
    while True:
        connection.send(converter.convert(connection.recv()))


class _Converter:
    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job
        self._store = open_store(job.url)
        self._tokenizer = job.tokenizer()

    def convert(self, unit: Unit) -> Finished:
        tally = _Tally(unit, self._job)
        try:
            shard = self._write_shard(unit, tally)
        except _StoppedAtBad:
            return Finished(stopped=tally.receipt(None))
        self._leave_if_orphaned()
        receipt = receipt_name(self._job.folder, unit.name)
        self._store.write(receipt, tally.receipt(shard).encode())
        return Finished()

    def _write_shard(self, unit: Unit, tally: _Tally) -> ShardEntry | None:
        batches = _batches(tally.texts())
        first = next(batches, None)
        if first is None:
            return None
        name = f"{self._job.folder}/{unit.name}.array_record"
        with self._store.create(name) as path:
            with ShardWriter(path, self._job.layout) as writer:
                for batch in chain([first], batches):
                    self._write_batch(batch, writer)
                    self._connection.send(Progress(tally.share()))
                    self._leave_if_orphaned()
            tally.lengths = writer.lengths
            return writer.entry(name)

    def _write_batch(self, batch: list[str], writer: ShardWriter) -> None:
        bos = [self._tokenizer.bos_id] if self._job.bos else []
        for ids in self._tokenizer.encode(batch):
            tokens = np.empty(len(bos) + len(ids) + 1, self._job.layout.dtype)
            tokens[: len(bos)] = bos
            tokens[len(bos) : -1] = ids
            tokens[-1] = self._tokenizer.eod_id
            writer.add(tokens)

    def _leave_if_orphaned(self) -> None:
        """End here if the parent is gone; another run may be doing this unit already."""
        if self._connection.poll():  # a parent sends nothing while we work
            raise EOFError


class _StoppedAtBad(Exception):
    """A bad record, in a conversion that is to stop at the first."""


class _Tally:
    """Reads the texts of a unit, and keeps what the receipt says of them."""

    def __init__(self, unit: Unit, job: Job) -> None:
        self._unit, self._job = unit, job
        self._parts: list[int] = []
        self._numbers: list[int] = []
        self._read_bytes = 0
        self._text_bytes = 0
        self.records = [0] * len(unit.parts)
        self.quarantined: list[Quarantined] = []
        self.lengths: NDArray[np.uint32] = np.empty(0, np.uint32)

    def texts(self) -> Iterator[str]:
        """Give the texts of the unit in order."""
        for number, part in enumerate(self._unit.parts):
            yield from self._texts_of_part(number, self._job.files[part.file], part)

    def _texts_of_part(self, number: int, file: InputFile, part: Part) -> Iterator[str]:
        parse, key = text_parser(file), self._job.text_key
        for record, raw in enumerate(raw_records(file, part, key)):
            self.records[number] = record + 1
            self._read_bytes += len(raw or b"")
            try:
                text = parse(raw, key)
            except BadRecord as bad:
                self._quarantine(Quarantined(number, record, bad.reason, raw, bad.keys))
                continue
            if text is not None:
                self._parts.append(number)
                self._numbers.append(record)
                self._text_bytes += len(text.encode())
                yield text

    def _quarantine(self, bad: Quarantined) -> None:
        self.quarantined.append(bad)
        if self._job.stop_at_bad:
            raise _StoppedAtBad

    def share(self) -> float:
        """Return how much of the unit has been read, 0 to 1, as well as that is known."""
        return min(1.0, self._read_bytes / max(1, self._unit.text_bytes))

    def receipt(self, shard: ShardEntry | None) -> Receipt:
        """Return the receipt of the unit, of the documents that were written."""
        return Receipt(
            records=self.records,
            lengths=self.lengths,
            part=np.array(self._parts[: len(self.lengths)], np.uint32),
            record=np.array(self._numbers[: len(self.lengths)], np.uint32),
            text_bytes=self._text_bytes,
            quarantined=self.quarantined,
            shard=shard,
        )


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Batches to tokenise at once: enough for the library, little enough for the memory."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _BATCH_CHARACTERS or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
