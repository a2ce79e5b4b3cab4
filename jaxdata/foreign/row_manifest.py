"""`rows.json`: what a folder of materialized rows holds; written last, as its commit."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, model_validator

from jaxdata.base.errors import DatasetError
from jaxdata.base.facts import differences, itemized
from jaxdata.dataset.checksums import encode_json, read_json
from jaxdata.dataset.manifest import Count, Entry, Facts, FileName, Positive
from jaxdata.storage import Store

ROWS = "rows.json"
BATCH_KEY = "batch_key"
"""uint64 (rows,): see `jaxdata.rows.table`"""
VERSION = 1

_ROW_BYTES = 2**31


def _plain(fields: list[Field]) -> list[Field]:
    """Refuse arrays of objects, and rows that nothing could hold."""
    for name, dtype, _ in fields:
        if not re.fullmatch(r"[<>=|]?[A-Za-z]\w{0,15}", dtype):  # numpy parses much more
            raise ValueError(f"the array {name} is of {dtype!r}, which is no dtype")
    row = np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])
    if row.hasobject or not 0 < row.itemsize < _ROW_BYTES:
        raise ValueError(f"a row of these arrays has {row.itemsize:,} bytes, or objects")
    return fields


Field = tuple[str, str, tuple[Count, ...]]
"""(name, dtype, shape) of one array of a row, as `numpy.dtype([…])` takes them."""


class RowShard(Entry):
    """One ArrayRecord file of rows."""

    name: FileName
    rows: Count
    trained_tokens: Count | None
    """Targets with loss; None if the rows have no `loss_mask`."""
    bytes: Count
    sha256: str


def decode_receipt(receipt: bytes, name: str) -> RowShard:
    """The shard of the receipt of file `name`; raises ValueError if it is of another."""
    shard = RowShard.model_validate_json(receipt)
    if shard.name != name:
        raise ValueError(f"it is the receipt of {shard.name}")
    return shard


class Recipe(Entry):
    """Everything that decides the bytes of a set of rows; the number of workers does not."""

    format: Literal["jaxdata rows"] = "jaxdata rows"
    version: int = VERSION
    record_format: str
    layout: str
    fields: Annotated[list[Field], AfterValidator(_plain)]
    """The arrays of a row, in the order of a plain record."""
    first_row: Count
    stop_row: Count
    skip_rows: list[tuple[Count, Count]]
    rows: Positive
    """Rows of `[first_row, stop_row)` that are not skipped."""
    shard_rows: Positive
    run: Facts
    """The named facts that determine every row, as in a loader's state."""
    lanes: Positive = 1
    """Most lanes of a source; if there are several, `BATCH_KEY` sorts the rows of a batch."""

    @property
    def shard_names(self) -> list[str]:
        """The files, in the order of their rows."""
        return [self.shard_name(number) for number in range(-(-self.rows // self.shard_rows))]

    def shard_name(self, number: int) -> str:
        """The file that begins with row `number * shard_rows`."""
        count = -(-self.rows // self.shard_rows)
        digits = max(5, len(str(count)))
        return f"{number:0{digits}}-of-{count:0{digits}}.array_record"

    def encode(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"

    def changes(self, now: Recipe) -> list[str]:
        """The differences to another recipe, a line each."""
        facts = [
            itemized(json.loads(one.model_dump_json(include=set(Recipe.model_fields))))
            for one in (self, now)
        ]
        return [*differences(facts[0], facts[1]).values()]


class RowSet(Recipe):
    """The whole of `rows.json`."""

    shards: list[RowShard]
    batch_key: str | None = None
    """The sha256 of `BATCH_KEY`, if there is one."""

    @model_validator(mode="after")
    def _covers_rows(self) -> RowSet:
        """All shards but the last are full."""
        last = len(self.shards) - 1
        rest = self.rows - last * self.shard_rows
        expected = [self.shard_rows] * last + [rest]
        if not 0 < rest <= self.shard_rows or [shard.rows for shard in self.shards] != expected:
            raise ValueError(f"its shards do not hold {self.rows:,} rows, {self.shard_rows:,} each")
        return self

    def encode(self) -> bytes:
        return encode_json(self)

    @property
    def trained_tokens(self) -> int | None:
        """Targets with loss in all rows."""
        known = [shard.trained_tokens for shard in self.shards if shard.trained_tokens is not None]
        return sum(known) if len(known) == len(self.shards) else None


def read_rowset(store: Store) -> RowSet:
    """The content of a folder of rows; raises DatasetError if it is missing or damaged."""
    rowset = read_json(store, ROWS, RowSet, VERSION)
    if rowset is None:
        raise DatasetError(
            f"{store.url} holds no finished rows: it has no {ROWS}. If jaxdata export was "
            "interrupted, the same command finishes it"
        )
    return rowset
