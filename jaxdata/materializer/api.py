"""Packed rows exported once, for consumers that only read records in order.

A complete shard is renamed into place, then its receipt; `rows.json`, made of the receipts, comes
last. So a killed job resumes where it stopped, and the bytes depend neither on that nor on the
number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxdata.errors import InputError, WorkerDied
from jaxdata.feed.layouts import Named, stored_layout
from jaxdata.format.lease import clear, leased
from jaxdata.format.manifest import MANIFEST
from jaxdata.format.storage import Store, open_store
from jaxdata.format.unfinished import UnfinishedJob
from jaxdata.map_datasets.underlying import row_table, underlying_identity
from jaxdata.materializer.formats import RECORD_FORMATS, fields_of, row_bytes
from jaxdata.materializer.row_manifest import (
    BATCH_KEY,
    ROWS,
    Field,
    Recipe,
    RowSet,
    decode_receipt,
    read_rowset,
)
from jaxdata.materializer.selection import Selection
from jaxdata.materializer.shard_writer import RowsJob, unfinished_rows, write_shards
from jaxdata.processes import available_cores
from jaxdata.progress import Advance
from jaxdata.rows.extras import check_extras
from jaxdata.scalars import takes_numpy

_SHARD_BYTES = 128 * 2**20


@takes_numpy
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
    """
    for name, count in (("workers", workers), ("shard_rows", shard_rows)):
        if count is not None and count < 1:
            raise InputError(f"{name}={count}: expected 1 or more")
    stop = len(rows) if stop_row is None else stop_row
    added = check_extras(extras, row_table(rows))
    selection = Selection(rows, first_row, stop, [(a, b) for a, b in skip_rows], added)
    recipe = _recipe(selection, layout, record_format, shard_rows)
    store = open_store(output)
    unfinished = unfinished_rows(store)
    done = _finished(store, recipe)
    if done is None:
        with unfinished.writing(), leased(store, [""]) as lease:
            job = RowsJob(store.url, recipe, selection, stored_layout(layout), lease)
            done = _finished(store, recipe)  # another process may have been faster
            done = done or _complete(job, workers or available_cores(), progress)
    unfinished.end()
    clear(store, [])
    return done


def _complete(job: RowsJob, workers: int, progress: Advance | None) -> RowSet:
    unfinished = unfinished_rows(job.store())
    _begin(unfinished, job.recipe)
    _write(unfinished, job, workers, progress)
    return _publish(unfinished, job)


def _recipe(
    selection: Selection, layout: Named, record_format: str, shard_rows: int | None
) -> Recipe:
    """What will be written; makes one row for the dtypes and shapes of its arrays."""
    if record_format not in RECORD_FORMATS:
        names = " | ".join(RECORD_FORMATS)
        raise InputError(f"record_format={record_format!r}: expected {names}")
    apply = stored_layout(layout)
    fields = fields_of(apply(next(selection.batches(0, 1, 1))))
    _check_holds(record_format, fields)
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
        run=underlying_identity(selection.rows),
        lanes=selection.lanes,
    )


def _check_holds(record_format: str, fields: Sequence[Field]) -> None:
    """Refuse arrays that a record would hold rounded."""
    for name, dtype, _ in fields:
        if record_format == "tf_example" and dtype in ("<f8", "<u8"):
            raise InputError(
                f"record_format='tf_example' holds floats of 32 bits and whole numbers of 63, and "
                f"{name!r} is {np.dtype(dtype).name}: use record_format='plain', or leave it out"
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


def _write(unfinished: UnfinishedJob, job: RowsJob, workers: int, progress: Advance | None) -> None:
    """Write the shards that have no receipt."""
    there = unfinished.done()
    missing = [k for k, name in enumerate(job.recipe.shard_names) if name not in there]
    done = job.recipe.rows - sum(job.rows(shard) for shard in missing)
    try:
        for rows in write_shards(job, missing, workers):
            done += rows
            if progress:
                progress(done, job.recipe.rows)
    except WorkerDied as error:
        raise WorkerDied(f"{error}. Finished work is kept: the same command resumes") from error


def _publish(unfinished: UnfinishedJob, job: RowsJob) -> RowSet:
    recipe, store = job.recipe, unfinished.store
    shards = [
        unfinished.receipt(name, partial(decode_receipt, name=name)) for name in recipe.shard_names
    ]
    sha256 = store.write_array(BATCH_KEY, job.selection.batch_key()) if recipe.lanes > 1 else None
    done = RowSet(**recipe.model_dump(), shards=shards, batch_key=sha256)
    store.write(ROWS, done.encode())
    return done
