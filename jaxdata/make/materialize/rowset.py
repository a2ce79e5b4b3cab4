"""`rows.json`: what lies in a folder of materialised rows; written last, as its commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jaxdata.errors import DatasetError
from jaxdata.format import sealed
from jaxdata.format.storage import Store

__all__ = ["ROWS", "Field", "Recipe", "RowSet", "RowShard", "differences", "read_rowset"]

ROWS = "rows.json"
VERSION = 1

Field = tuple[str, str, tuple[int, ...]]
"""(name, dtype, shape) of one array of a row, as `numpy.dtype([…])` takes them."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RowShard(_Entry):
    """One ArrayRecord file of rows."""

    name: str
    rows: int
    trained_tokens: int | None
    """Targets with loss; None where the rows carry no `loss_mask`."""
    bytes: int
    sha256: str


class Recipe(_Entry):
    """Everything that decides the bytes of a set of rows; the number of workers is not in it."""

    format: Literal["jaxdata rows"] = "jaxdata rows"
    version: int = VERSION
    record_format: str
    layout: str
    fields: list[Field]
    """The arrays of a row in the order in which they lie in a plain record."""
    first_row: int
    stop_row: int
    skip_rows: list[tuple[int, int]]
    rows: int
    """Those of `[first_row, stop_row)` that are not skipped."""
    shard_rows: int
    run: dict[str, Any]
    """The named facts that determine every row, as a loader's state has them."""

    @property
    def shard_names(self) -> list[str]:
        """The files, in the order of their rows."""
        count = -(-self.rows // self.shard_rows)
        digits = max(5, len(str(count)))
        return [f"{k:0{digits}}-of-{count:0{digits}}.array_record" for k in range(count)]

    def encode(self) -> bytes:
        """The bytes of the file."""
        return self.model_dump_json(indent=1).encode() + b"\n"


class RowSet(Recipe):
    """The whole of `rows.json`."""

    shards: list[RowShard]

    def encode(self) -> bytes:
        """The bytes of the file."""
        return sealed.encode(self)

    @property
    def trained_tokens(self) -> int | None:
        """Targets with loss in all rows."""
        counts = [shard.trained_tokens for shard in self.shards]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def read_rowset(store: Store) -> RowSet:
    """What a folder of rows holds; raises DatasetError where it is none that we can read."""
    data = store.read(ROWS)
    if data is None:
        raise DatasetError(
            f"{store.url} holds no finished rows: it has no {ROWS}. If jaxdata materialize was "
            "interrupted, the same command finishes it"
        )
    return sealed.decode(data, f"{store.url}/{ROWS}", RowSet, VERSION)


def differences(was: Recipe, now: Recipe) -> list[str]:
    """What differs between two recipes, by name."""
    before, after = dict(_facts(was)), dict(_facts(now))
    return [
        f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _facts(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    fields = json.loads(recipe.model_dump_json(include=set(Recipe.model_fields)))
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value
