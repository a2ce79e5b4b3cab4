"""Planning one source: which documents make up a block, and which rows the block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.processes import available_cores, map_tasks
from jaxdata.progress import Advance
from jaxdata.rows.documents import Documents
from jaxdata.rows.packing import pack_block
from jaxdata.rows.plans import BlockPlan, Packed
from jaxdata.rows.settings import PackSettings
from jaxdata.rows.windows import window_counts
from jaxdata.seeds import Permutation, derive

__all__ = ["MAX_WINDOWS", "Planner"]

MAX_WINDOWS = 2**20
Ints = NDArray[np.int64]
Span = tuple[int, int]
"""(first, stop): documents in the order of dealing."""

_BLOCKS_A_TASK = 8
_WORTH_WORKERS = 64  # blocks; a worker takes as long to start as 30 blocks to plan


@dataclass(frozen=True)
class Planner:
    """Everything about a source's blocks that follows from lengths and settings."""

    documents: Documents
    settings: PackSettings

    def key(self) -> dict[str, Any]:
        """What the plan depends on; what a cached one is found by."""
        settings = asdict(self.settings)
        del settings["positions"]  # changes what a row says, not which tokens it holds
        source = {"name": self.documents.name, "data": self.documents.fingerprint}
        return {"version": 3, **source, **settings}

    @cached_property
    def _order(self) -> Permutation:
        runs = len(self.documents) // self.settings.shuffle_run
        return Permutation(runs, derive(self.settings.seed, "deal", self.documents.name))

    def dealt(self, span: Span) -> Ints:
        """Documents of a span: runs of `shuffle_run` neighbours in a keyed order.

        Documents that fill no whole run, fewer than one of them, are dealt last.
        """
        return self.dealt_at(np.arange(*span))

    def dealt_at(self, places: Ints) -> Ints:
        """Documents at some places of that order."""
        if not self.settings.shuffle:
            return places
        if self.settings.shuffle_run == 1:
            return self._order(places)
        run, within = np.divmod(places, self.settings.shuffle_run)
        whole = run < len(self._order)
        documents = places.copy()
        documents[whole] = self._order(run[whole]) * self.settings.shuffle_run + within[whole]
        return documents

    def place(self, document: int) -> int:
        """Where a document is in the order of dealing."""
        run, within = divmod(document, self.settings.shuffle_run)
        if not self.settings.shuffle or run >= len(self._order):
            return document
        return int(self._order.inverse(run)) * self.settings.shuffle_run + within

    def plan(self, span: Span) -> tuple[Ints, BlockPlan]:
        """The documents of a block, and its rows."""
        documents = self.dealt(span)
        plan = self._pack(self._lengths(documents)).plan()
        return documents, plan if self.settings.shuffle else plan.in_document_order()

    def table(self, progress: Advance | None = None) -> Ints:
        """One line a block, int64 (blocks, 8): the columns of `Blocks`."""
        lines: list[list[int]] = []
        for done, line in enumerate(self._measured(self._even_spans()), 1):
            if line is None:  # too many windows: from here on, blocks end where they must
                spans = list(self._uneven_spans(sum(line[1] for line in lines)))
                lines += [line for line in self._measured(spans) if line is not None]
                break
            lines.append(line)
            if progress:
                progress(done, len(self._even_spans()))
        return np.asarray(lines, np.int64).reshape(len(lines), 8)

    def measure(self, span: Span) -> list[int] | None:
        """The line of a block in the table; None where it has more windows than a block may."""
        lengths = self._lengths(self.dealt(span))
        tokens = int(lengths.sum(dtype=np.int64))
        if len(lengths) > 1 and not self._within_a_block(lengths, tokens):
            return None
        packed = self._pack(lengths).size()
        targets = tokens - int(np.count_nonzero(lengths))
        counted = (packed.trained, packed.filled, packed.overlap, packed.begun)
        return [span[0], len(lengths), packed.rows, targets, *counted]

    def _even_spans(self) -> list[Span]:
        total, block = len(self.documents), self.settings.block
        return [(first, min(first + block, total)) for first in range(0, total, block)]

    def _uneven_spans(self, first: int) -> Iterator[Span]:
        total = len(self.documents)
        while first < total:
            stop = min(first + self.settings.block, total)
            windows = np.cumsum(self._windows(self._lengths(self.dealt((first, stop)))))
            fitting = int(np.searchsorted(windows, MAX_WINDOWS, side="right"))
            stop = min(first + max(fitting, 1), stop)
            yield first, stop
            first = stop

    def _measured(self, spans: list[Span]) -> Iterator[list[int] | None]:
        """The lines of spans, in order; by all cores where there are many."""
        if len(spans) < _WORTH_WORKERS or self.documents.store is None:
            yield from map(self.measure, spans)
            return
        tasks = [spans[k : k + _BLOCKS_A_TASK] for k in range(0, len(spans), _BLOCKS_A_TASK)]
        early: dict[int, list[list[int] | None]] = {}
        following = 0
        for number, lines in map_tasks(f"{__name__}:serve", [self], tasks, available_cores()):
            early[number] = lines
            while following in early:
                yield from early.pop(following)
                following += 1

    def _lengths(self, documents: Ints) -> NDArray[np.unsignedinteger]:
        lengths: NDArray[np.unsignedinteger] = self.documents.lengths[documents]
        return lengths

    def _within_a_block(self, lengths: NDArray[np.unsignedinteger], tokens: int) -> bool:
        """Whether documents have no more windows than a block may."""
        # A document has at most one more than its tokens have steps: enough as a rule, at once.
        step = self.settings.seq_len - self.settings.overlap
        few = len(lengths) + tokens // step <= MAX_WINDOWS
        return few or int(self._windows(lengths).sum()) <= MAX_WINDOWS

    def _windows(self, lengths: NDArray[np.unsignedinteger]) -> NDArray[np.integer]:
        signed = lengths.astype(np.int64)
        return window_counts(signed, self.settings.seq_len, self.settings.overlap)

    def _pack(self, lengths: NDArray[np.unsignedinteger]) -> Packed:
        chosen = self.settings
        return pack_block(
            lengths,
            seq_len=chosen.seq_len,
            strategy=chosen.strategy,
            overlap=chosen.overlap,
            max_segments=chosen.max_segments,
        )


def serve(connection: Connection, planner: Planner) -> None:
    """A worker process: measures the blocks it is sent, until the parent is gone."""
    while True:
        connection.send([planner.measure(span) for span in connection.recv()])
