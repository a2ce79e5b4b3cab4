"""What a worker process does: take a unit, write its shard and then its receipt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from multiprocessing.connection import Connection

import numpy as np

from jaxdata.convert.job import Finished, Job, Progress, receipt_name
from jaxdata.convert.tally import StoppedAtBad, Tally
from jaxdata.convert.units import Unit
from jaxdata.format.manifest import ShardEntry
from jaxdata.format.shards import ShardWriter
from jaxdata.format.storage import open_store

__all__ = ["serve"]

_BATCH_CHARACTERS = 2**20
_BATCH_DOCUMENTS = 1_024


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
        self._layout = job.parameters.layout
        self._tokenizer = job.tokenizer()
        self._bos = [self._tokenizer.bos_id] if job.parameters.bos else []

    def convert(self, unit: Unit) -> Finished:
        tally = Tally(unit, self._job)
        try:
            shard = self._write_shard(unit, tally)
        except StoppedAtBad:
            return Finished(stopped=tally.receipt(None))
        self._leave_if_orphaned()
        receipt = receipt_name(self._job.folder, unit.name)
        self._store.write(receipt, tally.receipt(shard).encode())
        return Finished()

    def _write_shard(self, unit: Unit, tally: Tally) -> ShardEntry | None:
        batches = _batches(tally.texts())
        first = next(batches, None)
        if first is None:
            return None
        name = f"{self._job.folder}/{unit.name}.array_record"
        with self._store.create(name) as path:
            with ShardWriter(path, self._layout) as writer:
                for batch in chain([first], batches):
                    self._write_batch(batch, writer)
                    self._connection.send(Progress(tally.share()))
                    self._leave_if_orphaned()
            tally.lengths = writer.lengths
            return writer.entry(name)

    def _write_batch(self, batch: list[str], writer: ShardWriter) -> None:
        bos = self._bos
        for ids in self._tokenizer.encode(batch):
            tokens = np.empty(len(bos) + len(ids) + 1, self._layout.dtype)
            tokens[: len(bos)] = bos
            tokens[len(bos) : -1] = ids
            tokens[-1] = self._tokenizer.eod_id
            writer.add(tokens)

    def _leave_if_orphaned(self) -> None:
        """End here if the parent is gone; another run may be doing this unit already."""
        if self._connection.poll():  # a parent sends nothing while we work
            raise EOFError


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
