"""A table of rows as a `grain.MapDataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, overload

import grain
import numpy as np

from jaxdata.rows.arrays import assemble
from jaxdata.rows.batch_order import KeyedRows
from jaxdata.rows.epochs import row_number
from jaxdata.rows.table import Batch, Row, RowTable


class KeyedDataset(grain.MapDataset[Batch]):
    """Rows of which some know their place in a batch."""

    @property
    def keyed(self) -> Sequence[KeyedRows]:
        """The rows of each section, whose numbers are those of the dataset; none: none do."""
        return ()


class RowDataset(KeyedDataset):
    """A row table as a `MapDataset` of `Row`s: `len`, `[]`, `.map`, `.batch` … work on it."""

    def __init__(self, table: RowTable) -> None:
        super().__init__()
        self.table = table

    @property
    def keyed(self) -> Sequence[KeyedRows]:
        return [table for _, table in self.table.sections()]

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> grain.MapDataset[Row]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        rows = np.asarray([self._row(index) for index in indices], np.int64)
        sections = self.table.sections()
        section = np.searchsorted([start for start, _ in sections[1:]], rows, side="right")
        found: list[Batch] = [{}] * len(rows)
        for number in set(section.tolist()):
            mine = np.flatnonzero(section == number)
            batch = next(assemble(sections[number][1], [rows[mine]], len(mine)))
            for k, at in enumerate(mine.tolist()):
                found[at] = {name: array[k] for name, array in batch.items()}
        return found

    def _row(self, index: int) -> int:
        """The number of a row; negative indices count from the end, as grain's sources count."""
        return row_number(index, len(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table.in_words})"

    def _repr_html_(self) -> str:
        return self.table.html(repr(self))
