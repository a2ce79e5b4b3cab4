"""The documents of a source, dealt to blocks and packed once: its rows, epoch by epoch.

Epoch *e* visits the blocks in an order keyed by *e*, and the rows of a block in an order keyed by
(*e*, block).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyInts, Ints, consecutive
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.documents import Documents
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.packing.block_plan import BlockPlan
from jaxdata.rows.packing.plan_memory import PLANS, Key
from jaxdata.rows.packing.planner import FEW_BLOCKS, Planner
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import Segments, TokenCounts, segment_work

_NO_EPOCH = -1
_NEARLY_READ = 0.25
"""share of a block's rows that are left when the next block is planned"""


class _Visits(NamedTuple):
    """The blocks in the order in which an epoch visits them."""

    order: Ints
    ends: Ints
    """(blocks,) rows up to the end of each"""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.order.nbytes + self.ends.nbytes


class DealtBlocks:
    """Blocks of a source, and the rows of each; rows are numbered within an epoch.

    Args:
        documents: the source.
        settings: how it is dealt and packed; as `dealing.resolved` gives them.
        progress: told of the blocks that are planned.
    """

    def __init__(
        self, documents: Documents, settings: PackSettings, progress: Advance | None = None
    ) -> None:
        self.settings, self._source = settings, documents
        self.planner = Planner(documents, settings)
        self.table = self.planner.kept_table(progress)
        self.rows = int(self.table.rows.sum())
        """of an epoch"""
        self.lanes = Lanes(self.rows, settings.lanes or 1)
        self._token = PLANS.owned_by(self)

    def __len__(self) -> int:
        return len(self.table.rows)

    def keep_packed(self, *, soon: bool) -> None:
        """Keep the plans of few blocks, packed to be counted, if they are soon read."""
        if soon and self.planner.packed:
            for block in range(len(self)):
                self._packed_plan(block)
        self.planner.packed.clear()

    @cached_property
    def whole(self) -> TokenCounts:
        """Totals of an epoch."""
        return self._in_blocks(slice(None))

    @property
    def targets(self) -> int:
        """Tokens of all documents, without the first of each."""
        return int(self.table.targets.sum())

    def token_counts(self, epoch: int, rows: int) -> TokenCounts:
        """Totals of the first `rows` rows of an epoch: those of whole blocks from the table."""
        blocks, held = self._visited(epoch, rows)
        total = self._in_blocks(blocks[held == self.table.rows[blocks]])
        begun = self._positions(epoch, (held > 0) & (held < self.table.rows[blocks]))
        if len(seen := begun[self.lanes.visited(begun, rows)]):
            total += self._counts_in(self._at_positions(epoch, seen))
        return total

    def _in_blocks(self, chosen: Ints | slice) -> TokenCounts:
        blocks = self.table
        rows, filled = int(blocks.rows[chosen].sum()), int(blocks.filled[chosen].sum())
        slots = rows * self.settings.seq_len
        return TokenCounts(
            rows=rows,
            begun=int(blocks.begun[chosen].sum()),
            slots=slots,
            trained_tokens=int(blocks.trained[chosen].sum()),
            overlap_tokens=int(blocks.overlap[chosen].sum()),
            padding=slots - filled,
            finished=int(blocks.finished[chosen].sum()),
        )

    def _counts_in(self, found: Segments) -> TokenCounts:
        """Totals of rows, from all their segments."""
        rows = len(set(found.row.tolist()))
        filled, context = int(found.slots.sum()), int(found.context.sum())
        last = self._source.lengths[found.document].astype(np.int64) - 1
        # The last target; where a token fills a slot without one, the slot after it does not count.
        ends = (found.start < np.maximum(last, 1)) & (found.start + found.slots >= last)
        slots = rows * self.settings.seq_len
        return TokenCounts(
            rows=rows,
            begun=int(np.count_nonzero(found.start == 0)),
            slots=slots,
            trained_tokens=int(targets_in(self._source, found).sum()),
            overlap_tokens=context,
            padding=slots - filled,
            finished=int(np.count_nonzero(ends)),
        )

    def segments(self, epoch: int, rows: Ints) -> Segments:
        """Segments of some rows of an epoch, in any order."""
        one = self.lanes.count == 1
        return self._at_positions(epoch, rows if one else self.lanes.position(rows))

    def row_work(self, epoch: int, rows: Ints, window: int) -> Ints:
        """The work of some rows of an epoch; that of a block is worked out once and kept."""
        positions = rows if self.lanes.count == 1 else self.lanes.position(rows)
        order, ends = self._visits(epoch)
        visits = np.searchsorted(ends, positions, side="right")
        placed = np.argsort(visits, kind="stable")
        met, first = np.unique(visits[placed], return_index=True)
        self._fetch_lengths(epoch, order[met].tolist())
        found = np.empty(len(positions), np.int64)
        for visit, mine in zip(met.tolist(), np.split(placed, first[1:]), strict=True):
            block = int(order[visit])
            make = partial(self._work_of_block, epoch, block, window)
            work = PLANS.get((self._token, epoch, block, window), make)
            found[mine] = work[positions[mine] - (int(ends[visit]) - len(work))]
        return found

    def _work_of_block(self, epoch: int, block: int, window: int) -> Ints:
        plan = self._plan(epoch, block)
        total = np.append(0, np.cumsum(segment_work(plan.slots, window)))
        return np.diff(total[plan.row_starts])

    def rows_of_block(self, epoch: int, visit: int) -> Ints:
        """The rows of the block that an epoch visits after `visit` others, increasing."""
        visits = np.arange(len(self)) == visit
        return np.sort(self.lanes.row(self._positions(epoch, visits)))

    def visits(self, epoch: int, rows: int) -> Ints:
        """The visits that the first `rows` rows of an epoch begin."""
        return np.flatnonzero(self._visited(epoch, rows)[1] > 0)

    def remaining(self, epoch: int, row: int) -> tuple[Ints, Ints]:
        """What an epoch has left from `row` on.

        Returns:
            The rows that are left of begun blocks, and for each block that was not begun its first
            document in shuffled order and its number of documents; int64 (blocks, 2).
        """
        blocks, held = self._visited(epoch, row)
        untouched = np.sort(blocks[held == 0])
        spans = np.stack([self.table.first[untouched], self.table.documents[untouched]], axis=1)
        begun = self._positions(epoch, held > 0)
        return np.sort(self.lanes.row(begun[~self.lanes.visited(begun, row)])), spans

    def rows_with(self, epoch: int, document: int) -> Ints:
        """The rows of an epoch that hold a part of a document, increasing."""
        position = self.planner.order.position(document)
        block = int(np.searchsorted(self.table.first, position, side="right")) - 1
        plan, (order, ends) = self._plan(epoch, block), self._visits(epoch)
        segments = np.flatnonzero(plan.document == document)
        rows = np.unique(np.searchsorted(plan.row_starts, segments, side="right") - 1)
        first = int(ends[order == block][0]) - plan.rows
        return np.sort(self.lanes.row(first + rows))

    def _visited(self, epoch: int, rows: int) -> tuple[Ints, Ints]:
        """The blocks in the order of an epoch, and how many of its first rows lie in each."""
        order, ends = self._visits(epoch)
        return order, np.diff(self.lanes.visited_before(np.append(0, ends), rows))

    def _positions(self, epoch: int, visits: NDArray[np.bool_]) -> Ints:
        """All positions of some blocks of the order of an epoch."""
        order, ends = self._visits(epoch)
        rows = self.table.rows[order[visits]]
        return consecutive(ends[visits] - rows, rows)

    def _at_positions(self, epoch: int, positions: Ints) -> Segments:
        if not len(positions):
            return Segments.join([])
        placed = np.argsort(positions, kind="stable")
        positions = positions[placed]
        of_epoch = self._visits(epoch)
        visits = np.searchsorted(of_epoch.ends, positions, side="right")
        edges = [0, *(np.flatnonzero(np.diff(visits)) + 1).tolist(), len(visits)]
        blocks = visits[edges[:-1]].tolist()
        self._fetch_lengths(epoch, of_epoch.order[blocks].tolist())
        found = [
            self._in_block(epoch, of_epoch, visit, positions[a:b])
            for visit, (a, b) in zip(blocks, pairwise(edges), strict=True)
        ]
        counts, *columns = (np.concatenate(each) for each in zip(*found, strict=True))
        row = np.repeat(placed, counts)
        segments = Segments(row, np.zeros_like(row), *(each.astype(np.int64) for each in columns))
        ascending = bool((placed[1:] > placed[:-1]).all())
        return segments if ascending else segments.take(np.argsort(row, kind="stable"))

    def _fetch_lengths(self, epoch: int, blocks: list[int]) -> None:
        """Ask for the lengths of all blocks to be planned at once, where they are in a bucket."""
        if not self._source.is_far or len(blocks) == 1:
            return
        numbers = [block for block in blocks if not PLANS.has((self._token, epoch, block))]
        if numbers:
            first = self.table.first[numbers]
            stop = first + self.table.documents[numbers]
            spans = list(zip(first.tolist(), stop.tolist(), strict=True))
            asked = [self.planner.order.documents_of(span) for span in spans]
            self._source.fetch_lengths(np.concatenate(asked))

    def _in_block(
        self, epoch: int, of_epoch: _Visits, visit: int, positions: Ints
    ) -> tuple[AnyInts, ...]:
        """How many segments each of some rows of a block has, and the columns of all."""
        order, ends = of_epoch
        plan, end = self._plan(epoch, int(order[visit])), int(ends[visit])
        if end - positions[-1] < plan.rows * _NEARLY_READ and visit + 1 < len(order):
            PLANS.prepare(*self._planning(epoch, int(order[visit + 1])))
        return plan.segments_of(positions - (end - plan.rows))

    def _plan(self, epoch: int, block: int) -> BlockPlan:
        return PLANS.get(*self._planning(epoch, block))

    def _planning(self, epoch: int, block: int) -> tuple[Key, Callable[[], BlockPlan]]:
        """What a plan is kept by, and how it is made."""
        return (self._token, epoch, block), partial(self._plan_block, epoch, block)

    def _plan_block(self, epoch: int, block: int) -> BlockPlan:
        """The plan of a block, its rows in the order of an epoch."""
        plan = self._packed_plan(block)
        return plan.with_rows(self._shuffled(plan.rows, "rows", epoch, block))

    def _packed_plan(self, block: int) -> BlockPlan:
        """The plan of a block, its rows as they were packed; few may be read in many epochs."""
        pack = partial(self._pack_block, block)
        few = len(self) <= FEW_BLOCKS
        return PLANS.get((self._token, _NO_EPOCH, block), pack) if few else pack()

    def _pack_block(self, block: int) -> BlockPlan:
        """Pack a block."""
        first = int(self.table.first[block])
        documents, plan = self.planner.plan((first, first + int(self.table.documents[block])))
        planned = len(plan.row_starts) - 1, int(plan.slots.sum(dtype=np.int64))
        if planned != (self.table.rows[block], self.table.filled[block]):
            where = self._source.store.url if self._source.store else ""
            raise DatasetError(
                f"{where}: the lengths of {self._source.name} are not those that were planned: "
                f"jaxdata verify {where} names what is damaged; if nothing is, delete {where}/plans"
            )
        # Plans are cached: 32 bits, where they suffice, halve the memory.
        small = np.int32 if max(len(self._source), int(plan.start.max(initial=0))) < 2**31 else int
        columns = (documents.take(plan.document), plan.start, plan.slots, plan.context)
        return BlockPlan(plan.row_starts, *(each.astype(small, copy=False) for each in columns))

    def _visits(self, epoch: int) -> _Visits:
        """The blocks in the order of an epoch, and the rows up to the end of each."""

        def make() -> _Visits:
            order = self._shuffled(len(self), "blocks", epoch)
            return _Visits(order, np.cumsum(self.table.rows[order]))

        return PLANS.get((self._token, epoch), make)

    def _shuffled(self, count: int, *names: str | int) -> Ints:
        positions = np.arange(count)
        if not self.settings.shuffle:
            return positions
        key = derive(self.settings.seed, self._source.name, *names)
        return Permutation(count, key)(positions)


def targets_in(documents: Documents, found: Segments) -> Ints:
    """Targets of each segment that are trained; stored masks are not counted."""
    remaining: Ints = documents.lengths[found.document].astype(np.int64) - found.start
    return np.minimum(found.slots, remaining - 1) - found.context
