"""A search from beginning to end: documents hashed, candidates compared, clusters joined.

Edges come in batches; union-find makes components of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.hashing import Hashes
from jaxdata.base.processes import Report
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyInts
from jaxdata.converter.engines import MakeEngine, ProgressSum
from jaxdata.dedup.benchmarks import overlaps
from jaxdata.dedup.job import (
    ALIVE,
    EXACT,
    NEXT,
    OTHERS,
    SAME,
    CandidateUnit,
    DedupJob,
    DedupUnit,
    PairUnit,
    SignatureUnit,
    SpanPart,
    SpanUnit,
    Workbench,
    even_cuts,
)
from jaxdata.dedup.members import Numbers
from jaxdata.dedup.minhash import (
    RECORD_BYTES,
    Pairs,
    compare_pairs,
    decode_pairs,
    documents_of,
    pairs_file,
    write_candidates,
    write_signatures,
)
from jaxdata.dedup.sorted_runs import PARTS, Layout, read_part
from jaxdata.dedup.spans import hash_spans, merge_spans


class Components:
    """The components of nodes `[0, count)`; each is called by its smallest node.

    Batches in any order, and edges in any order, give the same components.

    >>> found = Components(5)
    >>> found.connect(np.array([4, 1]), np.array([3, 4]))
    >>> found.labels().tolist()
    [0, 1, 2, 1, 1]
    """

    def __init__(self, count: int) -> None:
        self._parent = np.arange(count, dtype=np.uint32)

    def connect(self, one: AnyInts, other: AnyInts) -> None:
        """Add edges between `one[k]` and `other[k]`."""
        while True:
            one, other = self.find(one), self.find(other)
            differ = one != other
            if not differ.any():
                return
            one, other = one[differ], other[differ]
            larger = np.maximum(one, other)
            np.minimum.at(self._parent, larger, np.minimum(one, other))
            self._shorten(larger)

    def find(self, nodes: AnyInts) -> NDArray[np.uint32]:
        """The component of each node."""
        root = self._parent[nodes]
        while not np.array_equal(root, up := self._parent[root]):
            root = up
        self._parent[nodes] = root
        return root

    def labels(self) -> NDArray[np.uint32]:
        """The component of every node, uint32 (count,)."""
        self._shorten(slice(None))
        return self._parent

    def _shorten(self, nodes: AnyInts | slice) -> None:
        """Let nodes point to their roots; halves their distance from them each time."""
        while True:
            parent = self._parent[nodes]
            above = self._parent[parent]
            if np.array_equal(parent, above):
                return
            self._parent[nodes] = above


def worker_of(job: DedupJob) -> Callable[[DedupUnit, Report], None]:
    """What does units of a job, in this process."""
    bench = Workbench(job)

    def work(unit: DedupUnit, report: Report) -> None:
        if isinstance(unit, SignatureUnit):
            write_signatures(bench, unit, report)
        elif isinstance(unit, CandidateUnit):
            write_candidates(bench, unit, report)
        elif isinstance(unit, PairUnit):
            compare_pairs(bench, unit, report)
        elif isinstance(unit, SpanUnit):
            hash_spans(bench, unit, report)
        elif isinstance(unit, SpanPart):
            merge_spans(bench, unit, report)

    return work


Stage = Callable[[str], AbstractContextManager[Advance]]
"""Shows what is being done, as `progress_bar` does."""
_PAIR_TOKENS = 2**23
_PAIR_BYTES = 48  # of memory for a pair, about
_ALONE = 2
"""So few units are not worth starting processes for."""


class Clusters(NamedTuple):
    """Which documents are copies of each other: equal labels, uint32 (documents,)."""

    exact: Numbers
    near: Numbers
    """exact copies are near ones, too"""
    tainted: Numbers
    """documents with n-grams of benchmarks, ascending; (tainted,): see `Overlaps`"""
    tainted_by: Numbers
    shared: Hashes


@dataclass
class Search:
    """A job that runs.

    Args:
        job: what is searched.
        make_engine: where units are done.
        memory: bytes that a process takes to sort, about.
        stage: shows progress.
    """

    job: DedupJob
    make_engine: MakeEngine
    memory: int
    stage: Stage

    def __post_init__(self) -> None:
        self.bench = Workbench(self.job)
        self.unfinished = self.bench.unfinished
        self.compared = self.alike = 0
        """pairs of documents that share a band, and those of them that are similar enough"""
        self._border = self.bench.members.total - sum(
            member.documents for member in self.job.members.each if member.against
        )

    def run(self) -> Clusters:
        """Do the units without a receipt; the clusters depend on the documents alone."""
        found = Components(self.bench.members.total)
        lengths = [texts.lengths for texts in self.bench.texts]
        self.do("reading documents", self.job.signature_units(lengths))
        self._connect_all(found, self._merge("comparing hashes", [EXACT]), SAME)
        exact = found.labels().copy()
        if self.job.settings.near:
            first = exact == np.arange(len(exact), dtype=np.uint32)
            self.unfinished.note(ALIVE, np.packbits(first).tobytes())
            self._connect_near(found, self._merge("comparing bands", self.job.sections))
        return Clusters(exact, found.labels(), *overlaps(self.bench))

    def _connect_near(self, found: Components, runs: dict[str, Layout]) -> None:
        """Connect neighbours by length first: most others are then in one cluster already."""
        if not self.job.settings.threshold:
            self._connect_all(found, runs, NEXT)
            return
        for section in (NEXT, OTHERS):
            units = list(self._pair_units(found, runs, section))
            self.do("comparing n-grams", units)
            for unit in units:
                found.connect(*documents_of(self.similar([unit])))

    def _connect_all(self, found: Components, runs: dict[str, Layout], section: str) -> None:
        for pairs in self._parts(runs, section):
            found.connect(*documents_of(self._ours(pairs)))

    def _pair_units(
        self, found: Components, runs: dict[str, Layout], section: str
    ) -> Iterator[PairUnit]:
        """The pairs of documents that are in different clusters yet, in units."""
        for number, some in enumerate(self._parts(runs, section)):
            pairs = np.unique(self._ours(some))
            one, other = documents_of(pairs)
            apart = found.find(one) != found.find(other)
            name = f"{section}-{self._step(runs, section):03d}-{number:03d}"
            yield from self.pair_units(name, pairs[apart])

    def pair_units(self, name: str, pairs: Pairs) -> Iterator[PairUnit]:
        """Units that compare some pairs."""
        one, other = documents_of(pairs)
        ends = np.cumsum(self.bench.lengths(one) + self.bench.lengths(other))
        for first, stop in even_cuts(ends, _PAIR_TOKENS):
            unit = f"{name}-{first:010d}"
            size = int(ends[stop - 1] - (ends[first - 1] if first else 0))
            self.unfinished.note(pairs_file(unit), pairs[first:stop].tobytes())
            self.compared += stop - first
            yield PairUnit(unit, size, "pairs of documents")

    def similar(self, units: Iterable[PairUnit]) -> Pairs:
        """The pairs that units found similar enough."""
        found = [self.unfinished.receipt(unit.name, decode_pairs) for unit in units]
        pairs = np.concatenate([np.empty(0, np.uint64), *found])
        self.alike += len(pairs)
        return pairs

    def _ours(self, pairs: Pairs) -> Pairs:
        """The pairs of which a document may be dropped."""
        return pairs[documents_of(pairs)[0] < self._border]

    def _merge(self, label: str, sections: Sequence[str]) -> dict[str, Layout]:
        """Search sections of all signatures for equal hashes, in parts that fit in memory."""
        total = self.bench.members.total
        step = parts_together(total * RECORD_BYTES, self.memory)
        units = [
            CandidateUnit(f"{name}-{at:03d}-{step:03d}", total * step, name, name, at, at + step)
            for name in sections
            for at in range(0, PARTS, step)
        ]
        self.do(label, units)
        return self.bench.runs(unit.name for unit in units)

    def _parts(self, runs: dict[str, Layout], section: str) -> Iterator[Pairs]:
        """All pairs of a section, as many at a time as fit in memory; in order of the first."""
        step = self._step(runs, section)
        for at in range(0, PARTS, step):
            (pairs,), _ = read_part(self.bench.store, runs, section, at, at + step)
            yield pairs

    def _step(self, runs: dict[str, Layout], section: str) -> int:
        pairs = sum(layout[section].records for layout in runs.values())
        return parts_together(pairs * _PAIR_BYTES, self.memory)

    def do(self, label: str, units: Iterable[DedupUnit]) -> None:
        """Do units that have no receipt."""
        if not (every := list(units)):
            return
        done = self.unfinished.done()
        todo = [unit for unit in every if unit.name not in done]
        total = sum(unit.size for unit in every)
        with self.stage(label) as advance:
            bar = ProgressSum(total, advance, done=total - sum(unit.size for unit in todo))
            with self.unfinished.writing():
                if len(todo) <= _ALONE:
                    work = worker_of(self.job)
                    for unit in todo:
                        work(unit, lambda _: None)
                        bar.advance(unit.size)
                else:
                    self.make_engine(self.job, bar.advance).run(todo)


def parts_together(size: int, memory: int) -> int:
    """How many of the `PARTS` of so many bytes fit in memory; a power of two.

    >>> [parts_together(size, 2**20) for size in (0, 2**20, 2**20 + 1, 2**40)]
    [256, 256, 128, 1]
    """
    wanted = max(1, -(-size // max(memory, 1)))
    return max(1, PARTS >> (wanted - 1).bit_length())
