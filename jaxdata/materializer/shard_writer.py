"""Writing shards of rows, each with its receipt, in worker processes if there are several."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.feed.layouts import Layout
from jaxdata.format.lease import Lease
from jaxdata.format.shards import WRITER_OPTIONS
from jaxdata.format.storage import Store, open_store, unwritable
from jaxdata.format.unfinished import UnfinishedJob
from jaxdata.materializer.formats import RECORD_FORMATS, row_bytes
from jaxdata.materializer.row_manifest import Recipe, RowShard, encode_receipt
from jaxdata.materializer.selection import Selection
from jaxdata.processes import Pool, Report, answer_tasks
from jaxdata.rows.table import Batch

_BATCH_BYTES = 4 * 2**20


@dataclass(frozen=True)
class RowsJob:
    """What all shards have in common; sent to each worker once."""

    url: str
    recipe: Recipe
    selection: Selection
    layout: Layout
    lease: Lease

    def store(self) -> Store:
        """Open the output, to write as long as the lease is held."""
        return self.lease.fenced(open_store(self.url))

    def rows(self, shard: int) -> int:
        return min(self.recipe.shard_rows, self.recipe.rows - shard * self.recipe.shard_rows)

    def batches(self, shard: int) -> Iterator[Batch]:
        """The rows of a shard in jaxdata's own layout."""
        start = shard * self.recipe.shard_rows
        size = max(1, _BATCH_BYTES // row_bytes(self.recipe.fields))
        return self.selection.batches(start, start + self.rows(shard), size)


def unfinished_rows(store: Store) -> UnfinishedJob:
    """What a job in this folder leaves behind when it is killed; its units are shards."""
    return UnfinishedJob(store, kind="unfinished rows", parameters="work/recipe.json")


def write_shards(job: RowsJob, shards: Sequence[int], workers: int) -> Iterator[int]:
    """Write the shards of these numbers; yields the rows of each."""
    if min(workers, len(shards)) <= 1:
        yield from (_write_shard(job, number, lambda _: None) for number in shards)
        return
    with Pool(f"{__name__}:serve", job, workers=workers) as pool:
        yield from pool.map(shards)


def serve(connection: Connection, job: RowsJob) -> None:
    """A worker process: writes the shards whose numbers it receives."""
    answer_tasks(connection, partial(_write_shard, job))


def _write_shard(job: RowsJob, number: int, report: Report) -> int:
    """Write one shard and then its receipt; returns its rows.

    `report` ends an orphan: another run may be writing this shard already.
    """
    store, name = job.store(), job.recipe.shard_name(number)
    with store.create(name) as path:
        rows, trained = _write_rows(job, number, path, report)
        data = np.fromfile(path, np.uint8)
        shard = RowShard(
            name=name,
            rows=rows,
            trained_tokens=trained,
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )
    report(1.0)
    unfinished_rows(store).commit(name, encode_receipt(shard))
    return rows


def _write_rows(job: RowsJob, number: int, path: Path, report: Report) -> tuple[int, int | None]:
    """Write the records of a shard; returns its rows, and their targets with loss."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    encode = RECORD_FORMATS[job.recipe.record_format].encode
    writer = ArrayRecordWriter(os.fspath(path), WRITER_OPTIONS)
    rows = trained = 0
    counted = True
    for batch in job.batches(number):
        for record in encode(job.layout(batch), job.recipe.fields):
            _written(path, writer.write, record)
            rows += 1
        counted = "loss_mask" in batch
        trained += int(np.count_nonzero(batch["loss_mask"])) if counted else 0
        report(rows / job.rows(number))
    _written(path, writer.close)
    found = ArrayRecordReader(os.fspath(path)).num_records()
    if found != rows:
        raise DatasetError(f"{path} holds {found} records after {rows} were written: is it full?")
    return rows, trained if counted else None


def _written(path: Path, call: Callable[..., None], *args: bytes) -> None:
    """Call a writer; turns its error about a full disk into an OSError."""
    try:
        call(*args)
    except RuntimeError as error:
        raise unwritable(path, error) from error
