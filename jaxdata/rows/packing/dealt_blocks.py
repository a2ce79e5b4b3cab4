"""The documents of a source, dealt to blocks and packed once: its rows, epoch by epoch.

Epoch *e* visits the blocks in an order keyed by *e*, and the rows of a block in an order keyed by
(*e*, block). Plans are kept in memory as long as there is room.
"""

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import forget_in_forks
from jaxdata.base.ragged import Bools, Ints, consecutive
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.documents import Documents
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize
from jaxdata.rows.packing.planner import Planner
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import Segments, TokenCounts, segment_work

_LEAST_BYTES = 2**29
_SHARE = 1 / 8
"""of the machine's memory, or of the part of it that the process may use"""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""of a container: control groups, versions 2 and 1"""
_TOGETHER = 16
"""blocks that are planned in one go"""
Key = tuple[Any, ...]
T = TypeVar("T")


class PlanMemory:
    """Values with `nbytes`, by key; beyond `most` bytes, those used longest ago are dropped.

    A key begins with the token of its owner. Several threads may use it.
    """

    def __init__(self, most: int) -> None:
        self.most, self.nbytes = most, 0
        self._held: OrderedDict[Key, Any] = OrderedDict()
        self._gone: deque[str] = deque()
        self.forget()
        forget_in_forks(self)

    def forget(self) -> None:
        """Wait for no other thread: in a forked copy there is none."""
        self._lock = threading.Lock()
        self.nbytes = sum(value.nbytes for value in self._held.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def get(self, key: Key, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]  # type: ignore[no-any-return]
        value = make()
        with self._lock:
            gone = {self._gone.popleft() for _ in range(len(self._gone))}
            for old in [old for old in self._held if old[0] in gone] if gone else ():
                self.nbytes -= self._held.pop(old).nbytes
            if key not in self._held:  # else another thread made it, too
                self._held[key] = value
                self.nbytes += value.nbytes  # type: ignore[attr-defined]
            while self.nbytes > self.most and len(self._held) > 1:
                self.nbytes -= self._held.popitem(last=False)[1].nbytes
        return value

    def owned_by(self, owner: Any) -> str:
        """A token that begins the keys of `owner`; what it had goes with the next that is kept."""
        token = token_hex(8)
        # The garbage collector calls it at any time, also in a thread that holds the lock.
        weakref.finalize(owner, self._gone.append, token).atexit = False
        return token


def _memory() -> int:
    """Bytes of memory that this process may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(Path(limit).read_text()))
    return min(found)


