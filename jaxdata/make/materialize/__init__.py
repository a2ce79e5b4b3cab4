"""Rows written down once, for consumers that only read records in order.

Each shard is renamed into place when it is whole, then its receipt; from the receipts comes
`rows.json`, last. So what was killed goes on where it stopped, and the bytes depend neither on
that nor on the workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from jaxdata.convert.refusals import writing
from jaxdata.errors import DatasetError, InputError, WorkerDied
from jaxdata.feed.layouts import Layout
from jaxdata.feed.layouts import layout as find_layout
from jaxdata.format.manifest import MANIFEST
from jaxdata.format.storage import Store, open_store
from jaxdata.make.materialize.records import RECORD_FORMATS, fields_of, row_bytes
from jaxdata.make.materialize.rowset import ROWS, Recipe, RowSet, RowShard, differences, read_rowset
from jaxdata.make.materialize.selection import Selection
from jaxdata.make.materialize.shards import WORK, Job, receipt_name, write_shards
from jaxdata.processes import available_cores
from jaxdata.progress import Advance
from jaxdata.rows.datasets import underlying_identity

__all__ = ["materialize"]

_SHARD_BYTES = 128 * 2**20
_RECIPE = f"{WORK}/recipe.json"


def materialize(
    rows: Any,
    output: str | os.PathLike[str],
    *,
    layout: str | Layout = "jaxdata",
    record_format: str = "plain",
    first_row: int = 0,
    stop_row: int | None = None,
    skip_rows: Iterable[tuple[int, int]] = (),
    shard_rows: int | None = None,
    workers: int | None = None,
    progress: Advance | None = None,
) -> RowSet:
    """Write rows as ArrayRecord files, one record a row, in order; `rows.json` describes them.

    Args:
        rows: what `jaxdata.pack`, `mix` or `evaluation_rows` returns, or any `MapDataset` of rows.
        output: a folder or URL; made where there is none. The same call finishes what was
            interrupted.
        layout: whose names and masks a row has, as for a Loader: "jaxdata", "maxtext", "hf",
            "megatron", or a function of a batch.
        record_format: "plain", the arrays of a row one behind the other; or "tf_example", a
            `tf.train.Example` of int64 lists.
        first_row: where to begin.
        stop_row: the row to end before; None for all.
        skip_rows: ranges `[(a, b), …]` of rows that are left out.
        shard_rows: rows of a file; None for about 128 MiB.
        workers: processes; None for one a core. The files do not depend on it.
        progress: called with rows done, and in all.

    Returns:
        What is in `rows.json`.

    Raises:
        InputError: an argument is wrong, or `output` holds something else; the text says what.
        WorkerDied: a worker was killed. The same call goes on from there.
    """
    for name, count in (("workers", workers), ("shard_rows", shard_rows)):
        if count is not None and count < 1:
            raise InputError(f"{name}={count}: expected 1 or more")
    stop = len(rows) if stop_row is None else stop_row
    selection = Selection(rows, first_row, stop, [(a, b) for a, b in skip_rows])
    recipe = _recipe(selection, layout, record_format, shard_rows)
    store = open_store(output)
    done = _finished(store, recipe)
    if done is None:
        job = Job(store.url, recipe, selection, find_layout(layout))
        with writing(store.url):
            _begin(store, recipe)
            _write(store, job, workers or available_cores(), progress)
            done = _publish(store, recipe)
    store.delete(f"{WORK}/")
    return done


def _recipe(
    selection: Selection, layout: str | Layout, record_format: str, shard_rows: int | None
) -> Recipe:
    """What will be written; makes one row to see what rows look like."""
    if record_format not in RECORD_FORMATS:
        names = " | ".join(RECORD_FORMATS)
        raise InputError(f"record_format={record_format!r}: expected {names}")
    lay_out = find_layout(layout)
    fields = fields_of(lay_out(next(selection.batches(0, 1, 1))))
    return Recipe(
        record_format=record_format,
        layout=layout if isinstance(layout, str) else _name(lay_out),
        fields=fields,
        first_row=selection.first,
        stop_row=selection.stop,
        skip_rows=selection.skip_rows,
        rows=len(selection),
        shard_rows=shard_rows or max(1, _SHARD_BYTES // row_bytes(fields)),
        run=underlying_identity(selection.rows),
    )


def _name(layout: Layout) -> str:
    """What a layout of the user's own is called: the function's name, or what the object says."""
    return str(getattr(layout, "__qualname__", layout))


def _finished(store: Store, wanted: Recipe) -> RowSet | None:
    """What was finished before, None where nothing was; refuses what is something else."""
    if store.read(MANIFEST) is not None:
        raise InputError(f"{store.url} is a dataset of documents: give rows a folder of their own")
    if store.read(ROWS) is None:
        return None
    done = read_rowset(store)
    if changes := differences(done, wanted):
        raise InputError(
            f"{store.url} already holds other rows: {'; '.join(changes)}. Use another --output"
        )
    return done


def _begin(store: Store, wanted: Recipe) -> None:
    """Write down what is being made; where shards of it are done, check that they fit."""
    begun = store.read(_RECIPE)
    if begun is not None and _receipts(store):
        was = _decode(begun, store.url)
        if changes := differences(was, wanted):
            raise InputError(
                f"{store.url} holds unfinished rows of another kind: {'; '.join(changes)}. Give "
                "the same again to finish them, or delete that folder to begin anew"
            )
        return
    for name in store.list():
        if name.endswith(".array_record"):  # without a receipt: another run has other names
            store.delete(name)
    store.write(_RECIPE, wanted.encode())


def _decode(begun: bytes, url: str) -> Recipe:
    try:
        return Recipe.model_validate_json(begun)
    except ValueError as error:
        raise InputError(
            f"{url} holds unfinished rows of another version of jaxdata; delete that folder to "
            "begin anew"
        ) from error


def _receipts(store: Store) -> set[str]:
    return {name for name in store.list(f"{WORK}/") if name.endswith(".receipt")}


def _write(store: Store, job: Job, workers: int, progress: Advance | None) -> None:
    """Write the shards that have no receipt."""
    there = _receipts(store)
    names = job.recipe.shard_names
    missing = [k for k, name in enumerate(names) if receipt_name(name) not in there]
    done = job.recipe.rows - sum(job.rows(shard) for shard in missing)
    try:
        for rows in write_shards(job, missing, workers):
            done += rows
            if progress:
                progress(done, job.recipe.rows)
    except WorkerDied as error:
        raise WorkerDied(
            f"{error}. What was finished is kept: the same command goes on from there"
        ) from error
    finally:
        store.sweep("")  # killed workers, now or before, left what they had begun


def _publish(store: Store, recipe: Recipe) -> RowSet:
    shards = [_shard(store, receipt_name(name)) for name in recipe.shard_names]
    done = RowSet(**recipe.model_dump(), shards=shards)
    store.write(ROWS, done.encode())
    return done


def _shard(store: Store, receipt: str) -> RowShard:
    data = store.read(receipt)
    if data is None:
        raise DatasetError(
            f"{store.url}/{receipt} is gone: is somebody else writing there? Wait for that to "
            "end, then give the same command again"
        )
    return RowShard.model_validate_json(data)
