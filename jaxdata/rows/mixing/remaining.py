"""What remains of a source: the untrained part of an epoch, and the rows that follow on it.

Where an amendment packs a source in another way, what remains of its epoch is repacked; a cursor
finds the rows of the source across repackings, and says how many a recipe lets it give.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdata.base.errors import digest
from jaxdata.base.ragged import Ints
from jaxdata.dataset.documents import DerivedDocuments, Documents
from jaxdata.rows.mixing.phases import Recipe
from jaxdata.rows.mixing.timeline import SourceBudget
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import Segments, TokenCounts


class RemainingDocuments(DerivedDocuments):
    """The untrained part of an epoch, from row `first` on (see `Documents`).

    Each is a range of tokens of a document: its first token is context, the others are targets
    that were not trained before. The ranges in the rest of a begun block come first, then whole
    documents of the other blocks, which are located on demand and take no memory.
    """

    def __init__(self, rows: PackedRows, first: int) -> None:
        super().__init__(rows.documents[0])
        rest, spans = rows.remaining(first)
        drops_rest = not STRATEGIES[rows.settings.strategy].keeps_all
        self._ranges = _ranges(rows.segments(rest), self.source, drops_rest)
        planner = rows.deal(rows.place_of(first)[0]).planner
        self._order, self._first = planner.order, spans[:, 0]
        self._ends = np.cumsum(spans[:, 1]) + len(self._ranges)
        self._begins = self._ends - spans[:, 1]
        self.name = f"{self.source.name}@{first}"
        # Lanes decide which rows come before `first`.
        self.fingerprint = digest({**planner.key(), "first": first, "lanes": rows.lanes})
        self.lengths: Any = _Lengths(self)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else len(self._ranges)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """The documents of the source, and the tokens `[start, stop)` of them."""
        found = np.zeros((3, len(numbers)), np.int64)
        begun = np.flatnonzero(numbers < len(self._ranges))
        found[:, begun] = self._ranges[numbers[begun]].T
        later = np.flatnonzero(numbers >= len(self._ranges))
        block = np.searchsorted(self._ends, numbers[later], side="right")
        positions = self._first[block] + numbers[later] - self._begins[block]
        found[0, later] = self._order.documents_at(positions)
        found[2, later] = self.source.lengths[found[0, later]]
        return found[0], found[1], found[2]

    def in_source(self, documents: Ints, starts: Ints) -> tuple[Ints, Ints]:
        document, start, _ = self.locate(documents)
        return document, start + starts

    def ranges_of(self, document: int) -> list[int]:
        """The ranges of a document of the source."""
        begun = np.flatnonzero(self._ranges[:, 0] == document).tolist()
        position = self._order.position(document)
        block = int(np.searchsorted(self._first, position, side="right")) - 1
        if block >= 0:
            number = int(self._begins[block]) + position - int(self._first[block])
            begun += [number] if number < self._ends[block] else []
        return begun


class _Lengths:
    """`lengths[numbers]` and `np.asarray(lengths)` of an array that is computed on demand."""

    def __init__(self, documents: RemainingDocuments) -> None:
        self.source = documents

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, numbers: ArrayLike) -> NDArray[np.uint32]:
        given = np.asarray(numbers)
        _, start, stop = self.source.locate(given.reshape(-1).astype(np.int64))
        return (stop - start).astype(np.uint32).reshape(given.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or np.uint32, copy=bool(copy))


def numbers_of(documents: Documents, number: int) -> list[int]:
    """All remaining ranges of a document of the source, however often it was repacked."""
    if not isinstance(documents, RemainingDocuments):
        return [number]
    inner = numbers_of(documents.source, number)
    return [each for one in inner for each in documents.ranges_of(one)]


def _ranges(segments: Segments, documents: Documents, drops_rest: bool) -> Ints:
    """(ranges, 3): document, start and stop of untrained tokens; adjacent segments are merged."""
    lengths = documents.lengths[segments.document].astype(np.int64)
    start = segments.start + segments.context
    stop = lengths if drops_rest else np.minimum(segments.start + segments.slots + 1, lengths)
    order = np.lexsort((start, segments.document))
    order = order[start[order] + 1 < stop[order]]
    document, start, stop = segments.document[order], start[order], stop[order]
    goes_on = (document[1:] == document[:-1]) & (start[1:] == stop[:-1] - 1)
    first = np.append(0, np.flatnonzero(~goes_on) + 1)[: len(order)]
    last = np.append(first[1:], len(order))[: len(first)] - 1
    return np.stack([document[first], start[first], stop[last]], axis=1)


class SourceCursor:
    """A source's rows: the repacked remainder of an epoch, if there is one, then whole epochs.

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
        self.tables = [whole] if remainder is None else [whole, remainder]
        self.first = 0 if remainder is None else len(remainder)
        """rows of the remainder"""
        self.shift = whole.first_row(epoch) - self.first
        """from the number of a row after the remainder to that of `whole`"""

    def rows_with(self, document: int, rows: int) -> list[int]:
        """Rows that hold a part of a document of the source, of the first `rows`; increasing."""
        found = list[int]()
        if self.remainder is not None:
            remainder = self.remainder.documents[0]
            for number in numbers_of(remainder, document):
                found += self.remainder.rows_with(remainder.name, number)
        last = max(rows + self.shift, 0)
        later = self.whole.rows_with(self.whole.names[0], document, last)
        found += [row - self.shift for row in later if row >= self.first + self.shift]
        return sorted({row for row in found if row < rows})

    def total(self, rows: int) -> TokenCounts:
        """Totals of the first `rows` rows."""
        before = self.whole.first_row(self.epoch)
        late = max(rows - self.first, 0)
        found = self.whole.total(before + late) - self.whole.total(before)
        if self.remainder is not None:
            found += self.remainder.total(min(rows, self.first))
        return found

    def epochs(self, rows: int) -> Fraction:
        """Epochs that were read after `rows` rows; includes those read before."""
        if rows < self.first:
            return self.read + (self.epoch - self.read) * Fraction(rows, self.first)
        (found,) = self.whole.epochs(rows + self.shift).values()
        return found

    def budget(self, name: str, recipe: Recipe, used: int) -> SourceBudget:
        """Rows and density available by a recipe, of which some may be read already."""
        available = self._rows_in(recipe.epochs_of(name))
        # Tokens of all these rows; of a row where there are none, 1.
        remainder, late = 0, len(self.whole)
        if self.remainder:
            remainder = self.remainder.summary.trained_tokens
            late = max(available - self.first, 0)
        whole = Fraction(self.whole.summary.trained_tokens * late, max(len(self.whole), 1))
        tokens = remainder + whole
        density = tokens / (self.first + late) if tokens else Fraction(1)
        return SourceBudget(name, available, density, used)

    def _rows_in(self, epochs: Fraction) -> int:
        """Rows available within `epochs` epochs in all."""
        if epochs > self.epoch or self.remainder is None:
            return max(self.whole.rows_in(epochs) - self.shift, 0)
        part = self.epoch - self.read  # the part of an epoch that the remainder is
        return max(math.ceil((epochs - self.read) / part * self.first), 0)

    def repacked(self, used: int, whole: PackedRows) -> "SourceCursor":
        """The source after `used` of its rows, with the remainder repacked like `whole`."""
        if self.remainder and used < self.first:
            table, row, epoch = self.remainder, used, self.epoch
        else:
            table, row = self.whole, used + self.shift
            epoch, within = self.whole.place_of(row)
            if not within:
                return SourceCursor(whole, epoch=epoch, read=self.epochs(used))
            epoch += 1
        remainder = PackedRows(RemainingDocuments(table, row), whole.settings)
        return SourceCursor(whole, remainder, epoch, self.epochs(used))
