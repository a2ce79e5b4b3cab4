"""The origin of a document: shard and record, input file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxdata.documents.base import Documents
from jaxdata.documents.converted import ConvertedDocuments
from jaxdata.documents.kept import in_source

# Rows of tables and elements of JSON arrays count from 0, lines and pieces of a text from 1.
_FROM_ZERO = re.compile(r"\.(parquet|arrow|json(\.\w+)?)$", re.IGNORECASE)
_TEXT = re.compile(r"\.txt(\.\w+)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """The origin of one token; unknown fields are None, as in other tools' datasets."""

    shard: str | None = None
    record: int | None = None
    """number within the shard, from 0"""
    file: str | None = None
    member: str | None = None
    """the file inside, if `file` is an archive"""
    line: int | None = None
    """of that file, from 1; or:"""
    row: int | None = None
    """of a table or an array, from 0; or:"""
    piece: int | None = None
    """of a text file, from 1: huge ones are read in pieces"""
    kept: dict[str, Any] = field(default_factory=dict)
    """fields of its record that the conversion kept (`--keep`)"""


def origin_of(documents: Documents, document: int, token: int = 0) -> Origin:
    """The origin of a token of a document."""
    documents, document, token = in_source(documents, document, token)
    if not isinstance(documents, ConvertedDocuments):
        return Origin()
    index, layout = documents.index, documents.spec
    shard = int(index.locate(np.array([document]))[0][0])
    before = index.lengths[int(index.shard_starts[shard]) : document]
    record = int(layout.records(before).sum()) + token // layout.record_tokens
    file, row = index.origin(document)
    where: dict[str, Any] = {_counted(file): row}
    if member := index.member(document):
        where = {"member": member.name, member.counted: member.number}
    name, kept = documents.entry.shards[shard].name, index.kept(document)
    return Origin(name, record, file, kept=kept, **where)


def _counted(file: str) -> str:
    """The unit of a file's records, judged by its name."""
    if _TEXT.search(file):
        return "piece"
    return "row" if _FROM_ZERO.search(file) else "line"
