"""A worker process: it takes a unit, writes its shards and then its receipt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from jaxdata.converter.document_batch import in_pieces
from jaxdata.converter.inputs.content import content_of
from jaxdata.converter.inputs.identity import stamp_of
from jaxdata.converter.inputs.units import Unit
from jaxdata.converter.job import Finished, Job
from jaxdata.converter.kept.document_hashes import DocumentHashes
from jaxdata.converter.outputs import Outputs
from jaxdata.converter.receipts import Receipt
from jaxdata.converter.tasks import Dropped
from jaxdata.converter.transform import TransformFailed
from jaxdata.converter.unit_reader import StoppedAtBad, UnitReader
from jaxdata.processes import Report, answer_tasks
from jaxdata.tokenizers.encoders import EncoderDiffers


def serve(connection: Connection, job: Job) -> None:
    """Convert the units that come through the connection until it closes."""
    answer_tasks(connection, worker_of(job))


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
        except EncoderDiffers as differs:
            return Finished(differs=differs)
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
