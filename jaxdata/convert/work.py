"""What a worker process does: take a unit, write its shards and then its receipt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from jaxdata.convert.job import Finished, Job, Progress, parameters_name, receipt_name
from jaxdata.convert.outputs import Outputs
from jaxdata.convert.parts import Unit
from jaxdata.convert.statistics import Measured
from jaxdata.convert.tally import Document, StoppedAtBad, Tally
from jaxdata.convert.tasks import Dropped, Encoded
from jaxdata.convert.transform import TransformFailed
from jaxdata.errors import WorkerDied
from jaxdata.format.storage import open_store

__all__ = ["UnitConverter", "serve"]

_BATCH_CHARACTERS = 2**20
_BATCH_DOCUMENTS = 1_024
Report = Callable[[float], None]


def serve(connection: Connection, job: Job) -> None:
    """Convert the units that come through the connection until it closes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process has one core

    def report(share: float) -> None:
        if connection.poll():  # the parent is gone: it sends nothing while we work
            raise EOFError
        connection.send(Progress(share))

    converter = UnitConverter(job)
    while True:
        connection.send(converter.convert(connection.recv(), report))


class UnitConverter:
    """Converts units of one job, in one process.

    Args:
        job: what they have in common.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store = open_store(job.url)
        self._tokenizer = job.tokenizer()
        self._measured = Measured(job.cleaner())
        self._task = job.task(self._tokenizer, self._measured)

    def convert(self, unit: Unit, report: Report) -> Finished:
        """Write the shards and the receipt of a unit.

        Args:
            unit: the unit.
            report: called with the share that is done, 0 to 1; may raise to end it there.
        """
        tally = Tally(unit, self._job, self._task, self._measured)
        unknown = self._tokenizer.unk_id
        try:
            with Outputs(self._store, self._job, self._task, unit, unknown) as outputs:
                self._write(tally, outputs, report)
                receipt = tally.receipt(outputs.finish())
        except StoppedAtBad:
            return Finished(stopped=tally.receipt({}))
        except TransformFailed as failed:
            return Finished(stopped=tally.receipt({}), failure=str(failed))
        report(1.0)
        self._leave_if_finished()
        self._store.write(receipt_name(self._job.folder, unit.name), receipt.encode())
        return Finished()

    def _write(self, tally: Tally, outputs: Outputs, report: Report) -> None:
        limits = self._job.parameters.limits
        for batch in _batches(tally.documents()):
            encoded = self._task.encode([document.content for document in batch])
            taken: list[Document] = []
            streams: list[tuple[Encoded, ...]] = []
            for document, one in zip(batch, limits.of_tokens(encoded), strict=True):
                if isinstance(one, Dropped):
                    tally.dropped[one.reason] += 1
                else:
                    taken.append(document)
                    streams.append(one)
            outputs.add(taken, streams)
            report(tally.share())

    def _leave_if_finished(self) -> None:
        """End here if others have done all units: a lost worker must not leave a receipt behind."""
        if self._store.read(parameters_name(self._job.folder)) is None:
            raise WorkerDied(f"{self._job.folder} is finished, or was deleted")


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
