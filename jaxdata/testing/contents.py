"""Rows built the slow way, token by token, to compare with delivered ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxdata.map_datasets.underlying import row_table
from jaxdata.rows.table import Batch, RowTable


def assert_batches_hold_documents(
    batches: Iterable[tuple[Iterable[int], Mapping[str, Any]]], rows: Any
) -> int:
    """Check every slot of every delivered row against the documents.

    Args:
        batches: (row numbers, batch) pairs.
        rows: the result of `pack` or `mix`.

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
    """Build one row from its documents, by the definition of a row."""
    shape = table.section_at(number)
    row: Batch = {
        name: np.zeros(shape.seq_len, bool if name == "loss_mask" else np.int32)
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions")
    }
    found, slot = table.segments(np.array([number])), 0
    fields = (found.source, found.document, found.start, found.slots, found.context)
    for segment, values in enumerate(zip(*(f.tolist() for f in fields), strict=True), 1):
        source, document, start, slots, context = values
        item = table.documents[source][document]
        tokens, mask = item["tokens"], item.get("loss_mask")
        for k in range(slots):
            target = start + k + 1
            row["inputs"][slot] = tokens[target - 1]
            row["segment_ids"][slot] = segment
            row["positions"][slot] = slot if shape.positions == "row" else k
            if target < len(tokens):
                row["targets"][slot] = tokens[target]
                row["loss_mask"][slot] = k >= context and (mask is None or mask[target])
            slot += 1
    return row
