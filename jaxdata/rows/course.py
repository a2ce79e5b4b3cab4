"""The rows that a mixture takes of one source, whatever they were packed like before."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jaxdata.rows.amounts import Amounts, total
from jaxdata.rows.documents import Documents
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.table import Segments
from jaxdata.rows.unread import UnreadDocuments, numbers_of

__all__ = ["Course"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Course:
    """Rows of a source in the order a mixture takes them.

    Args:
        whole: rows of an epoch.
        rest: what was left of an epoch when the packing was changed; it comes first.
        epoch: of `whole`, the one that follows.
        read: epochs that were read before all this.
    """

    whole: PackedRows
    rest: PackedRows | None = None
    epoch: int = 0
    read: Fraction = Fraction(0)

    @cached_property
    def documents(self) -> list[Documents]:
        """What `Segments.source` counts."""
        return [self.whole.documents[0], *(self.rest.documents if self.rest is not None else [])]

    @property
    def _first(self) -> int:
        """Rows of the rest."""
        return len(self.rest) if self.rest else 0

    def segments(self, rows: Ints) -> Segments:
        """Segments of some of its rows; see `RowTable`."""
        if self.rest is None:
            return self.whole.segments(rows + self.epoch * len(self.whole) if self.epoch else rows)
        early, late = np.flatnonzero(rows < self._first), np.flatnonzero(rows >= self._first)
        rest = self.rest.segments(rows[early])
        whole = self.whole.segments(rows[late] + self._shift)
        return Segments.join(
            [
                replace(rest, row=early[rest.row], source=rest.source + 1),
                replace(whole, row=late[whole.row]),
            ]
        )

    def rows_with(self, document: int, rows: int) -> list[int]:
        """Which of its first `rows` hold a part of a document of the source."""
        found: list[int] = []
        if self.rest is not None:
            for number in numbers_of(self.rest.documents[0], document):
                found += self.rest.rows_with(number, 0).tolist()
        epoch = self.epoch
        while len(self.whole) and epoch * len(self.whole) - self._shift < rows:
            found += (self.whole.rows_with(document, epoch) - self._shift).tolist()
            epoch += 1
        return [row for row in found if row < rows]

    def amounts(self, rows: int) -> Amounts:
        """What its first `rows` amount to."""
        late = max(rows - self._first, 0)
        before = self.epoch * len(self.whole)
        found = total(self.whole, before + late) - total(self.whole, before)
        return found if self.rest is None else found + total(self.rest, min(rows, self._first))

    @property
    def _shift(self) -> int:
        """From one of its rows after the rest to that of `whole`."""
        return self.epoch * len(self.whole) - self._first

    def rows_in(self, epochs: Fraction) -> int:
        """How many of its rows there are until the source was read so often in all."""
        if self.rest is None:
            return max(math.ceil((epochs - self.epoch) * len(self.whole)), 0)
        left = self.epoch - self.read  # the part of an epoch that the rest is
        early = min(epochs - self.read, left) / left * self._first
        late = max(epochs - self.epoch, Fraction(0)) * len(self.whole)
        return max(math.ceil(early + late), 0)

    def epochs_after(self, rows: int) -> Fraction:
        """How often the source was read in all when so many of its rows were."""
        late = max(rows - self._first, 0)
        epochs = self.epoch + Fraction(late, max(len(self.whole), 1))
        if self._first > rows:
            epochs -= (self.epoch - self.read) * Fraction(self._first - rows, self._first)
        return epochs

    def tokens_per_row(self, epochs: Fraction) -> Fraction:
        """Trained tokens a row, over all there are in so many epochs; 1 where there are none."""
        whole, rest = self.whole.summary.trained_tokens, 0
        late = len(self.whole)
        if self.rest:
            rest, late = self.rest.summary.trained_tokens, self.rows_in(epochs) - self._first
        tokens = rest + Fraction(whole * max(late, 0), max(len(self.whole), 1))
        return tokens / (self._first + max(late, 0)) if tokens else Fraction(1)

    def repacked(self, used: int, whole: PackedRows) -> Course:
        """The same source after `used` of its rows, what is left of it packed as `whole` is."""
        read = self.epochs_after(used)
        if self.rest and used < self._first:
            table, row, epoch = self.rest, used, self.epoch
        else:
            table, row = self.whole, used + self._shift
            epoch, within = divmod(row, max(len(self.whole), 1))
            if not within:
                return Course(whole, epoch=epoch, read=read)
            epoch += 1
        rest = PackedRows(UnreadDocuments(table, row), whole.settings)
        return Course(whole, rest, epoch, read)
