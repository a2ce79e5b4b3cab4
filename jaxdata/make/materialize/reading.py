"""Reading materialised rows again, as a `MapDataset` that a Loader takes."""

from __future__ import annotations

import os
from typing import Any

import grain

from jaxdata.errors import DatasetError
from jaxdata.format.sealed import digest
from jaxdata.format.storage import open_store
from jaxdata.make.materialize.records import RECORD_FORMATS
from jaxdata.make.materialize.rowset import RowSet, RowShard, read_rowset
from jaxdata.rows.table import Batch

__all__ = ["MaterializedRows", "open_rows"]


class MaterializedRows(grain.MapDataset[Batch]):
    """Rows that `jaxdata materialize` wrote, in their order. Made by :func:`open_rows`."""

    def __init__(self, url: str, rowset: RowSet) -> None:
        super().__init__()
        self.rowset = rowset
        """what `rows.json` says"""
        self._url = url
        self._readers: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_readers": {}}

    def __len__(self) -> int:
        return self.rowset.rows

    def __str__(self) -> str:
        return f"MaterializedRows({len(self):,} rows in {self._url})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        shard, record = divmod(index % len(self), self.rowset.shard_rows)
        data = self._reader(shard).read(record, record + 1)[0]
        return RECORD_FORMATS[self.rowset.record_format].decode(data, self.rowset.fields)

    def _reader(self, shard: int) -> Any:
        if shard not in self._readers:
            self._readers[shard] = _open(self._url, self.rowset.shards[shard])
        return self._readers[shard]

    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row, as a loader's state has them."""
        shards = [shard.sha256 for shard in self.rowset.shards]
        return {"data": digest(shards)[:8], "rows": len(self)}


def _open(url: str, shard: RowShard) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    path = f"{url}/{shard.name}"
    try:
        reader = ArrayRecordReader(path)
        found = f"it holds {reader.num_records()} of {shard.rows} rows"
    except RuntimeError as error:
        reader, found = None, str(error)
    if reader is None or reader.num_records() != shard.rows:
        raise DatasetError(
            f"{path} cannot be read: {found}. Restore the file, or write the rows again"
        )
    return reader


def open_rows(path: str | os.PathLike[str]) -> MaterializedRows:
    """Open rows that `jaxdata materialize` wrote; a `grain.MapDataset`, for a Loader or for grain.

    Args:
        path: their folder.

    Raises:
        DatasetError: there are none, or they are unfinished or of another version.
    """
    store = open_store(path)
    return MaterializedRows(store.url, read_rowset(store))
