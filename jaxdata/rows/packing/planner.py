"""Documents dealt to blocks and packed: the totals of each block, the plan of any, rows by epoch.

The totals say how many rows there are before the first is read. They take a few bytes a block, are
computed once for all epochs, side by side on all cores, and are kept, so that hosts that start
later only read them. Epoch *e* visits the blocks in an order keyed by *e*, and the rows of a block
in an order keyed by (*e*, block). Plans are kept in memory as long as there is room.
"""

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import answers, available_cores, forget_in_forks
from jaxdata.base.progress import progress_bar
from jaxdata.base.ragged import AnyInts, Bools, Ints, consecutive, in_runs
from jaxdata.base.seeds import Permutation, derive
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.packing.block_plan import BlockPlan, Packed, RowSize
from jaxdata.rows.packing.dealing import DocumentOrder, order_of
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import Segments, TokenCounts, segment_work


class BlockTable(NamedTuple):
    """Totals of each block of a source; int64 (blocks,) each."""

    first: Ints
    """first document, in shuffled order"""
    documents: Ints
    targets: Ints
    """tokens of its documents, without the first of each"""
    rows: Ints
    """this and what follows: see `BlockSize`"""
    filled: Ints
    trained: Ints
    overlap: Ints
    begun: Ints
    finished: Ints


_FEW_BLOCKS = 2
"""of a source: these are not packed again to be read"""
_TOGETHER = 2**17
"""documents whose blocks are packed together"""
_SIZES, _SOME_BLOCKS = 15 * 2**12, 16
"""different sizes, in all their blocks: 16 bits are sorted in one pass; or some blocks"""
_A_TASK = 2**19
"""documents that a worker packs at a time"""
_WORTH_WORKERS = 2**22
"""documents; a worker takes as long to start as half of them to plan"""


def pack_blocks(lengths: AnyInts, bounds: Ints, settings: PackSettings) -> Sequence[Packed]:
    """Pack some blocks, side by side; none depends on the others.

    Args:
        lengths: (documents,) of all blocks, end to end.
        bounds: (blocks + 1,) where the documents of each block begin.
        settings: how documents become rows.
    """
    # 32 bits where they hold every number: the work is mostly moving memory.
    small = np.int32 if int(lengths.sum(dtype=np.int64)) < 2**31 else np.int64
    lengths, chosen = lengths.astype(small, copy=False), STRATEGIES[settings.strategy]
    most = settings.max_segments or settings.seq_len
    row = RowSize(settings.seq_len, settings.overlap, most, settings.multiple)
    if chosen.mixed and settings.shuffle:
        return chosen.mixed(lengths, bounds, row)
    blocks = (lengths[a:b] for a, b in pairwise(bounds.tolist()))
    return [chosen.pack(block, row) for block in blocks]


