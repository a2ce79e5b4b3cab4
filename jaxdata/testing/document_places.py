"""Which documents lie where: segments in the order of delivery, known from lengths alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import AnyInts, Ints, stable_order
from jaxdata.rows.batch_order import in_batch_order
from jaxdata.rows.table import RowTable, Segments

_STRETCHES = 8
_LANES_MET = 512
"""lanes that all stretches together may meet: each plans blocks of its own"""


@dataclass(frozen=True)
class Placement:
    """Rows of one source in the order in which batches hold them.

    They are `stretches` stretches of consecutive batches, all of the same length. Rows may have no
    segment here: those of other sources.

    Args:
        batch: rows of a batch.
        stretches: stretches of consecutive batches.
        at: (rows,) place of each row in the epoch, 0 to 1.
        counts: (rows,) segments of each row.
        document: (segments,) number of the document in the source.
        length: (segments,) tokens of the document.
        slots: (segments,) slots that the segment fills.
    """

    batch: int
    stretches: int
    at: NDArray[np.float64]
    counts: AnyInts
    document: AnyInts
    length: AnyInts
    slots: AnyInts

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.counts)

    @cached_property
    def row(self) -> Ints:
        """(segments,) the row of each segment, 0, 1, … in the order of delivery."""
        return np.repeat(np.arange(self.rows), self.counts)

    def dealt(self, random: np.random.Generator) -> Self:
        """The same segments dealt to rows as full as before at random, and the rows shuffled.

        A segment that is alone in its row stays alone; the others are laid end to end in random
        order, and each belongs to the row in which its middle comes to lie. Rows are shuffled, as
        what they hold is no mere chance: a long segment leaves little room for others.
        """
        alone = (self.counts == 1)[self.row]
        shared = random.permutation(np.flatnonzero(~alone))
        slots = self.slots[shared]
        middle = 2 * np.cumsum(slots, dtype=np.int64) - slots
        filled = np.bincount(self.row[shared], slots, self.rows).astype(np.int64)
        row = np.searchsorted(2 * np.cumsum(filled), middle, side="right")
        segments = np.append(np.flatnonzero(alone), shared)
        row = self._shuffled_rows(random)[np.append(self.row[alone], row)]
        return self._with(segments[stable_order(row, self.rows)], row)

    def _shuffled_rows(self, random: np.random.Generator) -> Ints:
        """A new number for each row; rows without segments keep theirs."""
        numbers, used = np.arange(self.rows), np.flatnonzero(self.counts)
        numbers[used] = random.permutation(used)
        return numbers

    def _with(self, segments: Ints, row: Ints) -> Self:
        """These segments, in this order, in these rows, in any order."""
        columns = (each[segments] for each in (self.document, self.length, self.slots))
        document, length, slots = columns
        counts = np.bincount(row, minlength=self.rows)
        return replace(self, counts=counts, document=document, length=length, slots=slots)


def placements(table: RowTable, batch: int, most: int) -> Iterator[tuple[str, Placement]]:
    """Where the documents of each source of a table lie in its first epoch.

    Args:
        table: whose rows to look at; no data is read.
        batch: rows of a batch.
        most: segments to look at, about; more rows are sampled, as stretches of whole batches
            spread over the epoch.
    """
    rows, stretches = _sample(table, min(batch, len(table)), most)
    delivered = np.concatenate([in_batch_order(table, each) for each in rows])
    found = table.segments(delivered)
    for number, documents in enumerate(table.documents):
        mine = found.take(np.flatnonzero((found.source == number) & (found.slots > 0)))
        lengths = np.asarray(documents.lengths[mine.document])
        yield documents.name, _placement(mine, lengths, delivered / len(table), batch, stretches)


def _placement(
    found: Segments, lengths: AnyInts, at: NDArray[np.float64], batch: int, stretches: int
) -> Placement:
    counts = np.bincount(found.row, minlength=len(at))
    size = min(batch, len(at))
    return Placement(size, stretches, at, counts, found.document, lengths, found.slots)


def _sample(table: RowTable, batch: int, most: int) -> tuple[list[Ints], int]:
    """The rows of each batch to look at, in order, and how many stretches they form."""
    batches = len(table) // batch
    looked_at = min(batches, max(int(most / _segments_a_row(table)) // batch, 1))
    stretches = 1 if looked_at == batches else max(min(_STRETCHES, _LANES_MET // table.lanes), 2)
    each = max(looked_at // stretches, 1)
    firsts = np.linspace(0, batches - each, min(stretches, looked_at)).astype(np.int64)
    numbers = (firsts[:, None] + np.arange(each)).ravel()
    return [np.arange(n * batch, (n + 1) * batch) for n in numbers.tolist()], len(firsts)


def _segments_a_row(table: RowTable) -> float:
    """By the first rows, which may lie in lanes."""
    few = min(len(table), 64)
    return max(len(table.segments(np.arange(few)).row) / few, 1.0)
