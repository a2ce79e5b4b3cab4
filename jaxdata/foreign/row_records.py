"""Reading materialized rows as a `MapDataset` for a Loader, and verifying them."""

import hashlib
import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import digest
from jaxdata.base.lazy import cached_property
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import Ints
from jaxdata.dataset.verify import Verification, array_check, file_check, run_checks, totals
from jaxdata.foreign.record_formats import (
    BATCH_KEY,
    RECORD_FORMATS,
    ROWS,
    RowSet,
    RowShard,
    read_rowset,
)
from jaxdata.rows.map_datasets import KnownRows
from jaxdata.rows.table import Key, KeyedRows
from jaxdata.storage import open_store


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
    rowset = read_rowset(store)
    shards, key = rowset.shards, rowset.batch_key
    checks = [file_check(store, one.name, one.sha256, one.bytes) for one in shards]
    if key is not None:
        checks.append(array_check(store, BATCH_KEY, key, np.uint64, rowset.rows))
    return Verification(
        path=store.url,
        damage=run_checks(checks, threads, progress),
        counts={"files": len(shards)} | totals(shards, "rows", "bytes"),
        remedy="restore these files from a copy, or materialize the rows again",
    )


_OPEN_FILES = 64
_COPIES = 4
"""Shards of a bucket that are on this machine; rows are mostly read in order."""


class MaterializedRows(KnownRows):
    """Rows that `jaxdata export` wrote, in order. Made by :func:`open_rows`."""

    def __init__(self, url: str, rowset: RowSet) -> None:
        super().__init__()
        self.rowset = rowset
        """the content of `rows.json`"""
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
            return RECORD_FORMATS[self.rowset.record_format].decode(data, self.rowset.fields)
        except (ValueError, LookupError, TypeError, RuntimeError) as error:
            raise DatasetError(
                f"{self._url}/{self.rowset.shards[shard].name}: record {record} is no row of "
                f"{ROWS} ({error}); jaxdata verify {self._url} names what is damaged"
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

    @property
    def lanes(self) -> int:
        """See `KeyedRows`."""
        return self.rowset.lanes

    def batch_key(self, rows: Ints) -> Key:
        """See `KeyedRows`."""
        found: Key = self._batch_keys[rows % len(self)]
        return found

    @cached_property
    def _batch_keys(self) -> Key:
        return open_store(self._url).read_array(BATCH_KEY, np.uint64, len(self))

    def identity(self) -> dict[str, Any]:
        shards = [shard.sha256 for shard in self.rowset.shards]
        return {"data": digest(shards)[:8], "rows": len(self)}


def _open(url: str, shard: RowShard) -> Any:
    path = Path(url, shard.name)
    if not path.is_file():
        raise _unreadable(str(path), "there is no such file")
    if (size := path.stat().st_size) != shard.bytes:
        raise _unreadable(str(path), f"it has {size:,} bytes, not {shard.bytes:,}")
    return _reader_of(path, str(path), shard)


def _fetch(url: str, shard: RowShard) -> Any:
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


def _reader_of(path: Path, where: str, shard: RowShard) -> Any:
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
    rowset = read_rowset(store)
    if rowset.record_format not in RECORD_FORMATS:
        raise DatasetError(
            f"{store.url} has records of the format {rowset.record_format!r}; this jaxdata reads "
            f"{' and '.join(RECORD_FORMATS)}: install the jaxdata that wrote it"
        )
    return MaterializedRows(store.url, rowset)
