"""Where a document came from and where it lies: shard and record, input file and line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.rows.documents import Documents
from jaxdata.rows.stored import StoredDocuments

__all__ = ["Origin", "origin_of"]

_TABLES = (".parquet", ".arrow", ".feather")  # whose rows count from 0, where lines count from 1


@dataclass(frozen=True)
class Origin:
    """Of one token of a document; each None where it is not known, as of other tools' datasets."""

    shard: str | None = None
    record: int | None = None
    """number in the shard, from 0"""
    file: str | None = None
    line: int | None = None
    """in the input file, from 1; or:"""
    row: int | None = None
    """of a table, from 0"""

    @property
    def place(self) -> str:
        """`pages.jsonl line 17`; empty where it is not known."""
        if self.file is None:
            return ""
        return f"{self.file} " + (f"line {self.line}" if self.row is None else f"row {self.row}")


def origin_of(documents: Documents, document: int, token: int = 0) -> Origin:
    """Where a token of a document lies, and where the document came from."""
    if not isinstance(documents, StoredDocuments):
        return Origin()
    index, layout = documents.index, documents.layout
    shard = int(index.locate(np.array([document]))[0][0])
    before = index.lengths[int(index.shard_starts[shard]) : document]
    record = int(layout.records(before).sum()) + token // layout.record_tokens
    file = documents.entry.inputs[int(index.origin_file[document])]
    number = int(index.origin_row[document])
    where: dict[str, Any] = {"row" if file.endswith(_TABLES) else "line": number}
    return Origin(documents.entry.shards[shard].name, record, file, **where)
