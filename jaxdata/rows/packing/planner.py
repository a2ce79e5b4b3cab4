"""Planning one source: documents are dealt to blocks, and blocks are packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.processes import Pool, answer_tasks, available_cores
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyInts, Ints, consecutive
from jaxdata.base.seeds import Permutation, derive, shuffled_groups
from jaxdata.dataset.documents import Documents, stated_lengths
from jaxdata.rows.packing.block_plan import BlockPlan, BlockSize, BlockTable, Packed
from jaxdata.rows.packing.plan_cache import cached_table
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.packing.windows import window_counts

BLOCK_DOCUMENTS = 65_536
"""single documents that are packed together"""
_SMALL_BYTES = 2**31
_CHUNK_BYTES, _BLOCK_BYTES = 2**20, 2**23
_BLOCKS_A_LANE, _MOST_LANES = 8, 2**12
Span = tuple[int, int]
"""(first, stop): positions in the shuffled order of documents"""


def resolved(documents: Documents, settings: PackSettings) -> PackSettings:
    """The settings with numbers where they leave the choice; unshuffled rows have one lane."""
    if not settings.shuffle:
        return settings.model_copy(update={"chunk_bytes": 0, "block_bytes": None, "lanes": 1})
    chunk, block, lanes = settings.chunk_bytes, settings.block_bytes, settings.lanes
    if chunk is None:
        chunk = _CHUNK_BYTES if _stored_bytes(documents) >= _SMALL_BYTES else 0
    if block is None and chunk:
        block = _BLOCK_BYTES
    if lanes is None:
        blocks = _stored_bytes(documents) // block if chunk and block else 0
        lanes = min(2 ** max((blocks // _BLOCKS_A_LANE).bit_length() - 1, 0), _MOST_LANES)
    found = {"chunk_bytes": chunk, "block_bytes": block, "lanes": lanes}
    return settings.model_copy(update=found)


def _stored_bytes(documents: Documents) -> int:
    stated = stated_lengths(documents)
    tokens = stated.tokens if stated else int(np.asarray(documents.lengths).sum(dtype=np.int64))
    return tokens * (documents.dtype.itemsize + documents.masked)


def order_of(documents: Documents, settings: PackSettings) -> DocumentOrder:
    """The order of the documents of a source under `resolved` settings."""
    return (ChunkOrder if settings.chunk_bytes else SingleOrder)(documents, settings)


class DocumentOrder(ABC):
    """Documents by their position in an order, and the blocks that the order is cut into."""

    @abstractmethod
    def spans(self) -> list[Span]:
        """The blocks."""

    @abstractmethod
    def documents_at(self, positions: Ints) -> Ints:
        """Documents at some positions; int64 (positions,)."""

    @abstractmethod
    def position(self, document: int) -> int:
        """The inverse of `documents_at`."""

    def documents_of(self, span: Span) -> Ints:
        """The documents of a block."""
        return self.documents_at(np.arange(*span))

    def documents_of_each(self, spans: Sequence[Span]) -> tuple[Ints, Ints]:
        """The documents of consecutive blocks, end to end, and (blocks,) how many each has."""
        counts = np.array([stop - first for first, stop in spans], np.int64)
        documents = self.documents_at(np.arange(spans[0][0], spans[-1][1]))
        return documents, counts


class SingleOrder(DocumentOrder):
    """Single documents in a keyed order, or in that of the dataset; so many to a block."""

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self._total, self._shuffle = len(documents), settings.shuffle
        self._block = BLOCK_DOCUMENTS
        if settings.block_bytes is not None:
            size = max(_stored_bytes(documents), 1)
            self._block = max(settings.block_bytes * self._total // size, 1)
        key = derive(settings.seed, "deal", documents.name)
        self._order = Permutation(self._total, key)

    def spans(self) -> list[Span]:
        starts = range(0, self._total, self._block)
        return [(first, min(first + self._block, self._total)) for first in starts]

    def documents_at(self, positions: Ints) -> Ints:
        return self._order(positions) if self._shuffle else positions

    def position(self, document: int) -> int:
        return int(self._order.inverse(document)) if self._shuffle else document


class ChunkOrder(DocumentOrder):
    """Chunks in a keyed order, so many to a block, whose documents come in a keyed order.

    A chunk is the documents whose first byte lies in the same page of `chunk_bytes`; a block has
    `block_bytes` of chunks.
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.documents, self.settings = documents, settings
        self._chunk_bytes = settings.chunk_bytes or _CHUNK_BYTES
        self._chunks = max((settings.block_bytes or _BLOCK_BYTES) // self._chunk_bytes, 1)
        """of a block"""

    @cached_property
    def starts(self) -> Ints:
        """(chunks + 1,) the first document of each chunk."""
        size = self._chunk_bytes
        return cached_table(self.documents, {"chunks": size}, lambda: self._cut(size), self._holds)

    def _cut(self, size: int) -> Ints:
        return np.append(0, self.documents.page_ends(size))

    def _holds(self, starts: Ints) -> bool:
        """Whether kept starts can be those of the documents."""
        ends = (
            starts.ndim == 1 and len(starts) and (starts[0], starts[-1]) == (0, len(self.documents))
        )
        return bool(ends and (np.diff(starts) > 0).all())

    @cached_property
    def _order(self) -> Permutation:
        key = derive(self.settings.seed, "segments", self.documents.name)
        return Permutation(len(self.starts) - 1, key)

    @cached_property
    def _firsts(self) -> Ints:
        """(blocks + 1,) the position where each block begins."""
        chunks = self._order(np.arange(len(self._order)))
        counts = np.diff(self.starts)[chunks]
        ends = np.append(0, np.cumsum(counts))
        return np.append(ends[: -1 : self._chunks], ends[-1])

    def spans(self) -> list[Span]:
        return list(pairwise(self._firsts.tolist()))

    def documents_at(self, positions: Ints) -> Ints:
        found = np.empty_like(positions)
        block = np.searchsorted(self._firsts, positions, side="right") - 1
        for number in np.unique(block).tolist():
            mine = np.flatnonzero(block == number)
            found[mine] = self._block(number)[positions[mine] - self._firsts[number]]
        return found

    def documents_of(self, span: Span) -> Ints:
        return self.documents_of_each([span])[0]

    def documents_of_each(self, spans: Sequence[Span]) -> tuple[Ints, Ints]:
        first = int(np.searchsorted(self._firsts, spans[0][0], side="right")) - 1
        edges = self._firsts[first : first + len(spans) + 1]
        if list(pairwise(edges.tolist())) != list(spans):  # blocks that `MAX_WINDOWS` ends
            return super().documents_of_each(spans)
        return self._blocks(first, first + len(spans)), np.diff(edges)

    def position(self, document: int) -> int:
        chunk = int(np.searchsorted(self.starts, document, side="right")) - 1
        block = int(self._order.inverse(chunk)) // self._chunks
        return int(self._firsts[block] + np.flatnonzero(self._block(block) == document)[0])

    def _block(self, number: int) -> Ints:
        """The documents of a block."""
        return self._blocks(number, number + 1)

    def _blocks(self, first: int, stop: int) -> Ints:
        """The documents of some blocks, end to end."""
        places = np.arange(first * self._chunks, min(stop * self._chunks, len(self._order)))
        chunks = self._order(places)
        counts = self.starts[chunks + 1] - self.starts[chunks]
        found = consecutive(self.starts[chunks], counts)
        names = self.settings.seed, "pool", self.documents.name
        keys = [derive(*names, number) for number in range(first, stop)]
        return found[shuffled_groups(np.diff(self._firsts[first : stop + 1]), keys)]


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
    numbers = settings.seq_len, settings.overlap, settings.max_segments or settings.seq_len
    if chosen.mixed and settings.shuffle:
        return chosen.mixed(lengths, bounds, *numbers)
    blocks = (lengths[a:b] for a, b in pairwise(bounds.tolist()))
    return [chosen.pack(block, *numbers) for block in blocks]


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
            (packed,) = self._pack(self._lengths(documents), np.array([0, len(documents)]))
        plan = packed.plan()
        if not self.settings.shuffle:
            return documents, plan.in_document_order()
        if STRATEGIES[self.settings.strategy].streams:
            return documents, plan
        key = derive(self.settings.seed, self.documents.name, "segments", span[0])
        return documents, plan.in_random_order(key)

    @property
    def columns(self) -> int:
        """Columns of the table: the last is left out where every document that begins also ends."""
        return len(BlockTable._fields) - STRATEGIES[self.settings.strategy].keeps_all

    def table(self, progress: Advance | None = None) -> Ints:
        """One line a block, int64 (blocks, `columns`): the columns of `BlockTable`."""
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
        return np.asarray(lines, np.int64).reshape(len(lines), self.columns)

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
        blocks = self._pack(lengths, bounds)
        if len(self._spans) <= FEW_BLOCKS:
            self.packed.update(zip(spans, blocks, strict=True))
        lines = zip(spans, counts.tolist(), targets, blocks, strict=True)
        return [
            _line(first, documents, of_block, packed.size())[: self.columns]
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
        stated = stated_lengths(self.documents)
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

    def _pack(self, lengths: NDArray[np.unsignedinteger], bounds: Ints) -> Sequence[Packed]:
        return pack_blocks(lengths, bounds, self.settings)


def _line(first: int, documents: int, targets: int, size: BlockSize) -> list[int]:
    """A line of `BlockTable`."""
    counted = (size.trained, size.filled, size.overlap, size.begun, size.finished)
    return [first, documents, size.rows, targets, *counted]


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
