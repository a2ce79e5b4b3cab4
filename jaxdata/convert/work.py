"""What a worker process does: take a unit, write its shards and then its receipt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

from jaxdata.convert.job import Finished, Job, Progress, receipt_name
from jaxdata.convert.outputs import Outputs
from jaxdata.convert.parts import Unit
from jaxdata.convert.tally import Document, StoppedAtBad, Tally
from jaxdata.convert.tasks import Dropped
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
        self._task = job.task()

    def convert(self, unit: Unit) -> Finished:
        tally = Tally(unit, self._job, self._task)
        try:
            with Outputs(self._store, self._job, self._task, unit.name) as outputs:
                self._write(tally, outputs)
                receipt = tally.receipt(outputs.finish())
        except StoppedAtBad:
            return Finished(stopped=tally.receipt({}))
        self._leave_if_orphaned()
        self._store.write(receipt_name(self._job.folder, unit.name), receipt.encode())
        return Finished()

    def _write(self, tally: Tally, outputs: Outputs) -> None:
        for batch in _batches(tally.documents()):
            encoded = self._task.encode([document.content for document in batch])
            for document, streams in zip(batch, encoded, strict=True):
                if isinstance(streams, Dropped):
                    tally.dropped[streams.reason] += 1
                else:
                    outputs.add(document, streams)
            self._connection.send(Progress(tally.share()))
            self._leave_if_orphaned()

    def _leave_if_orphaned(self) -> None:
        """End here if the parent is gone; another run may be doing this unit already."""
        if self._connection.poll():  # a parent sends nothing while we work
            raise EOFError


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Batches to tokenise at once: enough for the library, little enough for the memory."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += document.characters
        if characters >= _BATCH_CHARACTERS or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
