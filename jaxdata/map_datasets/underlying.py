"""The rows that lie under a `grain.MapDataset` made of them: its table, sections and identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxdata.map_datasets.row_dataset import KeyedDataset, RowDataset
from jaxdata.rows.batch_order import KeyedRows
from jaxdata.rows.table import RowTable


def row_table(rows: Any) -> RowTable | None:
    """The table of a dataset of rows, or None if its rows were transformed."""
    return rows.table if isinstance(rows, RowDataset) else None


def section_starts(rows: Any) -> list[int]:
    """First rows of the sections in which rows have one shape; the first is 0."""
    table = underlying_table(rows)
    return [0] if table is None else [0, *(start for start, _ in table.sections()[1:])]


def underlying_table(rows: Any) -> RowTable | None:
    """The table of rows, or of the rows they were made of one by one."""
    found = _underlying(rows)
    return found.table if isinstance(found, RowDataset) else None


def have_epochs(rows: Any) -> bool:
    """Whether rows beyond the last are those of further epochs, as grain has it; of a mix not."""
    if isinstance(rows, RowDataset):
        return not rows.table.ends
    return all(map(have_epochs, getattr(rows, "parents", ())))


def underlying_keyed(rows: Any) -> Sequence[KeyedRows]:
    """By section, the rows that know their place in a batch, under a dataset of rows."""
    found = _underlying(rows)
    return found.keyed if found else ()


def _underlying(rows: Any) -> KeyedDataset | None:
    """A dataset of rows, or the one they were made of one by one."""
    if isinstance(rows, KeyedDataset):
        return rows
    parents: Any = getattr(rows, "parents", ())
    one = len(parents) == 1 and len(parents[0]) == len(rows)
    return _underlying(parents[0]) if one else None


def underlying_identity(rows: Any) -> dict[str, Any]:
    """The identity of the table under a transformed dataset of rows."""
    if isinstance(rows, RowDataset):
        return rows.table.identity()
    if hasattr(rows, "identity"):
        return dict(rows.identity())
    parents: Any = getattr(rows, "parents", ())
    if underlying_table(rows) is not None:
        return underlying_identity(parents[0])
    facts: dict[str, Any] = {"length": len(rows)}
    for number, parent in enumerate(parents):
        inner = underlying_identity(parent)
        facts.update(inner if not number else {f"{number}.{k}": v for k, v in inner.items()})
    return facts
