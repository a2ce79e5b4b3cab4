"""Packed rows exported once, for consumers that only read records in order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, WorkerDied
from jaxdata.base.numbers import validated
from jaxdata.base.processes import Pool, Report, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.dataset.lease import Lease, UnfinishedJob, clear, leased
from jaxdata.dataset.manifest import MANIFEST
from jaxdata.dataset.shards import WRITER_OPTIONS
from jaxdata.feed.batches import DatasetBatches, DirectStream, Share, TableBatches
from jaxdata.feed.layouts import Layout, Named, stored_layout
from jaxdata.feed.schedule import Skips, Span, check_skips
from jaxdata.foreign.record_formats import RECORD_FORMATS, check_holds, fields_of, row_bytes
from jaxdata.foreign.row_manifest import (
    BATCH_KEY,
    ROWS,
    Recipe,
    RowSet,
    RowShard,
    decode_receipt,
    read_rowset,
)
from jaxdata.rows.extras import check_extras
from jaxdata.rows.map_datasets import identity_of, known_rows, row_table
from jaxdata.rows.table import Batch
from jaxdata.storage import Store, open_store
from jaxdata.storage.contract import unwritable

_SHARD_BYTES, _BATCH_BYTES = 2**27, 2**22


@dataclass(frozen=True)
class Selection:
    """The rows `[first, stop)` of a dataset of rows, less those that are skipped."""

    rows: Any
    first: int
    stop: int
    skip_rows: list[tuple[int, int]]
    extras: tuple[str, ...]

    def check(self) -> None:
        """Raise InputError if they are no rows of one shape, or none is left."""
        if not 0 <= self.first < self.stop <= len(self.rows):
            raise InputError(
                f"rows {self.first}:{self.stop}: expected a range with 0 <= first < stop <= "
                f"{len(self.rows)}, the number of rows there are"
            )
        known = known_rows(self.rows)
        for start in known.section_starts if known else ():
            if self.first < start < self.stop:
                raise InputError(
                    f"rows {self.first}:{self.stop}: an amendment changes their shape at row "
                    f"{start}; export the rows before it and from it on separately"
                )
        check_skips(self.skip_rows, len(self.rows))
        if not len(self):
            raise InputError(
                f"all rows of {self.first}:{self.stop} are skipped: nothing is left to write"
            )

    def _ordinals(self) -> tuple[Skips, int, int]:
        skips = Skips(self.skip_rows)
        return skips, skips.ordinal(self.first), skips.ordinal(self.stop)

    def __len__(self) -> int:
        _, first, stop = self._ordinals()
        return stop - first

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the selection, at most `size` at a time."""
        skips, first, end = self._ordinals()
        spans = [Span(first + at, min(size, stop - at)) for at in range(start, stop, size)]
        share = Share({span.size: np.arange(span.size) for span in spans}, skips, [end])
        table = row_table(self.rows)
        stream = DirectStream(
            DatasetBatches(self.rows, share)
            if table is None
            else TableBatches([table.section_at(self.first)], share, self.extras),
            iter(spans),
        )
        for _ in spans:
            yield next(stream)[1]

    @property
    def keyed(self) -> Any:
        """The rows, if they know their places in a batch; see `KeyedRows`."""
        known = known_rows(self.rows)
        return known.keyed[0] if known and known.keyed else None

    def batch_key(self) -> np.ndarray:
        """What sorts all of them in a batch."""
        skips, first, stop = self._ordinals()
        key: np.ndarray = self.keyed.batch_key(skips.rows(np.arange(first, stop)))
        return key


@dataclass(frozen=True)
class RowsJob:
    """What all shards have in common; sent to each worker once."""

    url: str
    recipe: Recipe
    selection: Selection
    layout: Layout
    lease: Lease

    def unfinished(self) -> UnfinishedJob:
        """The job as it is on disk, to be written as long as the lease is held."""
        return unfinished_rows(self.lease.fenced(open_store(self.url)))

    def rows(self, shard: int) -> range:
        """The rows of the selection that a shard has."""
        start = shard * self.recipe.shard_rows
        return range(start, min(start + self.recipe.shard_rows, self.recipe.rows))


