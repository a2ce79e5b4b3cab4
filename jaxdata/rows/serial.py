"""Row tables in a line: sources one after the other for evaluation, epochs of one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.amounts import Amounts, counted, total
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.table import RowTable, Segments

__all__ = ["RepeatedRows", "SerialRows"]

Ints = NDArray[np.int64]


class SerialRows:
    """The row table of sources in a line (see `RowTable`), cut after `limit` rows.

    Args:
        tables: packed rows, as a rule unshuffled.
        limit: most rows; None for all.
    """

    def __init__(self, tables: Sequence[PackedRows], limit: int | None = None) -> None:
        self._tables = list(tables)
        self.seq_len, self.positions = tables[0].seq_len, tables[0].positions
        self.documents = [table.documents[0] for table in tables]
        self._ends = np.cumsum([len(table) for table in tables])
        self._rows = int(self._ends[-1]) if limit is None else min(limit, int(self._ends[-1]))

    def __len__(self) -> int:
        return self._rows

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`."""
        source = np.searchsorted(self._ends, rows, side="right")
        parts = []
        for number in np.unique(source).tolist():
            mine, table = np.flatnonzero(source == number), self._tables[number]
            found = table.segments(rows[mine] - (self._ends[number] - len(table)))
            origin = np.full(len(found.row), number, np.int64)
            parts.append(replace(found, row=mine[found.row], source=origin))
        return Segments.join(parts)

    def amounts(self, rows: int) -> dict[str, Amounts]:
        """See `Counted`."""
        before = np.append(0, self._ends[:-1]).tolist()
        parts = zip(self._tables, before, strict=True)
        return {
            table.documents[0].name: total(table, min(max(rows - first, 0), len(table)))
            for table, first in parts
        }

    def epoch_rows(self) -> dict[str, int]:
        """See `Counted`."""
        return {table.documents[0].name: len(table) for table in self._tables}

    def identity(self) -> dict[str, Any]:
        """See `RowTable`."""
        facts = self._tables[0].identity()
        data = {d.name: d.fingerprint[:8] for d in self.documents}
        return {**facts, "data": data, "rows": self._rows}


class RepeatedRows:
    """Several epochs of a row table (see `RowTable`), each in its own order.

    Its identity is that of one epoch: a run may be prolonged by repeating more often.
    """

    def __init__(self, table: RowTable, rows: int) -> None:
        self._table, self._rows = table, rows
        self.seq_len, self.positions = table.seq_len, table.positions
        self.documents = table.documents
        self.segments, self.identity = table.segments, table.identity
        self.amounts, self.epoch_rows = counted(table).amounts, counted(table).epoch_rows

    def __len__(self) -> int:
        return self._rows
