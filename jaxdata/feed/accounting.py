"""What a process has handed over, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.datasets import row_table
from jaxdata.rows.table import RowTable, edges

__all__ = ["local_bytes", "trained_tokens"]

_ROWS_AT_ONCE = 4096


def local_bytes(batch: Mapping[str, Any]) -> int:
    """Bytes of a batch that lie in this process, copies on several of its devices counted once."""
    return sum(_bytes(array) for array in batch.values())


def _bytes(array: Any) -> int:
    if not hasattr(array, "addressable_shards"):
        return int(getattr(array, "nbytes", 0))
    parts = {str(shard.index): shard.data.nbytes for shard in array.addressable_shards}
    return sum(parts.values())


def trained_tokens(rows: Any, chosen: NDArray[np.int64]) -> int:
    """Targets with loss in the `chosen` rows; transformed rows are read for it, others are not."""
    table = row_table(rows)
    if table is None:
        return sum(_with_loss(rows[row]) for row in chosen.tolist())
    parts = range(0, len(chosen), _ROWS_AT_ONCE)
    return sum(_trained(table, chosen[part : part + _ROWS_AT_ONCE]) for part in parts)


def _with_loss(row: Mapping[str, Any]) -> int:
    """Targets with loss in a row, on both sides where it is a pair."""
    masks = (array for name, array in row.items() if name.endswith("loss_mask"))
    return sum(int(np.count_nonzero(mask)) for mask in masks)


def _trained(table: RowTable, rows: NDArray[np.int64]) -> int:
    found = table.segments(rows)
    trained = int((found.slots - found.lead).sum())
    if edges(table) != "closed":
        return trained
    for number, documents in enumerate(table.documents):
        mine = found.take(np.flatnonzero(found.source == number))
        left = documents.lengths[mine.document].astype(np.int64) - mine.start
        trained -= int(np.count_nonzero(left <= mine.slots))  # no target after the last token
    return trained
