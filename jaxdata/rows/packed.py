"""Rows of one packed source, addressed by index: epochs, blocks and rows are all arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.blocks import BlockTable, cached, deal, measure
from jaxdata.rows.documents import Documents
from jaxdata.rows.packing import STRATEGIES, BlockPlan, plan_block
from jaxdata.rows.table import POSITIONS, Segments
from jaxdata.rows.windows import expand, window_counts
from jaxdata.seeds import Permutation, derive

__all__ = ["PackSettings", "PackSummary", "PackedRows"]

Ints = NDArray[np.int64]
_PLANS_KEPT = 4


@dataclass(frozen=True)
class PackSettings:
    """How documents become rows; checked when made."""

    seq_len: int
    strategy: str = "best_fit"
    overlap: int = 0
    seed: int = 0
    positions: str = "segment"
    max_segments: int | None = None
    block: int = 65_536
    shuffle: bool = True
    """False: documents and rows in the order of the dataset, for evaluation."""

    def __post_init__(self) -> None:
        _require(self.seq_len >= 1, "seq_len", self.seq_len, "at least 1")
        _require(self.strategy in STRATEGIES, "strategy", self.strategy, " | ".join(STRATEGIES))
        half = self.seq_len // 2
        _require(0 <= self.overlap <= half, "overlap", self.overlap, f"0 to seq_len/2 = {half}")
        _require(self.positions in POSITIONS, "positions", self.positions, " | ".join(POSITIONS))
        most = self.max_segments
        _require(most is None or most >= 1, "max_segments", most, "at least 1, or None")
        _require(self.block >= 1, "block", self.block, "at least 1 document")
        if self.overlap and self.strategy in ("concat", "crop"):
            raise InputError(
                f"overlap={self.overlap} with strategy={self.strategy!r}: {self.strategy} cuts no "
                "windows that could overlap; use overlap=0, or strategy 'best_fit' or 'pad'"
            )


def _require(holds: bool, name: str, given: Any, expected: str) -> None:
    if not holds:
        raise InputError(f"{name}={given!r}: expected {expected}")


@dataclass(frozen=True)
class PackSummary:
    """What one epoch of packed rows amounts to; in slots (= tokens) unless said.

    ``slots = trained_tokens + overlap_tokens + boundary_tokens + padding``.
    """

    documents: int
    rows: int
    slots: int
    trained_tokens: int
    """targets with loss, stored masks not counted"""
    overlap_tokens: int
    """slots repeated from the window before, without loss"""
    boundary_tokens: int
    """last tokens of documents as inputs, which have no target (``concat``)"""
    padding: int
    dropped_tokens: int
    """targets that no row holds (``crop``)"""

    @property
    def fill(self) -> float:
        """Share of slots that are not padding."""
        return 1 - self.padding / self.slots if self.slots else 1.0


class PackedRows:
    """The row table of one source (see ``RowTable``).

    Documents are dealt to blocks once. Epoch *e* visits the blocks in an order keyed by *e*, and
    the rows of a block in an order keyed by (*e*, block).
    """

    def __init__(self, documents: Documents, settings: PackSettings) -> None:
        self.documents = (documents,)
        self.settings = settings
        self.seq_len, self.positions = settings.seq_len, settings.positions
        self._source = documents
        self._blocks: BlockTable = cached(documents.store, self._plan_key(), self._compute_table)
        self._make_caches()

    def _make_caches(self) -> None:
        self._plan: Callable[[int], BlockPlan] = lru_cache(_PLANS_KEPT)(self._plan_block)
        self._rows_of: Callable[[int, int], Ints] = lru_cache(_PLANS_KEPT)(self._row_order)
        self._epoch: Callable[[int], tuple[Ints, Ints]] = lru_cache(2)(self._epoch_order)

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_plan", "_rows_of", "_epoch")
        return {name: value for name, value in vars(self).items() if name not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_caches()

    def __len__(self) -> int:
        return int(self._blocks.rows.sum())

    @cached_property
    def summary(self) -> PackSummary:
        """What one epoch amounts to."""
        blocks, slots = self._blocks, len(self) * self.seq_len
        trained, overlap = int(blocks.trained.sum()), int(blocks.overlap.sum())
        filled = int(blocks.filled.sum())
        lengths = self._source.lengths
        targets = int(lengths.sum(dtype=np.int64)) - int(np.count_nonzero(lengths))
        return PackSummary(
            documents=len(self._source),
            rows=len(self),
            slots=slots,
            trained_tokens=trained,
            overlap_tokens=overlap,
            boundary_tokens=filled - trained - overlap,
            padding=slots - filled,
            dropped_tokens=targets - trained,
        )

    def identity(self) -> dict[str, Any]:
        """See ``RowTable``."""
        data = {self._source.name: self._source.fingerprint[:8]}
        return {"data": data, **asdict(self.settings)}

    def segments(self, rows: Ints) -> Segments:
        """See ``RowTable``; row *i* beyond the first epoch is row ``i % n`` of epoch ``i // n``."""
        epoch, within = np.divmod(rows, max(len(self), 1))
        return Segments.join(
            [self._epoch_segments(number, mine, within[mine]) for number, mine in _groups(epoch)]
        )

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
        group, number = expand(plan.row_starts[planned + 1] - first)
        at = first[group] + number
        return Segments(
            row=row[group],
            source=np.zeros(len(at), np.int64),
            document=plan.document[at],
            start=plan.start[at],
            slots=plan.slots[at],
            lead=plan.lead[at],
        )

    def _dealt(self, first: int, stop: int) -> Ints:
        """Documents ``[first, stop)`` in the order of dealing."""
        places = np.arange(first, stop)
        if not self.settings.shuffle:
            return places
        key = derive(self.settings.seed, "deal", self._source.name)
        return Permutation(len(self._source), key)(places)

    def _lengths(self, documents: Ints) -> Ints:
        return self._source.lengths[documents].astype(np.int64)

    def _windows(self, first: int, stop: int) -> Ints:
        lengths = self._lengths(self._dealt(first, stop))
        return window_counts(lengths, self.seq_len, self.settings.overlap)

    def _pack(self, lengths: Ints) -> BlockPlan:
        chosen = self.settings
        return plan_block(
            lengths,
            seq_len=chosen.seq_len,
            strategy=chosen.strategy,
            overlap=chosen.overlap,
            max_segments=chosen.max_segments,
        )

    def _plan_block(self, block: int) -> BlockPlan:
        first = int(self._blocks.first[block])
        documents = self._dealt(first, first + int(self._blocks.documents[block]))
        plan = self._pack(self._lengths(documents))
        if not self.settings.shuffle:
            plan = plan.in_document_order()
        return BlockPlan(
            plan.row_starts, documents[plan.document], plan.start, plan.slots, plan.lead
        )

    def _compute_table(self) -> Ints:
        lines = []
        for first, size in deal(len(self._source), self.settings.block, self._windows):
            lengths = self._lengths(self._dealt(first, first + size))
            lines.append(measure(first, self._pack(lengths), lengths))
        return np.asarray(lines, np.int64).reshape(len(lines), 6)

    def _plan_key(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        del settings["positions"]  # changes what a row says, not which tokens it holds
        return {
            "version": 1,
            "data": self._source.fingerprint,
            "name": self._source.name,
            **settings,
        }

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


def _groups(numbers: Ints) -> list[tuple[int, Ints]]:
    """Each different number, and where it stands."""
    different = set(numbers.tolist())
    return [(number, np.flatnonzero(numbers == number)) for number in sorted(different)]
