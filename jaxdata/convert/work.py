"""What a worker process does: take a unit, write its shards and then its receipt."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection

from jaxdata.convert.job import Finished, Job, Progress, parameters_name, receipt_name
from jaxdata.convert.outputs import Outputs
from jaxdata.convert.parts import Unit
from jaxdata.convert.statistics import Measured
from jaxdata.convert.tally import StoppedAtBad, Tally
from jaxdata.convert.tasks import Dropped
from jaxdata.convert.transform import TransformFailed
from jaxdata.errors import WorkerDied
from jaxdata.format.storage import open_store

__all__ = ["UnitConverter", "serve"]

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
        for batch in tally.batches():
            encoded = limits.of_tokens(self._task.encode(batch.content))
            tally.dropped.update(one.reason for one in encoded if isinstance(one, Dropped))
            taken = [number for number, one in enumerate(encoded) if not isinstance(one, Dropped)]
            streams = [one for one in encoded if not isinstance(one, Dropped)]
            outputs.add(batch.take(taken), streams)
            report(tally.share())

    def _leave_if_finished(self) -> None:
        """End here if others have done all units: a lost worker must not leave a receipt behind."""
        if self._store.read(parameters_name(self._job.folder)) is None:
            raise WorkerDied(f"{self._job.folder} is finished, or was deleted")
