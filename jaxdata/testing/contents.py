"""Rows put together the slow way, token by token, to compare with those that were delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxdata.rows.datasets import row_table
from jaxdata.rows.table import Batch, RowTable, section_at

__all__ = ["assert_batches_hold_documents", "slow_row"]


def assert_batches_hold_documents(
    batches: Iterable[tuple[Iterable[int], Mapping[str, Any]]], rows: Any
) -> int:
    """What was delivered is what the documents say, at every slot of every row.

    Args:
        batches: the row numbers of each batch, and the batch.
        rows: what `pack` or `mix` returned.

    Returns:
        The number of slots compared.
    """
    slots, table = 0, row_table(rows)
    assert table is not None, "expected rows as pack or mix return them"
    for numbers, batch in batches:
        for at, number in enumerate(numbers):
            for name, expected in slow_row(table, number).items():
                found = np.asarray(batch[name][at])
                if not np.array_equal(found, expected):
                    slot = int(np.flatnonzero(found != expected)[0])
                    raise AssertionError(
                        f"row {number}: {name}[{slot}] is {found[slot]}, and {expected[slot]} by "
                        "its documents"
                    )
            slots += len(expected)
    return slots


def slow_row(table: RowTable, number: int) -> Batch:
    """One row from its documents, by the definition of a row and nothing else."""
    shape = section_at(table, number)
    row: Batch = {
        name: np.zeros(shape.seq_len, bool if name == "loss_mask" else np.int32)
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions")
    }
    found, slot = table.segments(np.array([number])), 0
    fields = (found.source, found.document, found.start, found.slots, found.lead)
    for segment, values in enumerate(zip(*(f.tolist() for f in fields), strict=True), 1):
        source, document, start, slots, lead = values
        item = table.documents[source][document]
        tokens, mask = item["tokens"], item.get("loss_mask")
        for k in range(slots):
            target = start + k + 1
            row["inputs"][slot] = tokens[target - 1]
            row["segment_ids"][slot] = segment
            row["positions"][slot] = slot if shape.positions == "row" else k
            if target < len(tokens):
                row["targets"][slot] = tokens[target]
                row["loss_mask"][slot] = k >= lead and (mask is None or mask[target])
            slot += 1
    return row
