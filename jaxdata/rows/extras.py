"""Which source and document each slot of a batch comes from: for loss by source, on request.

Worked out beside the batch, from the same segments: a loader that was not asked for it does
nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.assembly import assemble
from jaxdata.rows.compact import compact
from jaxdata.rows.table import Batch, Ints, RowTable, Segments, edges, origins

__all__ = ["EXTRAS", "assemble_with", "check_extras", "compact_with", "extra_dtype"]

EXTRAS = ("source", "document")
_MOST_IN_32_BITS = 2**31


def check_extras(given: Any, table: RowTable | None) -> tuple[str, ...]:
    """`extras` as a user gives it, some of `EXTRAS`; refused for transformed rows (None)."""
    extras = (given,) if isinstance(given, str) else tuple(given)
    unknown = [name for name in extras if name not in EXTRAS]
    if unknown or len(set(extras)) < len(extras):
        raise InputError(f"extras={given!r}: expected some of {EXTRAS}, each once")
    if extras and table is None:
        raise InputError(
            f"extras={given!r} take rows as pack and mix return them; these were transformed: "
            "apply the function to the batches that the loader gives"
        )
    return extras


def extra_dtype(table: RowTable, name: str) -> type[np.int32 | np.int64]:
    """int32, but for document ids where a source has more than 2^31 of them."""
    most = max((len(documents) for documents in table.documents), default=0)
    return np.int64 if name == "document" and most > _MOST_IN_32_BITS else np.int32


def assemble_with(
    extras: Sequence[str], table: RowTable, batches: Sequence[Ints], batch_size: int
) -> Iterator[Batch]:
    """What `assemble` yields, and each of `extras`: (batch_size, seq_len), -1 in padding."""
    laid_out = assemble(table, batches, batch_size)
    for batch, (found, _) in zip(laid_out, _segments(table, batches), strict=True):
        filled = np.bincount(found.row, found.slots, minlength=batch_size).astype(np.int64)
        # Every row ends with a run of padding, which may be empty.
        ends = np.searchsorted(found.row, np.arange(batch_size), side="right")
        runs = np.insert(found.slots, ends, table.seq_len - filled)
        for name in extras:
            values = np.insert(getattr(found, name).astype(extra_dtype(table, name)), ends, -1)
            batch[name] = np.repeat(values, runs).reshape(batch_size, table.seq_len)
        yield batch


def compact_with(
    extras: Sequence[str], table: RowTable, batches: Sequence[Ints], batch_size: int
) -> Iterator[Batch]:
    """What `compact` yields, and each of `extras` of every segment: (batch_size, segments)."""
    if edges(table) == "open":
        raise InputError(
            f"extras={tuple(extras)} with expand='device': rows of this order are one segment "
            "each, whatever documents are in them; use expand='host'"
        )
    compacted = compact(table, batches, batch_size)
    for batch, (found, number) in zip(compacted, _segments(table, batches), strict=True):
        for name in extras:
            batch[name] = np.full(batch["slots"].shape, -1, extra_dtype(table, name))
            batch[name][found.row, number] = getattr(found, name)
        yield batch


def _segments(table: RowTable, batches: Sequence[Ints]) -> Iterator[tuple[Segments, NDArray[Any]]]:
    """The segments of each batch, and the number of each in its row; looked up together."""
    found = origins(table, table.segments(np.concatenate(batches)))
    found = found.take(np.flatnonzero(found.slots))
    number = np.arange(len(found.row)) - np.searchsorted(found.row, found.row)
    first = np.cumsum([0, *map(len, batches)])
    cuts = np.searchsorted(found.row, first).tolist()
    for row, here in zip(first.tolist(), map(slice, cuts[:-1], cuts[1:]), strict=False):
        part = found.take(here)
        yield replace(part, row=part.row - row), number[here]
