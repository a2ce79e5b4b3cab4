"""What the first rows of a table amount to, by source: exact, from lengths alone."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.table import RowTable, Segments

__all__ = ["Amounts", "Counted", "counted", "segment_amounts", "table_names", "total"]


@dataclass(frozen=True)
class Amounts:
    """What some rows hold; in slots (= tokens) but for `rows` and `documents`.

    >>> Amounts(rows=2, slots=8, padding=1) - Amounts(rows=1, slots=4)
    Amounts(rows=1, documents=0, slots=4, trained_tokens=0, overlap_tokens=0, padding=1)
    """

    rows: int = 0
    documents: int = 0
    """documents that begin here; one that is read again counts again"""
    slots: int = 0
    trained_tokens: int = 0
    """targets with loss, stored masks not counted"""
    overlap_tokens: int = 0
    """slots repeated from the window before, without loss"""
    padding: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Amounts) -> Amounts:
        return self + other * -1

    def __mul__(self, times: int) -> Amounts:
        return Amounts(*(times * value for value in astuple(self)))


class Counted(Protocol):
    """A row table that can say what its first rows amount to."""

    def amounts(self, rows: int) -> dict[str, Amounts]:
        """Of each source by name, what it has in the first `rows` rows, any number of epochs.

        Takes as long as planning one block of each source, however many rows there are.
        """
        ...

    def epoch_rows(self) -> dict[str, int]:
        """Rows that each source has in one epoch."""
        ...


def counted(table: Any) -> Counted:
    """The table as one that counts; raises InputError where it is none."""
    if hasattr(table, "amounts"):
        found: Counted = table
        return found
    raise InputError(
        "what these rows amount to is not known: expected rows as pack and mix return them, not "
        "transformed ones"
    )


def total(table: Counted, rows: int) -> Amounts:
    """What all sources of a table have in its first rows, together."""
    return sum(table.amounts(rows).values(), Amounts())


def segment_amounts(found: Segments, lengths: NDArray[Any], seq_len: int) -> Amounts:
    """What whole rows of one source hold, from their segments."""
    rows = len(set(found.row.tolist()))
    slots, lead = int(found.slots.sum()), int(found.lead.sum())
    left = lengths[found.document].astype(np.int64) - found.start
    return Amounts(
        rows=rows,
        documents=int(np.count_nonzero(found.start == 0)),
        slots=rows * seq_len,
        trained_tokens=int(np.minimum(found.slots, left - 1).sum()) - lead,
        overlap_tokens=lead,
        padding=rows * seq_len - slots,
    )


def table_names(table: RowTable) -> list[str]:
    """Names of the sources that `Segments.source` counts."""
    names: list[str] = getattr(table, "names", None) or [each.name for each in table.documents]
    return list(names)
