"""Rows of a packed source, addressed by index: epochs, and the blocks that each of them deals."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import Ints
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.packing.dealing import of_epoch, resolved
from jaxdata.rows.packing.planner import DealtBlocks
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import JoinedRows, RowTable, Segments, TokenCounts, joint, rows_of_epochs

_OPEN = 1.25  # blocks of a lane whose pages are needed at a time; 1.05 measured in a long run
_CACHED_COUNTS = 64
MOST_EPOCHS = 10_000
"""that are dealt anew: each takes a plan"""


@dataclass(frozen=True)
class PackSummary:
    """Totals of one epoch of packed rows; in slots (= tokens), except `documents` and `rows`.

    `slots = trained_tokens + overlap_tokens + boundary_tokens + padding`.
    """

    documents: int
    rows: int
    slots: int
    trained_tokens: int
    """targets with loss, stored masks not counted"""
    overlap_tokens: int
    """slots of masked context"""
    boundary_tokens: int
    """slots without a target: last tokens of documents (`concat`)"""
    padding: int
    dropped_tokens: int
    """targets in no row (`crop`)"""

    @property
    def fill(self) -> float:
        """Share of slots that are not padding."""
        return 1 - self.padding / self.slots if self.slots else 1.0


class PackedRows(RowTable):
    """Rows of one source, epoch after epoch.

    Documents are dealt to blocks once, so that every epoch has the same *n* rows in another order:
    row *i* is row `i % n` of epoch `i // n`. With `reshuffle="documents"` every epoch is dealt and
    packed by a key of its own, and those before the last row that was asked for are planned.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.documents = (documents,)
        self.settings = settings = resolved(documents, settings)
        self.seq_len, self.positions = settings.seq_len, settings.positions
        self.multiple, self._source = settings.multiple, documents
        first = DealtBlocks(documents, of_epoch(settings, documents, 0))
        list(first.plans([*first.planner.packed]))  # which are soon read
        self.epoch_rows = first.rows
        """of the first epoch, and, dealt once, of every one"""
        self._deals, self._counted = {0: first}, dict[int, TokenCounts]()
        self._anew = settings.reshuffle == "documents" and first.rows > 0
        self._starts = np.array([0, first.rows])

    def __len__(self) -> int:
        return self.epoch_rows

    @property
    def in_words(self) -> str:
        return f"{super().in_words}, {self.settings.strategy} of {self._source.name!r}"

    def deal(self, epoch: int) -> DealtBlocks:
        """The blocks of an epoch; dealt and planned if they were not."""
        number = epoch if self._anew else 0
        if number not in self._deals:
            self._check_epoch(number)
            settings = of_epoch(self.settings, self._source, number)
            dealt = DealtBlocks(self._source, settings)
            dealt.planner.packed.clear()
            return self._deals.setdefault(number, dealt)  # another thread found the same
        return self._deals[number]

    def _check_epoch(self, epoch: int) -> None:
        if epoch >= MOST_EPOCHS:
            raise InputError(
                f"epoch {epoch:,} of {self._source.name!r}: with reshuffle='documents' every epoch "
                f"is planned, and at most {MOST_EPOCHS:,}; use reshuffle='rows'"
            )

    def _epoch_starts(self, epoch: int = 0, row: int = -1) -> Ints:
        """(epochs + 1,) where epochs begin, dealt anew: up to an epoch, or the one after a row."""
        starts = self._starts
        # Epochs differ by a few rows.
        self._check_epoch(max(epoch - 1, row // (2 * self.epoch_rows)))
        while len(starts) <= epoch or starts[-1] <= row:
            starts = np.append(starts, starts[-1] + self.deal(len(starts) - 1).rows)
            self._starts = starts
        return starts

    def first_row(self, epoch: int) -> int:
        """The row where an epoch begins."""
        return int(self._epoch_starts(epoch)[epoch]) if self._anew else epoch * self.epoch_rows

    def place(self, rows: Ints) -> tuple[Ints, Ints]:
        """The epoch of each row, and its number there; int64 (rows,) each."""
        if not self._anew:
            return np.divmod(rows, max(self.epoch_rows, 1))
        starts = self._epoch_starts(row=int(rows.max(initial=0)))
        epoch = np.searchsorted(starts, rows, side="right") - 1
        return epoch, rows - starts[epoch]

    def place_of(self, row: int) -> tuple[int, int]:
        """The same of one row, which may be that after the last of an epoch."""
        if not self._anew:
            return divmod(row, max(self.epoch_rows, 1))
        starts = self._epoch_starts(row=row - 1)
        epoch = int(np.searchsorted(starts, row, side="right")) - 1
        return epoch, row - int(starts[epoch])

    def rows_in(self, epochs: Fraction) -> int:
        """Rows of so many epochs; a part of one is rounded up."""
        whole, part = divmod(epochs, 1)
        rows = self.first_row(whole)
        return rows + math.ceil(part * self.deal(whole).rows) if part else rows

    @cached_property
    def summary(self) -> PackSummary:
        """Totals of the first epoch, and, dealt once, of every one."""
        whole = self._deals[0].whole
        trained, overlap = whole.trained_tokens, whole.overlap_tokens
        return PackSummary(
            documents=len(self._source),
            rows=whole.rows,
            slots=whole.slots,
            trained_tokens=trained,
            overlap_tokens=overlap,
            boundary_tokens=whole.slots - whole.padding - trained - overlap,
            padding=whole.padding,
            dropped_tokens=self._deals[0].targets - trained,
        )

    @property
    def sources(self) -> "Mapping[str, PackedRows]":
        """Itself."""
        return {self._source.name: self}

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        if rows not in self._counted:
            # Every report asks for the counts at the starts of phases.
            self._counted = dict(list(self._counted.items())[-_CACHED_COUNTS:])
            self._counted[rows] = self._count(rows)
        return {self._source.name: self._counted[rows]}

    def _count(self, rows: int) -> TokenCounts:
        """Add up whole epochs, and the rows of one."""
        epoch, within = self.place_of(rows)
        if self._anew:
            whole = sum((self.deal(each).whole for each in range(epoch)), TokenCounts())
        else:
            whole = self._deals[0].whole * epoch
        return whole + self.deal(epoch).token_counts(epoch, within) if within else whole

    def epochs(self, rows: int) -> dict[str, Fraction]:
        epoch, within = self.place_of(rows)
        part = Fraction(within, max(self.deal(epoch).rows, 1)) if within else Fraction(0)
        return {self._source.name: epoch + part}

    def identity(self) -> dict[str, Any]:
        return identified({self._source.name: self._source}) | self.settings.facts()

    def segments(self, rows: Ints) -> Segments:
        epoch, within = self.place(rows)
        return Segments.gather(epoch, lambda e, mine: self.deal(e).segments(e, within[mine]))

    def row_work(self, rows: Ints, window: int) -> Ints:
        epoch, within = self.place(rows)
        return joint(epoch, lambda e, mine: self.deal(e).row_work(e, within[mine], window))

    @property
    def lanes(self) -> int:
        return self._deals[0].lanes.count

    def turns(self, rows: Ints) -> Ints:
        return rows if self.lanes == 1 else self.place(rows)[1] % self.lanes

    @property
    def cycle(self) -> tuple[int, int] | None:
        """(rows, lanes) where row *i* has turn `i % rows % lanes`; None where epochs differ."""
        if self.lanes == 1:
            return sys.maxsize, sys.maxsize
        return None if self._anew else (self.epoch_rows or 1, self.lanes)

    @property
    def open_bytes(self) -> int | None:
        """Of each lane the block that it is in, and of some the next, too."""
        if self.settings.shuffle and not self.settings.chunk_bytes:
            return None
        return int(_OPEN * self.lanes * self.stored_bytes / max(self.blocks, 1))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tokens, and masks, of all documents."""
        tokens = self._deals[0].targets + len(self._source)
        return tokens * (self._source.dtype.itemsize + self._source.masked)

    @property
    def blocks(self) -> int:
        """Number of blocks of the first epoch."""
        return len(self._deals[0])

    def remaining(self, row: int) -> tuple[Ints, Ints]:
        """What the epoch of a row has left from there on: see `DealtBlocks.remaining`."""
        epoch, within = self.place_of(row)
        rest, spans = self.deal(epoch).remaining(epoch, within)
        return self.first_row(epoch) + rest, spans

    def repeated(self, epochs: int | None) -> "RepeatedRows":
        """Several epochs, as of a table of their own; None for epochs without end."""
        rows = rows_of_epochs(len(self), epochs)
        return RepeatedRows(self, rows if epochs is None else self.first_row(epochs))

    def rows_with(self, _: str, document: int, rows: int | None = None) -> list[int]:
        stop, found = len(self) if rows is None else rows, list[int]()
        for epoch in range(self.place_of(stop - 1)[0] + 1 if stop else 0):
            mine = self.deal(epoch).rows_with(epoch, document)
            found += (self.first_row(epoch) + mine).tolist()
        return [row for row in found if row < stop]


class RepeatedRows(PackedRows):
    """Several epochs of a packed source, each in its own order; made by `PackedRows.repeated`.

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


class ConcatenatedRows(JoinedRows):
    """Rows of several sources, one source after another; at most `limit`, if given.

    Every epoch has the same rows: row *i* of *n* is row `i % n`.
    """

    def __init__(self, tables: Sequence[PackedRows], limit: int | None = None) -> None:
        self.held: list[PackedRows] = list(tables)
        self.shape = tables[0].shape
        self.documents = [table.documents[0] for table in tables]
        self._ends = np.cumsum([len(table) for table in tables])
        self._begins = np.append(0, self._ends[:-1])
        self._rows = int(self._ends[-1]) if limit is None else min(limit, int(self._ends[-1]))

    def __len__(self) -> int:
        return self._rows

    def located(self, rows: Ints) -> tuple[Ints, Ints]:
        within = rows % max(len(self), 1)
        number = np.searchsorted(self._ends, within, side="right")
        return number, within - self._begins[number]

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        return {table.documents[0].name: table for table in self.held}

    def _before(self, rows: int) -> dict[str, tuple[int, int]]:
        """For each source its first row, and how many of the first `rows` rows it has."""
        begins = self._begins.tolist()
        return {
            name: (first, min(max(rows - first, 0), len(table)))
            for (name, table), first in zip(self.sources.items(), begins, strict=True)
        }

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        return {name: self.sources[name].total(n) for name, (_, n) in self._before(rows).items()}

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        first, count = self._before(len(self) if rows is None else rows)[name]
        return [first + row for row in self.sources[name].rows_with(name, document, count)]

    def identity(self) -> dict[str, Any]:
        facts = self.held[0].identity() | identified({d.name: d for d in self.documents})
        return facts | {"rows": self._rows}
