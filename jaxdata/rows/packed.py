"""Rows of one packed source, addressed by index: epochs, blocks and rows are all arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from typing import Any
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from jaxdata.progress import Advance
from jaxdata.rows.amounts import Amounts, segment_amounts
from jaxdata.rows.blocks import Blocks, cached
from jaxdata.rows.documents import Documents
from jaxdata.rows.planner import Planner
from jaxdata.rows.plans import BlockPlan
from jaxdata.rows.settings import PackSettings, PackSummary
from jaxdata.rows.table import Segments
from jaxdata.rows.windows import consecutive
from jaxdata.seeds import Permutation, derive

__all__ = ["PackedRows"]

Ints = NDArray[np.int64]
_PLANS_KEPT = 2
_AMOUNTS_KEPT = 64  # a report asks for where the phases begin, every time


class PackedRows:
    """The row table of one source (see `RowTable`).

    Documents are dealt to blocks once. Epoch *e* visits the blocks in an order keyed by *e*, and
    the rows of a block in an order keyed by (*e*, block).
    """

    def __init__(
        self, documents: Documents, settings: PackSettings, progress: Advance | None = None
    ) -> None:
        self.documents = (documents,)
        self.settings = settings
        self.seq_len, self.positions = settings.seq_len, settings.positions
        self._source, self.planner = documents, Planner(documents, settings)
        table = partial(self.planner.table, progress)
        self._blocks = Blocks(*cached(documents.store, self.planner.key(), table).T)
        self._rows = int(self._blocks.rows.sum())
        self._make_caches()

    def _make_caches(self) -> None:
        self._plan: Callable[[int], BlockPlan] = _kept(self._plan_block, _PLANS_KEPT)
        self._rows_of: Callable[[int, int], Ints] = _kept(self._row_order, _PLANS_KEPT)
        self._epoch: Callable[[int], tuple[Ints, Ints]] = _kept(self._epoch_order, 2)
        self._amounts: Callable[[int], Amounts] = _kept(self._count, _AMOUNTS_KEPT)

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_plan", "_rows_of", "_epoch", "_amounts")
        return {name: value for name, value in vars(self).items() if name not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_caches()

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def summary(self) -> PackSummary:
        """What one epoch amounts to."""
        blocks, slots = self._blocks, len(self) * self.seq_len
        trained, overlap = int(blocks.trained.sum()), int(blocks.overlap.sum())
        filled = int(blocks.filled.sum())
        return PackSummary(
            documents=len(self._source),
            rows=len(self),
            slots=slots,
            trained_tokens=trained,
            overlap_tokens=overlap,
            boundary_tokens=filled - trained - overlap,
            padding=slots - filled,
            dropped_tokens=int(blocks.targets.sum()) - trained,
        )

    def amounts(self, rows: int) -> dict[str, Amounts]:
        """See `Counted`."""
        return {self._source.name: self._amounts(rows)}

    def epoch_rows(self) -> dict[str, int]:
        """See `Counted`."""
        return {self._source.name: len(self)}

    def _count(self, rows: int) -> Amounts:
        """Whole epochs and blocks from the plan, and of one block its rows."""
        epoch, within = divmod(rows, max(len(self), 1))
        order, ends = self._epoch(epoch)
        visit = int(np.searchsorted(ends, within, side="right"))
        total = self._in_blocks(slice(None)) * epoch + self._in_blocks(order[:visit])
        before = int(ends[visit - 1]) if visit else 0
        if within > before:
            rest = np.arange(epoch * len(self) + before, rows)
            total += segment_amounts(self.segments(rest), self._source.lengths, self.seq_len)
        return total

    def _in_blocks(self, chosen: Ints | slice) -> Amounts:
        rows, begun, trained, overlap, filled = (
            int(column[chosen].sum())
            for column in (
                self._blocks.rows,
                self._blocks.begun,
                self._blocks.trained,
                self._blocks.overlap,
                self._blocks.filled,
            )
        )
        slots = rows * self.seq_len
        return Amounts(rows, begun, slots, trained, overlap, slots - filled)

    def identity(self) -> dict[str, Any]:
        """See `RowTable`."""
        data = {self._source.name: self._source.fingerprint[:8]}
        return {"data": data, **asdict(self.settings)}

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`; row *i* beyond the first epoch is row `i % n` of epoch `i // n`."""
        epoch = rows // max(len(self), 1)
        within = rows - epoch * len(self)
        places = np.arange(len(rows))
        return Segments.join(
            [
                self._epoch_segments(number, places[mine], within[mine])
                for number, mine in _groups(epoch)
            ]
        )

    def unread_blocks(self, row: int) -> tuple[int, Ints]:
        """What an epoch has left at a row: whole blocks, and the row from there on that they begin.

        Of each block the first document, in the order of dealing, and how many; int64 (blocks, 2).
        """
        epoch, within = divmod(row, len(self))
        order, ends = self._epoch(epoch)
        begins = ends - self._blocks.rows[order]
        visit = int(np.searchsorted(begins, within))
        following = int(begins[visit]) if visit < len(order) else len(self)
        blocks = np.sort(order[visit:])
        spans = np.stack([self._blocks.first[blocks], self._blocks.documents[blocks]], axis=1)
        return epoch * len(self) + following, spans

    def _epoch_segments(self, epoch: int, row: Ints, within: Ints) -> Segments:
        order, ends = self._epoch(epoch)
        visit = np.searchsorted(ends, within, side="right")
        return Segments.join(
            [
                self._block_segments(epoch, block, row[mine], within[mine] - first)
                for number, mine in _groups(visit)
                for block in [int(order[number])]
                for first in [ends[number] - self._blocks.rows[block]]
            ]
        )

    def _block_segments(self, epoch: int, block: int, row: Ints, place: Ints) -> Segments:
        plan = self._plan(block)
        planned = self._rows_of(epoch, block)[place]
        first = plan.row_starts[planned]
        counts = plan.row_starts[planned + 1] - first
        at = consecutive(first, counts)
        columns = (plan.document, plan.start, plan.slots, plan.lead)
        # None is outside, and mode "raise" takes twice as long.
        taken = (column.take(at, mode="clip").astype(np.int64) for column in columns)
        return Segments(np.repeat(row, counts), np.zeros_like(at), *taken)

    def rows_with(self, document: int, epoch: int) -> Ints:
        """Rows of an epoch that hold a part of a document, increasing."""
        place = self.planner.place(document)
        block = int(np.searchsorted(self._blocks.first, place, side="right")) - 1
        plan, (order, ends) = self._plan(block), self._epoch(epoch)
        segments = np.flatnonzero(plan.document == document)
        planned = np.searchsorted(plan.row_starts, segments, side="right") - 1
        first = int(ends[order == block][0] - self._blocks.rows[block])
        places = np.flatnonzero(np.isin(self._rows_of(epoch, block), planned))
        return epoch * len(self) + first + places

    def _plan_block(self, block: int) -> BlockPlan:
        first = int(self._blocks.first[block])
        documents, plan = self.planner.plan((first, first + int(self._blocks.documents[block])))
        # A plan is kept: half the memory where 32 bits hold its numbers.
        small = np.int32 if max(len(self._source), int(plan.start.max(initial=0))) < 2**31 else int
        columns = (documents.take(plan.document), plan.start, plan.slots, plan.lead)
        return BlockPlan(plan.row_starts, *(column.astype(small, copy=False) for column in columns))

    def _epoch_order(self, epoch: int) -> tuple[Ints, Ints]:
        """The blocks in this epoch's order, and the rows up to the end of each."""
        order = self._shuffled(len(self._blocks.rows), "blocks", epoch)
        return order, np.cumsum(self._blocks.rows[order])

    def _row_order(self, epoch: int, block: int) -> Ints:
        return self._shuffled(int(self._blocks.rows[block]), "rows", epoch, block)

    def _shuffled(self, count: int, *names: str | int) -> Ints:
        places = np.arange(count)
        if not self.settings.shuffle:
            return places
        key = derive(self.settings.seed, self._source.name, *names)
        return Permutation(count, key)(places)


def _kept(method: Callable[..., Any], most: int) -> Callable[..., Any]:
    """A method whose last answers are kept, without a cycle that keeps the object itself."""
    weak = WeakMethod(method)
    return lru_cache(most)(lambda *args: weak()(*args))  # type: ignore[misc]


def _groups(numbers: Ints) -> list[tuple[int, Ints | slice]]:
    """Each different number, and where it stands."""
    if len(numbers) and numbers.min() == numbers.max():  # as a rule
        return [(int(numbers[0]), slice(None))]
    different = set(numbers.tolist())
    return [(number, np.flatnonzero(numbers == number)) for number in sorted(different)]
