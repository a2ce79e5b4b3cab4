"""Rows of one packed source, addressed by index: epochs, blocks, lanes and rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.progress import Advance, progress_bar
from jaxdata.base.ragged import AnyInts, Ints, consecutive
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.packing.block_plan import BlockPlan
from jaxdata.rows.packing.dealing import resolved
from jaxdata.rows.packing.plan_memory import PLANS, Key
from jaxdata.rows.packing.planner import FEW_BLOCKS, Planner
from jaxdata.rows.packing.settings import PackSettings, PackSummary
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import (
    MOST_SLOTS,
    RowTable,
    Segments,
    TokenCounts,
    cyclic_key,
    segment_work,
)
from jaxdata.rows.table import Key as BatchKey

_NO_EPOCH = -1
_DOCUMENTS, _TARGETS = 4_096, 2**22
"""whose masks are read together, about"""
_NEARLY_READ = 0.25
"""share of a block's rows that are left when the next block is planned"""
_OPEN = 1.25  # blocks of a lane whose pages are needed at a time; 1.05 measured in a long run
_CACHED_COUNTS = 64


class _Epoch(NamedTuple):
    """The blocks in the order in which an epoch visits them."""

    order: Ints
    ends: Ints
    """(blocks,) rows up to the end of each"""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.order.nbytes + self.ends.nbytes