PLANS = PlanMemory(max(_LEAST_BYTES, int(_memory() * _SHARE)))


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

    A *position* is a place in block order: see `Lanes`.

    Args:
        documents: the source.
        settings: how it is dealt and packed; as `dealing.resolved` gives them.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.settings, self._source = settings, documents
        self.planner = Planner(documents, settings)
        self.table = self.planner.kept_table()
        self.rows = int(self.table.rows.sum())
        """of an epoch"""
        self.lanes = Lanes(self.rows, settings.lanes or 1)
        self._token = PLANS.owned_by(self)

    def __len__(self) -> int:
        return len(self.table.rows)

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
        return self._counts(BlockSize(*(int(each[chosen].sum()) for each in self.table[3:])))

    def _counts_in(self, found: Segments) -> TokenCounts:
        """Totals of rows, from all their segments."""
        last = self._source.lengths[found.document].astype(np.int64) - 1
        # The last target; where a token fills a slot without one, the slot after it does not count.
        ends = (found.start < np.maximum(last, 1)) & (found.start + found.slots >= last)
        size = BlockSize(
            rows=len(set(found.row.tolist())),
            filled=int(found.slots.sum()),
            trained=int(targets_in(self._source, found).sum()),
            overlap=int(found.context.sum()),
            begun=int(np.count_nonzero(found.start == 0)),
            finished=int(np.count_nonzero(ends)),
        )
        return self._counts(size)

    def _counts(self, size: BlockSize) -> TokenCounts:
        slots = size.rows * self.settings.seq_len
        return TokenCounts(
            rows=size.rows,
            begun=size.begun,
            slots=slots,
            trained_tokens=size.trained,
            overlap_tokens=size.overlap,
            padding=slots - size.filled,
            finished=size.finished,
        )

    def segments(self, epoch: int, rows: Ints) -> Segments:
        """Segments of some rows of an epoch, in any order."""
        return self._at_positions(epoch, self.lanes.position(rows))

    def _at_positions(self, epoch: int, positions: Ints) -> Segments:
        if not len(positions):
            return Segments.join([])
        parts = list(self._blocks_of(epoch, positions))
        placed = np.concatenate([mine for _, _, mine in parts])
        plans = self.plans([block for block, _, _ in parts])
        found = (plan.segments_of(rows) for plan, (_, rows, _) in zip(plans, parts, strict=True))
        counts, *columns = map(np.concatenate, zip(*found, strict=True))
        row = np.repeat(placed, counts)
        segments = Segments(row, np.zeros_like(row), *(each.astype(np.int64) for each in columns))
        ascending = bool((placed[1:] > placed[:-1]).all())
        return segments if ascending else segments.take(np.argsort(row, kind="stable"))

    def row_work(self, epoch: int, rows: Ints, window: int) -> Ints:
        """See `RowTable.row_work`; that of a block is worked out once and kept."""
        found = np.empty(len(rows), np.int64)
        parts = list(self._blocks_of(epoch, self.lanes.position(rows)))
        blocks = [block for block, _, _ in parts]
        unknown = [each for each in blocks if (self._token, "work", each, window) not in PLANS]
        for block, plan in zip(unknown, self.plans(unknown), strict=True):
            self._work(block, window, plan)
        for block, chosen, mine in parts:
            found[mine] = self._work(block, window)[chosen]
        return found

    def _work(self, block: int, window: int, plan: BlockPlan | None = None) -> Ints:
        """The work of the rows of a block as packed, whose plan may be known."""

        def work() -> Ints:
            (known,) = [plan] if plan else self.plans([block])
            total = np.append(0, np.cumsum(segment_work(known.slots, window)))
            return np.diff(total[known.row_starts])

        return PLANS.get((self._token, "work", block, window), work)

    def _blocks_of(self, epoch: int, positions: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """The blocks that positions lie in, the rows there as packed, and which positions."""
        placed = np.argsort(positions, kind="stable")
        order, ends = self._visits(epoch)
        visit = np.searchsorted(ends, positions[placed], side="right")
        first = np.flatnonzero(np.diff(visit, prepend=-1))
        visits = visit[first]
        for each, mine in zip(visits.tolist(), np.split(placed, first[1:]), strict=True):
            block, end = int(order[each]), int(ends[each])
            make = partial(self._rows_in, epoch, block)
            rows = PLANS.get((self._token, "rows", epoch, block), make)
            yield block, rows[positions[mine] - (end - len(rows))], mine

    def plans(self, blocks: list[int]) -> Iterator[BlockPlan]:
        """The plans of some blocks, their rows as they were packed.

        Some are made together, as numpy's calls cost as much for one.
        """
        for first in range(0, len(blocks), _TOGETHER):
            some = blocks[first : first + _TOGETHER]
            new = [each for each in some if (self._token, "plan", each) not in PLANS]
            made = dict(zip(new, self._make_plans(new), strict=True)) if new else {}
            for block in some:
                make = partial(self._taken, made, block)
                yield PLANS.get((self._token, "plan", block), make)

    def _taken(self, made: dict[int, BlockPlan], block: int) -> BlockPlan:
        return made.pop(block) if block in made else self._make_plans([block])[0]

    def _make_plans(self, blocks: list[int]) -> list[BlockPlan]:
        if self._source.is_far and len(blocks) > 1:  # the lengths of all, at once
            documents = [self.planner.order.documents_of(each, each + 1) for each in blocks]
            self._source.fetch_lengths(np.concatenate(documents))
        plans = self.planner.plans(blocks)
        for block, plan in zip(blocks, plans, strict=True):
            planned = plan.rows, int(plan.slots.sum(dtype=np.int64))
            if planned != (self.table.rows[block], self.table.filled[block]):
                where = self._source.store.url if self._source.store else ""
                raise DatasetError(
                    f"{where}: the lengths of {self._source.name} are not those that were planned: "
                    f"jaxdata verify {where} names what is damaged; if nothing is, delete "
                    f"{where}/plans"
                )
        return plans

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
        (plan,), (order, ends) = self.plans([block]), self._visits(epoch)
        segments = np.flatnonzero(plan.document == document)
        packed = np.searchsorted(plan.row_starts, segments, side="right") - 1
        rows = np.flatnonzero(np.isin(self._rows_in(epoch, block), packed))
        first = int(ends[order == block][0]) - plan.rows
        return np.sort(self.lanes.row(first + rows))

    def _visited(self, epoch: int, rows: int) -> tuple[Ints, Ints]:
        """The blocks in the order of an epoch, and how many of its first rows lie in each."""
        order, ends = self._visits(epoch)
        return order, np.diff(self.lanes.visited_before(np.append(0, ends), rows))

    def _positions(self, epoch: int, visits: Bools) -> Ints:
        """All positions of some blocks of the order of an epoch."""
        order, ends = self._visits(epoch)
        rows = self.table.rows[order[visits]]
        return consecutive(ends[visits] - rows, rows)

    def _visits(self, epoch: int) -> _Visits:
        """The blocks in the order of an epoch, and the rows up to the end of each."""

        def make() -> _Visits:
            order = self._shuffled(len(self), "blocks", epoch)
            return _Visits(order, np.cumsum(self.table.rows[order]))

        return PLANS.get((self._token, "blocks", epoch), make)

    def _rows_in(self, epoch: int, block: int) -> Ints:
        """The rows of a block, as they were packed, in the order of an epoch."""
        return self._shuffled(int(self.table.rows[block]), "rows", epoch, block)

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