def unfinished_rows(store: Store) -> UnfinishedJob:
    """The unfinished job of a folder, left when it was killed; its units are shards."""
    return UnfinishedJob(store, kind="unfinished rows", parameters="work/recipe.json")


def serve(connection: Connection, job: RowsJob) -> None:
    """A worker process: writes the shards whose numbers it receives."""
    answer_tasks(connection, partial(_write_shard, job))


def _write_shard(job: RowsJob, number: int, report: Report) -> int:
    """Write one shard and then its receipt; returns its rows.

    `report` ends an orphan: another run may be writing this shard already.
    """
    unfinished, name = job.unfinished(), job.recipe.shard_name(number)
    with unfinished.store.create(name) as path:
        rows, trained = _write_rows(job, job.rows(number), path, report)
        data = np.fromfile(path, np.uint8)
        sha256 = hashlib.sha256(data.data).hexdigest()
        shard = RowShard(
            name=name, rows=rows, trained_tokens=trained, bytes=data.size, sha256=sha256
        )
    report(1.0)
    unfinished.commit(name, shard.model_dump_json().encode())
    return rows


def _write_rows(job: RowsJob, wanted: range, path: Path, report: Report) -> tuple[int, int | None]:
    """Write the records of a shard; returns its rows, and their targets with loss."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    encode = RECORD_FORMATS[job.recipe.record_format].encode
    size = max(1, _BATCH_BYTES // row_bytes(job.recipe.fields))
    writer = ArrayRecordWriter(os.fspath(path), WRITER_OPTIONS)
    rows, trained = 0, list[int]()
    for batch in job.selection.batches(wanted.start, wanted.stop, size):
        for record in encode(job.layout(batch), job.recipe.fields):
            _put(path, writer.write, record)
            rows += 1
        if "loss_mask" in batch:
            trained.append(int(np.count_nonzero(batch["loss_mask"])))
        report(rows / len(wanted))
    _put(path, writer.close)
    found = ArrayRecordReader(os.fspath(path)).num_records()
    if found != rows:
        raise DatasetError(f"{path} holds {found} records after {rows} were written: is it full?")
    return rows, sum(trained) if trained else None


def _put(path: Path, call: Callable[..., None], *args: bytes) -> None:
    """Call a writer; turns its error about a full disk into an OSError."""
    try:
        call(*args)
    except RuntimeError as error:
        raise unwritable(path, error) from error


@validated
def materialize(
    rows: Any,
    output: str | os.PathLike[str],
    *,
    layout: Named = "jaxdata",
    record_format: str = "plain",
    first_row: int = 0,
    stop_row: int | None = None,
    skip_rows: Iterable[tuple[int, int]] = (),
    shard_rows: int | None = None,
    extras: Sequence[str] = (),
    workers: int | None = None,
    progress: Advance | None = None,
) -> RowSet:
    """Write rows as ArrayRecord files, one record a row, in order; `rows.json` describes them.

    Args:
        rows: what `jaxdata.pack`, `mix` or `evaluation_rows` returns, or any `MapDataset` of rows.
        output: a folder or URL, created if necessary. The same call resumes an interrupted one.
        layout: names and masks of the arrays, as for a Loader: "jaxdata", "maxtext", "hf",
            "megatron", or a function of a batch.
        record_format: "plain", the arrays of a row end to end; or "tf_example", a
            `tf.train.Example` of int64 lists.
        first_row: first row.
        stop_row: the row after the last one; None for all.
        skip_rows: ranges `[(a, b), …]` of rows to leave out.
        shard_rows: rows per file; None for about 128 MiB.
        extras: arrays to add, as for a Loader: source, document, side arrays.
        workers: processes; None for one a core. The files do not depend on it.
        progress: called with (rows done, all rows).

    Returns:
        The content of `rows.json`.

    Raises:
        InputError: an argument is wrong, or `output` holds something else.
        DatasetError: another process writes to `output`, or it cannot be written.
        WorkerDied: a worker was killed. The same call resumes.

    >>> import jaxdata, tempfile
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     materialize(rows, folder, workers=1).rows
    2
    """
    for name, count in (("workers", workers), ("shard_rows", shard_rows)):
        if count is not None and count < 1:
            raise InputError(f"{name}={count}: expected 1 or more")
    stop = len(rows) if stop_row is None else stop_row
    added = check_extras(extras, row_table(rows))
    selection = Selection(rows, first_row, stop, [(a, b) for a, b in skip_rows], added)
    selection.check()
    recipe = _recipe(selection, layout, record_format, shard_rows)
    store = open_store(output)
    unfinished = unfinished_rows(store)
    done = _finished(store, recipe)
    if done is None:
        with unfinished.writing(), leased(store, [""]) as lease:
            job = RowsJob(store.url, recipe, selection, stored_layout(layout), lease)
            done = _finished(store, recipe)  # another process may have been faster
            if done is None:
                _begin(job.unfinished(), recipe)
                _write(job, workers or available_cores(), progress)
                done = _publish(job)
    unfinished.end()
    clear(store, [])
    return done


def _recipe(
    selection: Selection, layout: Named, record_format: str, shard_rows: int | None
) -> Recipe:
    """The recipe of the rows to write; one row is made for the dtypes and shapes of its arrays."""
    if record_format not in RECORD_FORMATS:
        names = " | ".join(RECORD_FORMATS)
        raise InputError(f"record_format={record_format!r}: expected {names}")
    apply = stored_layout(layout)
    fields = fields_of(apply(next(selection.batches(0, 1, 1))))
    check_holds(record_format, fields)
    return Recipe(
        record_format=record_format,
        # of a user's layout: the name of the function, or the string of the object
        layout=layout if isinstance(layout, str) else str(getattr(apply, "__qualname__", apply)),
        fields=fields,
        first_row=selection.first,
        stop_row=selection.stop,
        skip_rows=selection.skip_rows,
        rows=len(selection),
        shard_rows=shard_rows or max(1, _SHARD_BYTES // row_bytes(fields)),
        run=identity_of(selection.rows),
        lanes=selection.keyed.lanes if selection.keyed else 1,
    )


def _finished(store: Store, wanted: Recipe) -> RowSet | None:
    """The rows that are finished already, or None; raises InputError if they are others."""
    if store.read(MANIFEST) is not None:
        raise InputError(f"{store.url} is a dataset of documents: write rows to another folder")
    if store.read(ROWS) is None:
        return None
    done = read_rowset(store)
    if changes := done.changes(wanted):
        raise InputError(
            f"{store.url} already holds other rows: {'; '.join(changes)}. Use another --output"
        )
    return done


def _begin(unfinished: UnfinishedJob, wanted: Recipe) -> None:
    """Record what is being made, unless shards of it are done already."""
    if unfinished.resumes(lambda begun: Recipe.model_validate_json(begun).changes(wanted)):
        return
    store = unfinished.store
    for name in store.list():
        if name.endswith(".array_record"):  # without a receipt: another run has other names
            store.delete(name)
    store.delete(f"{BATCH_KEY}/")
    unfinished.begin(wanted.encode())


def _write(job: RowsJob, workers: int, progress: Advance | None) -> None:
    """Write the shards that have no receipt."""
    there = job.unfinished().done()
    missing = [k for k, name in enumerate(job.recipe.shard_names) if name not in there]
    done = job.recipe.rows - sum(len(job.rows(shard)) for shard in missing)
    try:
        for rows in _written(job, missing, workers):
            done += rows
            if progress:
                progress(done, job.recipe.rows)
    except WorkerDied as error:
        raise WorkerDied(f"{error}. Finished work is kept: the same command resumes") from error


def _written(job: RowsJob, shards: Sequence[int], workers: int) -> Iterator[int]:
    """Write shards; yields the rows of each."""
    if min(workers, len(shards)) <= 1:
        yield from (_write_shard(job, number, lambda _: None) for number in shards)
    else:
        with Pool(f"{__name__}:serve", job, workers=workers) as pool:
            yield from pool.map(shards)


def _publish(job: RowsJob) -> RowSet:
    recipe, unfinished = job.recipe, job.unfinished()
    names, store = recipe.shard_names, unfinished.store
    shards = [unfinished.receipt(name, partial(decode_receipt, name=name)) for name in names]
    sha256 = store.write_array(BATCH_KEY, job.selection.batch_key()) if recipe.lanes > 1 else None
    done = RowSet(**recipe.model_dump(), shards=shards, batch_key=sha256)
    store.write(ROWS, done.encode())
    return done
