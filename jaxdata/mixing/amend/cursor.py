"""A source's rows in the order a mixture takes them, across repackings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from jaxdata.mixing.amend.remainder import RemainingDocuments, numbers_of
from jaxdata.mixing.recipe import Recipe, size_of
from jaxdata.mixing.timeline import SourceBudget
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.ragged import Ints
from jaxdata.rows.batch_order import Key, joint_key
from jaxdata.rows.counts import TokenCounts
from jaxdata.rows.table import RowTable, Segments


class SourceCursor(RowTable):
    """A source's rows: the repacked remainder of an epoch, then whole epochs.

    Args:
        whole: rows of an epoch.
        remainder: the untrained rest of an epoch, repacked when the packing changed; comes first.
        epoch: the epoch of `whole` that follows it.
        read: epochs read before both.
    """

    def __init__(
        self,
        whole: PackedRows,
        remainder: PackedRows | None = None,
        epoch: int = 0,
        read: Fraction = Fraction(0),
    ) -> None:
        self.whole, self.remainder, self.epoch, self.read = whole, remainder, epoch, read
        self.seq_len, self.positions = whole.seq_len, whole.positions
        self.documents = [*whole.documents, *(() if remainder is None else remainder.documents)]
        self._first = 0 if remainder is None else len(remainder)  # rows of the remainder
        # From the number of a row after the remainder to that of `whole`:
        self._shift = epoch * len(whole) - self._first

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        return self.whole.sources

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; that of its whole epochs."""
        return self.whole.identity()

    def segments(self, rows: Ints) -> Segments:
        if self.remainder is None:
            return self.whole.segments(rows + self._shift)
        early, late = np.flatnonzero(rows < self._first), np.flatnonzero(rows >= self._first)
        remainder = self.remainder.segments(rows[early])
        whole = self.whole.segments(rows[late] + self._shift)
        remainder = replace(remainder, row=early[remainder.row], source=remainder.source + 1)
        return Segments.join([remainder, replace(whole, row=late[whole.row])])

    @property
    def lanes(self) -> int:
        return max(self.whole.lanes, 1 if self.remainder is None else self.remainder.lanes)

    @property
    def lane_cycle(self) -> tuple[int, int] | None:
        return self.whole.lane_cycle if self.remainder is None else None

    def batch_key(self, rows: Ints) -> Key:
        def find(late: int, mine: Ints) -> Key:
            if late or self.remainder is None:
                return self.whole.batch_key(mine + self._shift)
            return self.remainder.batch_key(mine)

        return joint_key(rows >= self._first, rows, find)

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        stop, found = len(self) if rows is None else rows, list[int]()
        if self.remainder is not None:
            remainder = self.remainder.documents[0]
            for number in numbers_of(remainder, document):
                found += self.remainder.rows_with(remainder.name, number)
        last = max(stop + self._shift, 0)
        later = (row - self._shift for row in self.whole.rows_with(name, document, last))
        found += [row for row in later if row >= self._first]
        return sorted({row for row in found if row < stop})

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        before = self.epoch * len(self.whole)
        late = max(rows - self._first, 0)
        found = self.whole.total(before + late) - self.whole.total(before)
        if self.remainder is not None:
            found += self.remainder.total(min(rows, self._first))
        return {self.names[0]: found}

    def epochs(self, rows: int) -> dict[str, Fraction]:
        """See `RowTable`; includes epochs read before."""
        late = max(rows - self._first, 0)
        epochs = self.epoch + Fraction(late, max(len(self.whole), 1))
        if self._first > rows:
            epochs -= (self.epoch - self.read) * Fraction(self._first - rows, self._first)
        return {self.names[0]: epochs}

    def budget(self, name: str, recipe: Recipe, used: int) -> SourceBudget:
        """Rows and density available by a recipe, of which some may be read already."""
        epochs = recipe.epochs_of(name)
        tokens_per_row = self._tokens_per_row(epochs, recipe.weigh_by)
        return SourceBudget(name, self._rows_in(epochs), tokens_per_row, used)

    def _rows_in(self, epochs: Fraction) -> int:
        """Rows available within `epochs` epochs in all."""
        if self.remainder is None:
            return max(math.ceil((epochs - self.epoch) * len(self.whole)), 0)
        part = self.epoch - self.read  # the part of an epoch that the remainder is
        early = min(epochs - self.read, part) / part * self._first
        late = max(epochs - self.epoch, Fraction(0)) * len(self.whole)
        return max(math.ceil(early + late), 0)

    def _tokens_per_row(self, epochs: Fraction, weigh_by: str) -> Fraction:
        """Tokens per row over all rows of `epochs` epochs; 1 if there are none."""
        remainder, late = 0, len(self.whole)
        if self.remainder:
            remainder = size_of(self.remainder, weigh_by)
            late = max(self._rows_in(epochs) - self._first, 0)
        whole = Fraction(size_of(self.whole, weigh_by) * late, max(len(self.whole), 1))
        tokens = remainder + whole
        return tokens / (self._first + late) if tokens else Fraction(1)

    def repacked(self, used: int, whole: PackedRows) -> SourceCursor:
        """The source after `used` of its rows, with the remainder repacked like `whole`."""
        read = self.epochs(used)[self.names[0]]
        if self.remainder and used < self._first:
            table, row, epoch = self.remainder, used, self.epoch
        else:
            table, row = self.whole, used + self._shift
            epoch, within = divmod(row, max(len(self.whole), 1))
            if not within:
                return SourceCursor(whole, epoch=epoch, read=read)
            epoch += 1
        remainder = PackedRows(RemainingDocuments(table, row), whole.settings)
        return SourceCursor(whole, remainder, epoch, read)