class PackedRows(RowTable):
    """Rows of one source, epoch after epoch: row *i* is row `i % n` of epoch `i // n`.

    Documents are assigned to blocks once. Epoch *e* visits the blocks in an order keyed by *e*, and
    the rows of a block in an order keyed by (*e*, block).
    """

    def __init__(
        self, documents: Documents, settings: PackSettings, progress: Advance | None = None
    ) -> None:
        self.documents = (documents,)
        self.settings = settings = resolved(documents, settings)
        self.seq_len, self.positions = settings.seq_len, settings.positions
        self._source, self.planner = documents, Planner(documents, settings)
        self._blocks = self.planner.kept_table(progress)
        self._rows = int(self._blocks.rows.sum())
        self._lanes = Lanes(self._rows, settings.lanes or 1)
        self._token = PLANS.owned_by(self)
        self._counted: dict[int, TokenCounts] = {}
        if self.planner.packed:
            for block in range(self.blocks):
                self._packed_plan(block)

    def __len__(self) -> int:
        return self._rows

    @property
    def in_words(self) -> str:
        return f"{super().in_words}, {self.settings.strategy} of {self._source.name!r}"

    def html(self, title: str) -> str:
        return self.summary.html(title)

    @cached_property
    def summary(self) -> PackSummary:
        """Totals of one epoch."""
        whole = self._in_blocks(slice(None))
        trained, overlap = whole.trained_tokens, whole.overlap_tokens
        return PackSummary(
            documents=len(self._source),
            rows=whole.rows,
            slots=whole.slots,
            trained_tokens=trained,
            overlap_tokens=overlap,
            boundary_tokens=whole.slots - whole.padding - trained - overlap,
            padding=whole.padding,
            dropped_tokens=int(self._blocks.targets.sum()) - trained,
        )

    @cached_property
    def loss_tokens(self) -> int:
        """Targets with loss of one epoch, after stored masks; these may have to be read."""
        known, trained = self.known_loss_tokens, self.summary.trained_tokens
        if known is not None:
            return known
        # Where every target is in a row, the count does not depend on how they are packed.
        keeps_all = STRATEGIES[self.settings.strategy].keeps_all
        key = {"data": self._source.fingerprint} if keeps_all else self.planner.key()
        targets = all_targets(self._source) if keeps_all else self._targets_of_epoch()
        count = partial(_with_loss, self._source, targets, trained)

        def holds(kept: Ints) -> bool:
            return kept.shape == (1,) and 0 <= kept[0] <= trained

        return int(cached_table(self._source, {"counts": "loss_tokens", **key}, count, holds)[0])

    @property
    def known_loss_tokens(self) -> int | None:
        """The same, if no mask must be read to know it; else None."""
        trained = self.summary.trained_tokens
        if not self._source.masked:
            return trained
        keeps_all = STRATEGIES[self.settings.strategy].keeps_all
        stated = self._source.loss_tokens if keeps_all else None
        return stated if isinstance(stated, int) and 0 <= stated <= trained else None

    def _targets_of_epoch(self) -> Iterator[Targets]:
        step = max(1, _TARGETS // self.seq_len)
        for start in range(0, len(self), step):
            yield self.targets(np.arange(start, min(start + step, len(self))))

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        """Itself."""
        return {self._source.name: self}

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        if rows not in self._counted:
            # Every report asks for the counts at the starts of phases.
            self._counted = dict(list(self._counted.items())[-_CACHED_COUNTS:])
            self._counted[rows] = self._count(rows)
        return {self._source.name: self._counted[rows]}

    def epochs(self, rows: int) -> dict[str, Fraction]:
        return {self._source.name: Fraction(rows, max(len(self), 1))}

    def _count(self, rows: int) -> TokenCounts:
        """Add up whole epochs and blocks from the plan, and the rows of one block."""
        epoch, within = divmod(rows, max(len(self), 1))
        blocks, held = self._visited(epoch, within)
        total = self._in_blocks(slice(None)) * epoch
        total += self._in_blocks(blocks[held == self._blocks.rows[blocks]])
        begun = self._positions(epoch, (held > 0) & (held < self._blocks.rows[blocks]))
        if len(seen := begun[self._lanes.visited(begun, within)]):
            total += self._counts_in(self._at_positions(epoch, seen))
        return total

    def _visited(self, epoch: int, within: int) -> tuple[Ints, Ints]:
        """The blocks in the order of an epoch, and how many of its first rows lie in each."""
        order, ends = self._epoch(epoch)
        return order, np.diff(self._lanes.visited_before(np.append(0, ends), within))

    def _positions(self, epoch: int, visits: NDArray[np.bool_]) -> Ints:
        """All positions of some blocks of the order of an epoch."""
        order, ends = self._epoch(epoch)
        rows = self._blocks.rows[order[visits]]
        return consecutive(ends[visits] - rows, rows)

    def _counts_in(self, found: Segments) -> TokenCounts:
        """Totals of rows, from all their segments."""
        rows = len(set(found.row.tolist()))
        slots, context = int(found.slots.sum()), int(found.context.sum())
        last = self._source.lengths[found.document].astype(np.int64) - 1
        # The last target; where a token fills a slot without one, the slot after it does not count.
        ends = (found.start < np.maximum(last, 1)) & (found.start + found.slots >= last)
        return TokenCounts(
            rows=rows,
            begun=int(np.count_nonzero(found.start == 0)),
            slots=rows * self.seq_len,
            trained_tokens=int(self._targets_in(found).sum()),
            overlap_tokens=context,
            padding=rows * self.seq_len - slots,
            finished=int(np.count_nonzero(ends)),
        )

    def _targets_in(self, found: Segments) -> Ints:
        """Targets of each segment that are trained."""
        remaining: Ints = self._source.lengths[found.document].astype(np.int64) - found.start
        return np.minimum(found.slots, remaining - 1) - found.context

    def targets(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """The targets that some rows train: document, first token and number of each range."""
        found = self.segments(rows)
        return found.document, found.start + found.context + 1, self._targets_in(found)

    def _in_blocks(self, chosen: Ints | slice) -> TokenCounts:
        blocks = self._blocks
        rows, filled = int(blocks.rows[chosen].sum()), int(blocks.filled[chosen].sum())
        slots = rows * self.seq_len
        return TokenCounts(
            rows=rows,
            begun=int(blocks.begun[chosen].sum()),
            slots=slots,
            trained_tokens=int(blocks.trained[chosen].sum()),
            overlap_tokens=int(blocks.overlap[chosen].sum()),
            padding=slots - filled,
            finished=int(blocks.finished[chosen].sum()),
        )

    def identity(self) -> dict[str, Any]:
        return identified({self._source.name: self._source}) | self.settings.facts()

    def segments(self, rows: Ints) -> Segments:
        epoch = rows // max(len(self), 1)
        within = rows - epoch * len(self)
        position = self._lanes.position(within) if self.lanes > 1 else within
        return Segments.gather(epoch, lambda e, mine: self._at_positions(e, position[mine]))

    def row_work(self, rows: Ints, window: int = MOST_SLOTS) -> Ints:
        epoch = rows // max(len(self), 1)
        within = rows - epoch * len(self)
        position = self._lanes.position(within) if self.lanes > 1 else within
        found = np.empty(len(rows), np.int64)
        for number in np.unique(epoch).tolist():
            mine = np.flatnonzero(epoch == number)
            found[mine] = self._work_at(number, position[mine], window)
        return found

    def _work_at(self, epoch: int, positions: Ints, window: int) -> Ints:
        """The same of positions of an epoch; of a block it is worked out once and kept."""
        order, ends = self._epoch(epoch)
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

    @property
    def lanes(self) -> int:
        return self._lanes.count

    def batch_key(self, rows: Ints) -> BatchKey:
        return cyclic_key(rows, *self.lane_cycle)

    @property
    def lane_cycle(self) -> tuple[int, int]:
        return max(len(self), 1), self.lanes

    @property
    def open_bytes(self) -> int | None:
        """Of each lane the block that it is in, and of some the next, too."""
        if self.settings.shuffle and not self.settings.chunk_bytes:
            return None
        return int(_OPEN * self.lanes * self.stored_bytes / max(self.blocks, 1))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tokens, and masks, of all documents."""
        tokens = int(self._blocks.targets.sum()) + len(self._source)
        return tokens * (self._source.dtype.itemsize + self._source.masked)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._blocks.rows)

    def block_rows(self, epoch: int, visit: int) -> Ints:
        """The rows of the block that an epoch visits after `visit` others, increasing."""
        visits = np.arange(self.blocks) == visit
        rows = self._lanes.row(self._positions(epoch, visits))
        return epoch * len(self) + np.sort(rows)

    def visits(self, rows: int) -> Ints:
        """The blocks that the first `rows` rows begin: (epoch, visit) each; int64 (visits, 2)."""
        epochs, within = divmod(rows, max(len(self), 1))
        whole = np.indices((epochs, self.blocks)).reshape(2, -1)
        begun = np.flatnonzero(self._visited(epochs, within)[1] > 0)
        return np.concatenate([whole, [np.full_like(begun, epochs), begun]], axis=1).T

    def remaining(self, row: int) -> tuple[Ints, Ints]:
        """What an epoch has left from `row` on.

        Returns:
            The rows that are left of begun blocks, and for each block that was not begun its first
            document in shuffled order and its number of documents; int64 (blocks, 2).
        """
        epoch, within = divmod(row, len(self))
        blocks, held = self._visited(epoch, within)
        untouched = np.sort(blocks[held == 0])
        spans = np.stack([self._blocks.first[untouched], self._blocks.documents[untouched]], axis=1)
        begun = self._positions(epoch, held > 0)
        rest = self._lanes.row(begun[~self._lanes.visited(begun, within)])
        return epoch * len(self) + np.sort(rest), spans

    def _at_positions(self, epoch: int, positions: Ints) -> Segments:
        if not len(positions):
            return Segments.join([])
        placed = np.argsort(positions, kind="stable")
        positions = positions[placed]
        of_epoch = self._epoch(epoch)
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
            first = self._blocks.first[numbers]
            stop = first + self._blocks.documents[numbers]
            spans = list(zip(first.tolist(), stop.tolist(), strict=True))
            asked = [self.planner.order.documents_of(span) for span in spans]
            self._source.fetch_lengths(np.concatenate(asked))

    def _in_block(
        self, epoch: int, of_epoch: _Epoch, visit: int, positions: Ints
    ) -> tuple[AnyInts, ...]:
        """How many segments each of some rows of a block has, and the columns of all."""
        order, ends = of_epoch
        plan, end = self._plan(epoch, int(order[visit])), int(ends[visit])
        if end - positions[-1] < plan.rows * _NEARLY_READ and visit + 1 < len(order):
            PLANS.prepare(*self._planning(epoch, int(order[visit + 1])))
        return plan.segments_of(positions - (end - plan.rows))

    def rows_with(self, _: str, document: int, rows: int | None = None) -> list[int]:
        stop, found = len(self) if rows is None else rows, list[int]()
        for epoch in range(math.ceil(stop / max(len(self), 1))):
            found += self._rows_in_epoch(document, epoch).tolist()
        return [row for row in found if row < stop]

    def _rows_in_epoch(self, document: int, epoch: int) -> Ints:
        position = self.planner.order.position(document)
        block = int(np.searchsorted(self._blocks.first, position, side="right")) - 1
        plan, (order, ends) = self._plan(epoch, block), self._epoch(epoch)
        segments = np.flatnonzero(plan.document == document)
        rows = np.unique(np.searchsorted(plan.row_starts, segments, side="right") - 1)
        first = int(ends[order == block][0]) - plan.rows
        return epoch * len(self) + np.sort(self._lanes.row(first + rows))

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
        few = self.blocks <= FEW_BLOCKS
        return PLANS.get((self._token, _NO_EPOCH, block), pack) if few else pack()

    def _pack_block(self, block: int) -> BlockPlan:
        """Pack a block."""
        first = int(self._blocks.first[block])
        documents, plan = self.planner.plan((first, first + int(self._blocks.documents[block])))
        planned = len(plan.row_starts) - 1, int(plan.slots.sum(dtype=np.int64))
        if planned != (self._blocks.rows[block], self._blocks.filled[block]):
            where = self._source.store.url if self._source.store else ""
            raise DatasetError(
                f"{where}: the lengths of {self._source.name} are not those that were planned: "
                f"jaxdata verify {where} names what is damaged; if nothing is, delete {where}/plans"
            )
        # Plans are cached: 32 bits, where they suffice, halve the memory.
        small = np.int32 if max(len(self._source), int(plan.start.max(initial=0))) < 2**31 else int
        columns = (documents.take(plan.document), plan.start, plan.slots, plan.context)
        return BlockPlan(plan.row_starts, *(each.astype(small, copy=False) for each in columns))

    def _epoch(self, epoch: int) -> _Epoch:
        """The blocks in the order of an epoch, and the rows up to the end of each."""

        def make() -> _Epoch:
            order = self._shuffled(len(self._blocks.rows), "blocks", epoch)
            return _Epoch(order, np.cumsum(self._blocks.rows[order]))

        return PLANS.get((self._token, epoch), make)

    def _shuffled(self, count: int, *names: str | int) -> Ints:
        positions = np.arange(count)
        if not self.settings.shuffle:
            return positions
        key = derive(self.settings.seed, self._source.name, *names)
        return Permutation(count, key)(positions)


Targets = tuple[Ints, Ints, Ints]
"""Ranges of targets: document, first token, number of tokens."""


def all_targets(documents: Documents) -> Iterator[Targets]:
    """Every token of every document but the first, in the order of the documents."""
    for start in range(0, len(documents), _DOCUMENTS):
        numbers = np.arange(start, min(start + _DOCUMENTS, len(documents)))
        counts = np.maximum(documents.lengths[numbers].astype(np.int64) - 1, 0)
        cuts = np.searchsorted(np.cumsum(counts), np.arange(_TARGETS, counts.sum(), _TARGETS))
        for some, targets in zip(np.split(numbers, cuts), np.split(counts, cuts), strict=True):
            yield some, np.ones_like(some), targets


def _with_loss(documents: Documents, targets: Iterator[Targets], total: int) -> Ints:
    """Read the masks of all targets, in order, and count those with loss; int64 (1,)."""
    found = done = 0
    with progress_bar("counting targets with loss") as progress:
        for document, first, count in targets:
            masks = documents.masks(document, first, count).views.join()
            found += int(np.count_nonzero(np.frombuffer(masks, np.uint8)))
            progress(done := done + int(count.sum()), total)
    return np.array([found])
