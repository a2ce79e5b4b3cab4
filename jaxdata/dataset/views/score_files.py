"""Scores of documents from a file: Parquet, `.npy`, or a JSON object or number a line."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jaxdata.base.errors import InputError

COLUMN = "score"
"""What the only column of a file without names is called."""


class Scores:
    """Columns of a file, a value for each document.

    Args:
        path: a `.parquet`, `.npy` or `.jsonl` file.
        key: the column with what identifies a document, also a field of the documents; None: the
            rows are in the order of the documents.

    Raises:
        InputError: the file cannot be read as any of these, or has no such column.
    """

    def __init__(self, path: str | os.PathLike[str], key: str | None = None) -> None:
        self.path, self.key = Path(path).expanduser(), key
        try:
            self._columns = _READERS[self.path.suffix](self.path)
            with self.path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except KeyError:
            raise InputError(f"--scores {path}: expected a file *{', *'.join(_READERS)}") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(f"--scores {path} cannot be read: {error}") from None
        if key is not None and key not in self._columns:
            raise InputError(
                f"--scores-key {key}: {path} has no such column, only {', '.join(self._columns)}"
            )
        self._keys = None if key is None else self._distinct(key)

    def _distinct(self, key: str) -> Any:
        """The column of keys; raises InputError if two rows have the same."""
        keys = self._columns[key]
        if len(pc.unique(keys)) < len(keys):
            raise InputError(f"--scores {self.path}: two of its rows have the same {key!r}")
        return keys

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [name for name in self._columns if name != self.key]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(next(iter(self._columns.values())))

    def check(self, documents: int, source: str) -> None:
        """Raise InputError if rows are not in the order of the documents of a source."""
        if self.key is None and self.rows != documents:
            raise InputError(
                f"--scores {self.path} has {self.rows:,} rows, {source} {documents:,} documents: "
                "expected one a document, in order; or name what identifies them, --scores-key id"
            )

    def of(self, name: str, first: int, stop: int, keys: Any) -> Any:
        """A column for documents `[first, stop)`, whose keys are given where there is a key."""
        column = self._columns[name]
        if self._keys is None:
            return column.slice(first, stop - first)
        try:
            return column.take(pc.index_in(keys, value_set=self._keys))
        except (pa.ArrowException, TypeError):
            raise InputError(
                f"--scores-key {self.key}: it is of type {self._keys.type} in {self.path}, and "
                f"of {keys.type} in the documents"
            ) from None


def _parquet(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def _npy(path: Path) -> dict[str, Any]:
    found = np.load(path, allow_pickle=False)
    if found.ndim != 1 or found.dtype.kind not in "biuf":
        raise ValueError(f"an array of shape {found.shape} and {found.dtype}, not a row of numbers")
    return {COLUMN: pa.array(found)}


def _jsonl(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    records = [row if isinstance(row, dict) else {COLUMN: row} for row in rows]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: pa.array([record.get(name) for record in records]) for name in names or [COLUMN]}


_READERS = {".parquet": _parquet, ".npy": _npy, ".jsonl": _jsonl}
