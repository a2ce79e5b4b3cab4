"""Writing shards of rows, each with its receipt; in worker processes where there are several."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from jaxdata.errors import DatasetError
from jaxdata.feed.layouts import Layout
from jaxdata.format.shards import WRITER_OPTIONS
from jaxdata.format.storage import open_store, unwritable
from jaxdata.make.materialize.records import RECORD_FORMATS, row_bytes
from jaxdata.make.materialize.rowset import Recipe, RowShard
from jaxdata.make.materialize.selection import Selection
from jaxdata.processes import map_tasks
from jaxdata.rows.table import Batch

__all__ = ["WORK", "Job", "receipt_name", "serve", "write_shards"]

WORK = "work"
_BATCH_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Job:
    """What all shards have in common; sent to each worker once."""

    url: str
    recipe: Recipe
    selection: Selection
    layout: Layout

    def rows(self, shard: int) -> int:
        """How many rows a shard has."""
        return min(self.recipe.shard_rows, self.recipe.rows - shard * self.recipe.shard_rows)

    def batches(self, shard: int) -> Iterator[Batch]:
        """The rows of a shard, before they are brought into the layout."""
        start = shard * self.recipe.shard_rows
        size = max(1, _BATCH_BYTES // row_bytes(self.recipe.fields))
        return self.selection.batches(start, start + self.rows(shard), size)


def receipt_name(shard: str) -> str:
    """Where the receipt of a shard lies."""
    return f"{WORK}/{shard}.receipt"


def write_shards(job: Job, shards: Sequence[int], workers: int) -> Iterator[int]:
    """Write the shards of these numbers; gives the rows of each as it is done."""
    if min(workers, len(shards)) <= 1:
        yield from (_write_shard(job, number, lambda: None) for number in shards)
        return
    for _, rows in map_tasks(f"{__name__}:serve", [job], shards, workers):
        yield rows


def serve(connection: Connection, job: Job) -> None:
    """A worker process: writes the shards whose numbers come, until the parent is gone."""

    def leave_if_orphaned() -> None:
        if connection.poll():  # a parent sends nothing while we work
            raise EOFError  # another run may be writing this shard already

    while True:
        connection.send(_write_shard(job, connection.recv(), leave_if_orphaned))


def _write_shard(job: Job, number: int, pause: Callable[[], None]) -> int:
    """Write one shard and then its receipt; returns its rows."""
    store, name = open_store(job.url), job.recipe.shard_names[number]
    with store.create(name) as path:
        rows, trained = _write_rows(job, number, path, pause)
        data = np.fromfile(path, np.uint8)
        shard = RowShard(
            name=name,
            rows=rows,
            trained_tokens=trained,
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )
    pause()
    store.write(receipt_name(name), shard.model_dump_json().encode())
    return rows


def _write_rows(
    job: Job, number: int, path: Path, pause: Callable[[], None]
) -> tuple[int, int | None]:
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
        pause()
    _written(path, writer.close)
    found = ArrayRecordReader(os.fspath(path)).num_records()
    if found != rows:
        raise DatasetError(f"{path} holds {found} records after {rows} were written: is it full?")
    return rows, trained if counted else None


def _written(path: Path, call: Callable[..., None], *args: bytes) -> None:
    """Call a writer; a disk that is full is an OSError, as everywhere."""
    try:
        call(*args)
    except RuntimeError as error:
        raise unwritable(path, error) from error
