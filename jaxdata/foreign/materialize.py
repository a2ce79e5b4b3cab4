"""Packed rows exported once, for consumers that only read records in order.

They are read as a `MapDataset` for a Loader, and verified.
"""

import hashlib
import operator
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, WorkerDied, digest
from jaxdata.base.lazy import cached_property
from jaxdata.base.numbers import Positive, validated
from jaxdata.base.processes import answers, available_cores, report
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints
from jaxdata.dataset.index import WRITER_OPTIONS
from jaxdata.dataset.lease import Lease, UnfinishedJob, clear, leased
from jaxdata.dataset.manifest import MANIFEST, encode_json
from jaxdata.dataset.verify import Verification, array_check, file_check, run_checks, totals
from jaxdata.feed.batches import BatchMaker, DirectStream, Share
from jaxdata.feed.layouts import Layout, Named, stored_layout
from jaxdata.feed.schedule import Skips, Span, check_skips
from jaxdata.foreign import record_formats
from jaxdata.rows.map_datasets import KnownRows, identity_of, known_rows, row_table
from jaxdata.rows.reading import check_extras
from jaxdata.rows.table import Batch, Key, KeyedRows
from jaxdata.storage import Store, open_store, zarr
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
        for start, _ in known.sections() if known else ():
            if self.first < start < self.stop:
                raise InputError(
                    f"rows {self.first}:{self.stop}: an amendment changes their shape at row "
                    f"{start}; export the rows before it and from it on separately"
                )
        check_skips(self.skip_rows, len(self.rows))
        if not self.ordinals:
            raise InputError(
                f"all rows of {self.first}:{self.stop} are skipped: nothing is left to write"
            )

    @property
    def ordinals(self) -> range:
        """Their places among all rows that are not skipped."""
        skips = Skips(self.skip_rows)
        return range(skips.ordinal(self.first), skips.ordinal(self.stop))

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the selection, at most `size` at a time."""
        skips, all_ = Skips(self.skip_rows), self.ordinals
        spans = [Span(all_[at], min(size, stop - at)) for at in range(start, stop, size)]
        share = Share({span.size: np.arange(span.size) for span in spans}, skips, [all_.stop])
        table = row_table(self.rows)
        rows = self.rows if table is None else table.section_at(self.first)
        made = DirectStream(BatchMaker([rows], share, self.extras), iter(spans))
        return (batch for _, batch in made)

    @property
    def keyed(self) -> Any:
        """The rows, if they know their places in a batch; see `KeyedRows`."""
        known = known_rows(self.rows)
        return known.sections()[0][1] if known else None


@dataclass(frozen=True)
class RowsJob:
    """What all shards have in common; sent to each worker once."""

    url: str
    recipe: record_formats.Recipe
    selection: Selection
    layout: Layout
    lease: Lease

    def unfinished(self) -> UnfinishedJob:
        """The job as it is on disk, to be written as long as the lease is held."""
        return _unfinished(self.lease.fenced(open_store(self.url)))

    def rows(self, shard: int) -> range:
        """The rows of the selection that a shard has."""
        start = shard * self.recipe.shard_rows
        return range(start, min(start + self.recipe.shard_rows, self.recipe.rows))


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
    shard_rows: Positive | None = None,
    extras: Sequence[str] = (),
    workers: Positive | None = None,
    progress: Advance | None = None,
) -> record_formats.RowSet:
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
    if record_format not in record_formats.RECORD_FORMATS:
        names = " | ".join(record_formats.RECORD_FORMATS)
        raise InputError(f"record_format={record_format!r}: expected {names}")
    stop = len(rows) if stop_row is None else stop_row
    added = check_extras(extras, row_table(rows))
    selection = Selection(rows, first_row, stop, [(a, b) for a, b in skip_rows], added)
    selection.check()
    apply = stored_layout(layout)
    fields = record_formats.fields_of(apply(next(selection.batches(0, 1, 1))), record_format)
    recipe = record_formats.Recipe(
        record_format=record_format,
        # of a user's layout: the name of the function, or the string of the object
        layout=layout if isinstance(layout, str) else str(getattr(apply, "__qualname__", apply)),
        fields=fields,
        first_row=first_row,
        stop_row=stop,
        skip_rows=selection.skip_rows,
        rows=len(selection.ordinals),
        shard_rows=shard_rows or max(1, _SHARD_BYTES // record_formats.row_dtype(fields).itemsize),
        run=identity_of(rows),
        lanes=selection.keyed.lanes if selection.keyed else 1,
    )
    store = open_store(output)
    unfinished, done = _unfinished(store), _finished(store, recipe)
    if done is None:
        with unfinished.writing(), leased(store, [""]) as lease:
            job = RowsJob(store.url, recipe, selection, apply, lease)
            # another process may have been faster
            done = _finished(store, recipe) or _write(job, workers or available_cores(), progress)
    unfinished.end()
    clear(store, [])
    return done


def _unfinished(store: Store) -> UnfinishedJob:
    """The unfinished job of a folder, left when it was killed; its units are shards."""
    return UnfinishedJob(store, kind="unfinished rows", parameters="work/recipe.json")


def _finished(store: Store, wanted: record_formats.Recipe) -> record_formats.RowSet | None:
    """The rows that are finished already, or None; raises InputError if they are others."""
    if store.read(MANIFEST) is not None:
        raise InputError(f"{store.url} is a dataset of documents: write rows to another folder")
    if store.read(record_formats.ROWS) is None:
        return None
    done = record_formats.read_rowset(store)
    if changes := done.changes(wanted):
        raise InputError(
            f"{store.url} already holds other rows: {'; '.join(changes)}. Use another --output"
        )
    return done


def _write(job: RowsJob, workers: int, progress: Advance | None) -> record_formats.RowSet:
    """Write the shards that have no receipt, and then `rows.json`."""
    recipe, unfinished = job.recipe, job.unfinished()
    store = unfinished.store
    if not unfinished.resumes(
        lambda begun: record_formats.Recipe.model_validate_json(begun).changes(recipe)
    ):
        for name in store.list():
            if name.endswith(".array_record"):  # without a receipt: another run has other names
                store.delete(name)
        store.delete(f"{record_formats.BATCH_KEY}/")
        unfinished.begin(recipe.model_dump_json(indent=1).encode() + b"\n")
    names, there = recipe.shard_names, unfinished.done()
    missing = [number for number, name in enumerate(names) if name not in there]
    done = recipe.rows - sum(len(job.rows(shard)) for shard in missing)
    try:
        write = partial(_write_shard, job)
        for rows in answers(lambda: write, missing, min(workers, len(missing))):
            done += rows
            if progress:
                progress(done, recipe.rows)
    except WorkerDied as error:
        raise WorkerDied(f"{error}. Finished work is kept: the same command resumes") from error
    shards = [unfinished.receipt(name, partial(_shard_of, name)) for name in names]
    sha256 = None
    if recipe.lanes > 1:
        chosen = Skips(recipe.skip_rows).rows(np.array(job.selection.ordinals))
        sha256 = zarr.write(store, record_formats.BATCH_KEY, job.selection.keyed.batch_key(chosen))
    made = record_formats.RowSet(**recipe.model_dump(), shards=shards, batch_key=sha256)
    store.write(record_formats.ROWS, encode_json(made))
    return made


def _shard_of(name: str, receipt: bytes) -> record_formats.RowShard:
    """The shard of the receipt of file `name`; raises ValueError if it is of another."""
    shard = record_formats.RowShard.model_validate_json(receipt)
    if shard.name != name:
        raise ValueError(f"it is the receipt of {shard.name}")
    return shard


def _write_shard(job: RowsJob, number: int) -> int:
    """Write one shard and then its receipt; returns its rows."""
    unfinished, name, wanted = job.unfinished(), job.recipe.shard_names[number], job.rows(number)
    with unfinished.store.create(name) as path:
        trained = _write_records(job, wanted, path)
        data = np.fromfile(path, np.uint8)
        shard = record_formats.RowShard(
            name=name,
            rows=len(wanted),
            trained_tokens=trained,
            bytes=data.size,
            sha256=hashlib.sha256(data.data).hexdigest(),
        )
    report(1.0)  # ends an orphan: another run may be writing this shard already
    unfinished.commit(name, shard.model_dump_json().encode())
    return len(wanted)


def _write_records(job: RowsJob, wanted: range, path: Path) -> int | None:
    """Write the records of a shard; returns how many of their targets have loss."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    fields, trained = job.recipe.fields, None
    encode = record_formats.RECORD_FORMATS[job.recipe.record_format].encode
    size = max(1, _BATCH_BYTES // record_formats.row_dtype(fields).itemsize)
    writer = ArrayRecordWriter(os.fspath(path), WRITER_OPTIONS)
    for done, batch in enumerate(job.selection.batches(wanted.start, wanted.stop, size)):
        for record in encode(job.layout(batch), fields):
            _put(path, writer.write, record)
        if "loss_mask" in batch:
            trained = (trained or 0) + int(np.count_nonzero(batch["loss_mask"]))
        report(done * size / len(wanted))
    _put(path, writer.close)
    found = ArrayRecordReader(os.fspath(path)).num_records()
    if found != len(wanted):
        raise DatasetError(f"{path} holds {found} of {len(wanted)} records: is its disk full?")
    return trained


def _put(path: Path, call: Callable[..., None], *args: bytes) -> None:
    """Call a writer; turns its error about a full disk into an OSError."""
    try:
        call(*args)
    except RuntimeError as error:
        raise unwritable(path, error) from error


_OPEN_FILES = 64
_COPIES = 4
"""Shards of a bucket that are on this machine; rows are mostly read in order."""


class MaterializedRows(KnownRows):
    """Rows that `jaxdata export` wrote, in order. Made by :func:`open_rows`."""

    def __init__(self, url: str, rowset: record_formats.RowSet) -> None:
        super().__init__()
        self.rowset, self.lanes = rowset, rowset.lanes
        """the content of `rows.json`; of `lanes` see `KeyedRows`"""
        self._url = url

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_reader", "_batch_keys")
        return {name: value for name, value in vars(self).items() if name not in opened}

    def __len__(self) -> int:
        return self.rowset.rows

    def __repr__(self) -> str:
        return f"MaterializedRows({len(self):,} rows in {self._url})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        shard, record = divmod(operator.index(index) % len(self), self.rowset.shard_rows)
        try:
            data = self._reader(shard).read(record, record + 1)[0]
            return record_formats.RECORD_FORMATS[self.rowset.record_format].decode(
                data, self.rowset.fields
            )
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            raise DatasetError(
                f"{self._url}/{self.rowset.shards[shard].name}: record {record} is no row of "
                f"{record_formats.ROWS} ({error}); jaxdata verify {self._url} names what is damaged"
            ) from error

    @cached_property
    def _reader(self) -> Callable[[int], Any]:
        """Opens a shard, unless it is one of the last few in use: each keeps a descriptor."""
        local = open_store(self._url).local
        opened = partial(_open if local else _fetch, self._url)
        most = lru_cache(_OPEN_FILES if local else _COPIES)
        return most(lambda number: opened(self.rowset.shards[number]))

    def sections(self) -> Sequence[tuple[int, KeyedRows]]:
        return [(0, self)]

    def batch_key(self, rows: Ints) -> Key:
        """See `KeyedRows`."""
        found: Key = self._batch_keys[rows % len(self)]
        return found

    @cached_property
    def _batch_keys(self) -> Key:
        return open_store(self._url).read_array(record_formats.BATCH_KEY, (np.uint64, len(self)))

    def identity(self) -> dict[str, Any]:
        shards = [shard.sha256 for shard in self.rowset.shards]
        return {"data": digest(shards)[:8], "rows": len(self)}


def open_rows(path: str | os.PathLike[str]) -> MaterializedRows:
    """Open rows that `jaxdata export` wrote; a `grain.MapDataset`, for a Loader or for grain.

    Args:
        path: their folder, or its URL: then a shard at a time is copied to this machine.

    Raises:
        DatasetError: they are missing, unfinished or of another version.

    >>> import tempfile
    >>> import jaxdata
    >>> packed = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 16), seq_len=6)
    >>> folder = tempfile.mkdtemp()
    >>> _ = jaxdata.materialize(packed, folder, workers=1)
    >>> rows = open_rows(folder)
    >>> len(rows), rows[0]["inputs"].tolist() == packed[0]["inputs"].tolist()
    (8, True)
    """
    store = open_store(path)
    rowset = record_formats.read_rowset(store)
    if rowset.record_format not in record_formats.RECORD_FORMATS:
        raise DatasetError(
            f"{store.url} has records of the format {rowset.record_format!r}; this jaxdata reads "
            f"{' and '.join(record_formats.RECORD_FORMATS)}: install the jaxdata that wrote it"
        )
    return MaterializedRows(store.url, rowset)


def _open(url: str, shard: record_formats.RowShard) -> Any:
    path = Path(url, shard.name)
    if not path.is_file():
        raise _unreadable(str(path), "there is no such file")
    if (size := path.stat().st_size) != shard.bytes:
        raise _unreadable(str(path), f"it has {size:,} bytes, not {shard.bytes:,}")
    return _reader_of(path, str(path), shard)


def _fetch(url: str, shard: record_formats.RowShard) -> Any:
    """Open a copy of a shard in a bucket, which is gone when its reader is."""
    where, content = f"{url}/{shard.name}", hashlib.sha256()
    with tempfile.NamedTemporaryFile(prefix="jaxdata-") as copy:
        for piece in open_store(url).scan(shard.name):
            content.update(piece)
            copy.write(piece)
        copy.flush()
        if content.hexdigest() != shard.sha256:
            raise _unreadable(where, "its content differs from its checksum")
        return _reader_of(Path(copy.name), where, shard)


def _reader_of(path: Path, where: str, shard: record_formats.RowShard) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    try:
        reader = ArrayRecordReader(os.fspath(path))
    except RuntimeError as error:
        raise _unreadable(where, str(error)) from error
    if reader.num_records() != shard.rows:
        raise _unreadable(where, f"it holds {reader.num_records()} of {shard.rows} rows")
    return reader


def _unreadable(where: str, found: str) -> DatasetError:
    return DatasetError(
        f"{where} cannot be read: {found}. Restore the file, or materialize the rows again"
    )


def verify_rows(
    path: str | os.PathLike[str], *, threads: int | None = None, progress: Advance | None = None
) -> Verification:
    """Compare every file of materialized rows with its checksum.

    Args:
        path: a folder or URL.
        threads: files read at a time; None for one a core.
        progress: called with (bytes of files done, bytes of all).

    Raises:
        DatasetError: there are no rows, or `rows.json` is damaged.
    """
    store = open_store(path)
    rowset = record_formats.read_rowset(store)
    shards, key = rowset.shards, rowset.batch_key
    checks = [file_check(store, one.name, one.sha256, one.bytes) for one in shards]
    if key is not None:
        checks.append(array_check(store, record_formats.BATCH_KEY, key, (np.uint64, rowset.rows)))
    return Verification(
        path=store.url,
        damage=run_checks(checks, threads, progress),
        counts={"files": len(shards)} | totals(shards, "rows", "bytes"),
        remedy="restore these files from a copy, or materialize the rows again",
    )
