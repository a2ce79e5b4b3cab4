"""Blocks of a source packed: the totals of each, once for all epochs, and the plan of any.

The totals say how many rows there are before the first is read. They take a few bytes a block, are
computed side by side on all cores, and are kept, so that hosts that start later only read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import cached_table
from jaxdata.rows.packing.block_plan import BlockPlan, Packed, RowSize, window_counts
from jaxdata.rows.packing.dealing import BLOCK_DOCUMENTS, DocumentOrder, Span, order_of
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


MAX_WINDOWS = 2**20
FEW_BLOCKS = 2
"""of a source: these stay in memory as they were packed, for all epochs"""

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
    packed: dict[Span, Packed] = field(default_factory=dict, compare=False, repr=False)
    """what the table of few blocks was made of; `plan` takes it"""

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

    def plan(self, span: Span) -> tuple[Ints, BlockPlan]:
        """The documents of a block, and the plan of its rows."""
        documents = self.order.documents_of(span)
        packed = self.packed.pop(span, None)
        if packed is None:
            bounds = np.array([0, len(documents)])
            (packed,) = pack_blocks(self._lengths(documents), bounds, self.settings)
        plan = packed.plan()
        if not self.settings.shuffle:
            return documents, plan.in_document_order()
        if STRATEGIES[self.settings.strategy].streams:
            return documents, plan
        key = derive(self.settings.seed, self.documents.name, "segments", span[0])
        return documents, plan.in_random_order(key)

    def kept_table(self, progress: Advance | None = None) -> BlockTable:
        """The totals of each block, computed unless they are kept.

        Raises:
            DatasetError: lengths to be planned are not those that were written.
        """

        def compute() -> Ints:
            self.documents.check_lengths()  # which planning reads anyway
            return self.table(progress)

        return BlockTable(*cached_table(self.documents, self.key(), compute, self._holds).T)

    def _holds(self, lines: Ints) -> bool:
        """Whether kept lines cover all documents, and rows hold no more than they can."""
        if lines.shape[1:] != (len(BlockTable._fields),) or (lines < 0).any():
            return False
        table, stated = BlockTable(*lines.T), self.documents.stated_lengths
        covers = (
            np.append(table.first, len(self.documents)) == np.append(0, table.documents).cumsum()
        )
        fits = (table.trained <= table.filled) & (
            table.filled <= table.rows * self.settings.seq_len
        )
        targets = stated and stated.tokens - len(self.documents)
        right = targets in (None, int(table.targets.sum()))
        return bool(covers.all() and fits.all() and right)

    def table(self, progress: Advance | None = None) -> Ints:
        """One line a block, int64 (blocks, 9): the columns of `BlockTable`."""
        lines: list[list[int]] = []
        if progress:
            progress(0, len(self._spans))
        for done, line in enumerate(self._measured(self._spans), 1):
            if line is None:  # too many windows: from here on, `MAX_WINDOWS` ends the blocks
                spans = list(self._uneven_spans(sum(line[1] for line in lines)))
                lines += [line for line in self._measured(spans) if line is not None]
                self.packed.clear()
                break
            lines.append(line)
            if progress:
                progress(done, len(self._spans))
        return np.asarray(lines, np.int64).reshape(-1, len(BlockTable._fields))

    def measure(self, spans: Sequence[Span]) -> list[list[int] | None]:
        """The lines of some blocks in the table; None for more than `MAX_WINDOWS` windows."""
        return [line for some in self._together(spans) for line in self._lines(some)]

    def _together(self, spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
        """The blocks that are packed together: groups of about as many."""
        most = max(_SIZES // self.settings.seq_len, _SOME_BLOCKS)
        groups = -(-len(spans) // most)
        return _groups(spans, _TOGETHER, -(-len(spans) // max(groups, 1)))

    def _lines(self, spans: Sequence[Span]) -> list[list[int] | None]:
        """The same, packed together if they fit together into the memory of a block."""
        documents, counts = self.order.documents_of_each(spans)
        lengths, bounds = self._lengths(documents), np.append(0, np.cumsum(counts))
        if len(lengths) > 1 and not self._within_a_block(lengths):
            half = len(spans) // 2
            parts = (spans[:half], spans[half:]) if half else ()
            return [line for part in parts for line in self._lines(part)] or [None]
        tokens, empty = (
            np.add.reduceat(each, bounds[:-1], dtype=np.int64) for each in (lengths, lengths == 0)
        )
        targets = (tokens - counts + empty).tolist()
        blocks = pack_blocks(lengths, bounds, self.settings)
        if len(self._spans) <= FEW_BLOCKS:
            self.packed.update(zip(spans, blocks, strict=True))
        lines = zip(spans, counts.tolist(), targets, blocks, strict=True)
        return [
            [first, documents, of_block, *astuple(packed.size())]
            for (first, _), documents, of_block, packed in lines
        ]

    @cached_property
    def _spans(self) -> list[Span]:
        return self.order.spans()

    def _uneven_spans(self, first: int) -> Iterator[Span]:
        total = len(self.documents)
        while first < total:
            stop = min(first + BLOCK_DOCUMENTS, total)
            windows = np.cumsum(
                self._windows(self._lengths(self.order.documents_of((first, stop))))
            )
            fitting = int(np.searchsorted(windows, MAX_WINDOWS, side="right"))
            stop = min(first + max(fitting, 1), stop)
            yield first, stop
            first = stop

    def _measured(self, spans: list[Span]) -> Iterator[list[int] | None]:
        """The lines of spans, in order; those of many documents are measured on all cores."""
        documents = sum(stop - first for first, stop in spans)
        if documents < _WORTH_WORKERS or self.documents.store is None:
            for some in self._together(spans):
                yield from self.measure(some)
            return
        tasks = list(_groups(spans, _A_TASK, len(spans)))
        with Pool(f"{__name__}:serve", self, workers=available_cores()) as pool:
            for lines in pool.map(tasks):
                yield from lines

    def _lengths(self, documents: Ints) -> NDArray[np.unsignedinteger]:
        lengths: NDArray[np.unsignedinteger] = self.documents.lengths[documents]
        stated = self.documents.stated_lengths
        if stated and int(lengths.sum(dtype=np.int64)) > stated.tokens:  # else memory would be too
            raise DatasetError(
                f"the lengths of {self.documents.name} are not those that were written: jaxdata "
                "verify names what is damaged"
            )
        return lengths

    def _within_a_block(self, lengths: NDArray[np.unsignedinteger]) -> bool:
        """Whether documents have at most `MAX_WINDOWS` windows."""
        # An upper bound from the number of tokens usually suffices.
        tokens, step = (
            int(lengths.sum(dtype=np.int64)),
            self.settings.seq_len - self.settings.overlap,
        )
        few = len(lengths) + tokens // step <= MAX_WINDOWS
        return few or int(self._windows(lengths).sum()) <= MAX_WINDOWS

    def _windows(self, lengths: NDArray[np.unsignedinteger]) -> NDArray[np.integer]:
        signed = lengths.astype(np.int64)
        return window_counts(signed, self.settings.seq_len, self.settings.overlap)


def _groups(spans: Sequence[Span], documents: int, most: int) -> Iterator[Sequence[Span]]:
    """Consecutive spans, `most` or fewer, of at most so many documents; or single spans."""
    first = begun = 0
    for number, (_, stop) in enumerate(spans):
        if number > first and (stop - begun > documents or number - first == most):
            yield spans[first:number]
            first = number
        begun = spans[first][0]
    if len(spans) > first:
        yield spans[first:]


def serve(connection: Connection, planner: Planner) -> None:
    """A worker process: measures the blocks it is sent, until the parent is gone."""
    answer_tasks(connection, lambda spans, _: planner.measure(spans))
