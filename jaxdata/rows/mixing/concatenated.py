"""Row tables one after another: sources in sequence for evaluation, epochs of one source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxdata.base.ragged import Ints
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable, Segments, TokenCounts


class ConcatenatedRows(RowTable):
    """Rows of several sources, one source after another; at most `limit`, if given.

    Every epoch has the same rows: row *i* of *n* is row `i % n`.
    """

    def __init__(self, tables: Sequence[PackedRows], limit: int | None = None) -> None:
        self._tables = list(tables)
        self.shape = tables[0].shape
        self.documents = [table.documents[0] for table in tables]
        self._ends = np.cumsum([len(table) for table in tables])
        self._rows = int(self._ends[-1]) if limit is None else min(limit, int(self._ends[-1]))

    def __len__(self) -> int:
        return self._rows

    def segments(self, rows: Ints) -> Segments:
        within = rows % max(len(self), 1)

        def find(number: int, mine: Ints | slice) -> Segments:
            table = self._tables[number]
            found = table.segments(within[mine] - (self._ends[number] - len(table)))
            return replace(found, source=np.full_like(found.row, number))

        return Segments.gather(np.searchsorted(self._ends, within, side="right"), find)

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        return {table.documents[0].name: table for table in self._tables}

    def _before(self, rows: int) -> dict[str, tuple[int, int]]:
        """For each source its first row, and how many of the first `rows` rows it has."""
        firsts = np.append(0, self._ends[:-1]).tolist()
        return {
            name: (first, min(max(rows - first, 0), len(table)))
            for (name, table), first in zip(self.sources.items(), firsts, strict=True)
        }

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        return {name: self.sources[name].total(n) for name, (_, n) in self._before(rows).items()}

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        first, count = self._before(len(self) if rows is None else rows)[name]
        return [first + row for row in self.sources[name].rows_with(name, document, count)]

    def identity(self) -> dict[str, Any]:
        facts = self._tables[0].identity() | identified({d.name: d for d in self.documents})
        return facts | {"rows": self._rows}


class RepeatedRows(PackedRows):
    """Several epochs of a packed source, each in its own order.

    Its identity is that of one epoch, so a run can be extended by more repetitions.
    """

    def __init__(self, table: PackedRows, rows: int) -> None:
        vars(self).update(vars(table))
        self._epoch, self._rows = table, rows

    def __len__(self) -> int:
        return self._rows

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        """Its epoch."""
        return self._epoch.sources
