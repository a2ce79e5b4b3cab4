"""Blocks of a source packed: the totals of each, once for all epochs, and the plan of any.

The totals say how many rows there are before the first is read. They take a few bytes a block, are
computed side by side on all cores, and are kept, so that hosts that start later only read them.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.lazy import cached_property
from jaxdata.base.processes import answers, available_cores
from jaxdata.base.progress import progress_bar
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.rows.packing.block_plan import BlockPlan, Packed, RowSize
from jaxdata.rows.packing.dealing import DocumentOrder, order_of
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies import STRATEGIES


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
        tasks = list(_groups(self.order.bounds, range(blocks), _A_TASK, blocks))
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
        for some in _groups(self.order.bounds, blocks, _TOGETHER, most):
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

    def _lengths(self, documents: Ints) -> NDArray[np.unsignedinteger]:
        lengths: NDArray[np.unsignedinteger] = self.documents.lengths[documents]
        stated = self.documents.stated_lengths
        if stated and int(lengths.sum(dtype=np.int64)) > stated.tokens:  # else memory would be too
            raise DatasetError(
                f"the lengths of {self.documents.name} are not those that were written: jaxdata "
                "verify names what is damaged"
            )
        return lengths


def _groups(bounds: Ints, blocks: range, documents: int, most: int) -> Iterator[range]:
    """Consecutive blocks, `most` or fewer, of at most so many documents; or single blocks."""
    first, starts = blocks.start, bounds.tolist()
    for block in blocks:
        if block > first and (
            starts[block + 1] - starts[first] > documents or block - first == most
        ):
            yield range(first, block)
            first = block
    if blocks.stop > first:
        yield range(first, blocks.stop)