@dataclass(frozen=True)
class Planner:
    """The blocks of a source, computed from lengths and settings."""

    documents: Documents
    settings: PackSettings
    packed: dict[int, Packed] = field(default_factory=dict, compare=False, repr=False)
    """what the totals of few blocks were counted of; `plans` takes it"""

    def key(self) -> dict[str, Any]:
        """Everything that the plan depends on: the key of the plan cache."""
        settings = self.settings.facts()
        for name in ("positions", "lanes"):  # change what rows say and where, not what they hold
            settings.pop(name, None)
        source = {"name": self.documents.name, "data": self.documents.fingerprint}
        return {"version": 4, **source, **settings}

    @cached_property
    def order(self) -> DocumentOrder:
        """The order of documents, cut into blocks."""
        return order_of(self.documents, self.settings)

    def plans(self, blocks: Sequence[int]) -> list[BlockPlan]:
        """The plans of the rows of some blocks, which are packed together."""
        documents = {each: self.order.documents_of(each, each + 1) for each in blocks}
        packed = {each: self.packed.pop(each, None) for each in blocks}
        if new := [each for each in blocks if packed[each] is None]:
            bounds = np.cumsum([0, *(len(documents[each]) for each in new)])
            lengths = self._lengths(np.concatenate([documents[each] for each in new]))
            packed |= zip(new, pack_blocks(lengths, bounds, self.settings), strict=True)
        return [self._plan(each, documents[each], packed[each]) for each in blocks]

    def _plan(self, block: int, documents: Ints, packed: Any) -> BlockPlan:
        plan: BlockPlan = packed.plan()
        if not self.settings.shuffle:
            plan = plan.in_document_order()
        elif not STRATEGIES[self.settings.strategy].streams:
            names = self.documents.name, "segments", int(self.order.bounds[block])
            plan = plan.in_random_order(derive(self.settings.seed, *names))
        # Plans are kept in memory: 32 bits, where they suffice, halve it.
        largest = max(len(self.documents), int(plan.start.max(initial=0)))
        small = np.int32 if largest < 2**31 else int
        columns = (documents.take(plan.document), plan.start, plan.slots, plan.context)
        return BlockPlan(plan.row_starts, *(each.astype(small, copy=False) for each in columns))

    def kept_table(self) -> BlockTable:
        """The totals of each block, computed unless they are kept.

        Raises:
            DatasetError: lengths to be planned are not those that were written.
        """

        def compute() -> Ints:
            self.documents.check_lengths()  # which planning reads anyway
            return self.table()

        return BlockTable(*cached_table(self.documents, self.key(), compute, self._holds).T)

    def _holds(self, lines: Ints) -> bool:
        """Whether kept lines are of these blocks, and rows hold no more than they can."""
        bounds, stated = self.order.bounds, self.documents.stated_lengths
        if lines.shape != (len(bounds) - 1, len(BlockTable._fields)) or (lines < 0).any():
            return False
        table = BlockTable(*lines.T)
        fits = (table.trained <= table.filled) & (
            table.filled <= table.rows * self.settings.seq_len
        )
        same = (table.first == bounds[:-1]) & (table.documents == np.diff(bounds))
        targets = stated and stated.tokens - len(self.documents) + stated.empty
        return bool((same & fits).all()) and targets in (None, int(table.targets.sum()))

    def table(self) -> Ints:
        """One line a block, int64 (blocks, 9): the columns of `BlockTable`."""
        blocks, lines = len(self.order.bounds) - 1, list[list[int]]()
        tasks = self._groups(range(blocks), _A_TASK, blocks)
        few = len(self.documents) < _WORTH_WORKERS or self.documents.store is None
        seen = len(tasks) > 1  # else it is soon done, as each block of a stream of text
        with progress_bar(f"planning {self.documents.name}") if seen else nullcontext() as progress:
            for some in answers(lambda: self.measure, tasks, 1 if few else available_cores()):
                lines += some
                if progress:
                    progress(len(lines), blocks)
        return np.asarray(lines, np.int64).reshape(-1, len(BlockTable._fields))

    def measure(self, blocks: range) -> list[list[int]]:
        """The lines of some blocks in the table; those of many are packed together."""
        most, lines = max(_SIZES // self.settings.seq_len, _SOME_BLOCKS), list[list[int]]()
        for some in self._groups(blocks, _TOGETHER, most):
            first = self.order.bounds[some.start : some.stop + 1]
            bounds, counts = first - first[0], np.diff(first)
            lengths = self._lengths(self.order.documents_of(some.start, some.stop))
            tokens, empty = (
                np.add.reduceat(each, bounds[:-1], dtype=np.int64)
                for each in (lengths, lengths == 0)
            )
            numbers = np.stack([first[:-1], counts, tokens - counts + empty], axis=1).tolist()
            packed = pack_blocks(lengths, bounds, self.settings)
            if len(self.order.bounds) - 1 <= _FEW_BLOCKS:
                self.packed.update(zip(some, packed, strict=True))
            lines += [[*each, *one.size] for each, one in zip(numbers, packed, strict=True)]
        return lines

    def _groups(self, blocks: range, documents: int, most: int) -> list[range]:
        """Consecutive blocks, `most` or fewer, of about so many documents."""
        held = np.diff(self.order.bounds).tolist()
        runs = in_runs(blocks, held.__getitem__, lambda: documents, most)
        return [range(run[0], run[-1] + 1) for run, _ in runs]

    def _lengths(self, documents: Ints) -> NDArray[np.unsignedinteger]:
        lengths: NDArray[np.unsignedinteger] = self.documents.lengths[documents]
        stated = self.documents.stated_lengths
        if stated and int(lengths.sum(dtype=np.int64)) > stated.tokens:  # else memory would be too
            raise DatasetError(
                f"the lengths of {self.documents.name} are not those that were written: jaxdata "
                "verify names what is damaged"
            )
        return lengths


_LEAST_BYTES = 2**29
_SHARE = 1 / 8
"""of the machine's memory, or of the part of it that the process may use"""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""of a container: control groups, versions 2 and 1"""
_VISITS_TOGETHER = 16
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
        self.targets = int(self.table.targets.sum())
        """tokens of all documents, without the first of each"""
        self.whole = self._in_blocks(slice(None))
        """totals of an epoch"""
        self._token = PLANS.owned_by(self)

    def __len__(self) -> int:
        return len(self.table.rows)

    def token_counts(self, epoch: int, rows: int) -> TokenCounts:
        """Totals of the first `rows` rows of an epoch: those of whole blocks from the table."""
        blocks, held = self._visited(epoch, rows)
        total = self._in_blocks(blocks[held == self.table.rows[blocks]])
        begun = self._positions(epoch, (held > 0) & (held < self.table.rows[blocks]))
        if len(seen := begun[self.lanes.row(begun) < rows]):
            total += self._counts_in(self._at_positions(epoch, seen))
        return total

    def _in_blocks(self, chosen: Ints | slice) -> TokenCounts:
        return self._counts(*(int(each[chosen].sum()) for each in self.table[3:]))

    def _counts_in(self, found: Segments) -> TokenCounts:
        """Totals of rows, from all their segments."""
        last = self._source.lengths[found.document].astype(np.int64) - 1
        # The last target; where a token fills a slot without one, the slot after it does not count.
        ends = (found.start < np.maximum(last, 1)) & (found.start + found.slots >= last)
        return self._counts(
            rows=len(set(found.row.tolist())),
            filled=int(found.slots.sum()),
            trained=int(targets_in(self._source, found).sum()),
            overlap=int(found.context.sum()),
            begun=int(np.count_nonzero(found.start == 0)),
            finished=int(np.count_nonzero(ends)),
        )

    def _counts(
        self, rows: int, filled: int, trained: int, overlap: int, begun: int, finished: int
    ) -> TokenCounts:
        """Totals of rows, from what `BlockSize` says of them."""
        slots = rows * self.settings.seq_len
        return TokenCounts(rows, begun, slots, trained, overlap, slots - filled, finished)

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
        unknown = [each for each, *_ in parts if (self._token, "work", each, window) not in PLANS]
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
        for first in range(0, len(blocks), _VISITS_TOGETHER):
            some = blocks[first : first + _VISITS_TOGETHER]
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
        begun = self.lanes.row(self._positions(epoch, held > 0))
        return np.sort(begun[begun >= row]), spans

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

    def _visits(self, epoch: int) -> Ints:
        """The blocks in the order of an epoch, and the rows up to the end of each; (2, blocks)."""

        def make() -> Ints:
            order = self._shuffled(len(self), "blocks", epoch)
            return np.stack([order, np.cumsum(self.table.rows[order])])

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
