"""Units that merge a part of all hashes: whose hashes are equal may be copies of each other.

A pair of documents is one uint64, the smaller number in its upper half.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.dedup_job import EXACT, NEXT, OTHERS, SAME, CandidateUnit
from jaxdata.dedup.units.sorted_runs import (
    Columns,
    encode_layout,
    encode_run,
    even_fences,
    read_part,
)
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.hashing.ngrams import Hashes
from jaxdata.processes import Report
from jaxdata.ragged import AnyInts

NEIGHBOURS = 16
"""In a bucket of a band a document is paired with so many that follow it by length. Copies are
about as long as each other, and a bucket of millions costs no more than a list of them."""
RECORD_BYTES = 224
"""Memory that merging takes for a record, about."""
_HALF = np.uint64(32)

Pairs = NDArray[np.uint64]


def pairs_of(one: AnyInts, other: AnyInts) -> Pairs:
    """Pairs as numbers."""
    small, large = np.minimum(one, other), np.maximum(one, other)
    return (small.astype(np.uint64) << _HALF) | large.astype(np.uint64)


def documents_of(pairs: Pairs) -> tuple[Numbers, Numbers]:
    """The documents of pairs.

    >>> [found.tolist() for found in documents_of(pairs_of(np.array([7]), np.array([3])))]
    [[3], [7]]
    """
    return (pairs >> _HALF).astype(np.uint32), pairs.astype(np.uint32)


def pair_fences(total: int) -> Pairs:
    """Fences of pairs of `total` documents."""
    return even_fences(total) << _HALF


def write_candidates(bench: Workbench, unit: CandidateUnit, report: Report) -> None:
    """Write the pairs of a part of all hashes as a run."""
    runs = bench.runs(bench.signatures)
    columns, counts = read_part(bench.store, runs, unit.section, unit.first, unit.stop)
    first = np.array([*bench.signatures.values()], np.uint32).repeat(counts)
    documents = columns[-1] + first
    if unit.section == EXACT:
        sections = {SAME: exact_pairs(columns[0], columns[1], documents)}
    else:
        alive = bench.alive(documents)
        hashes, documents = columns[0][alive], documents[alive]
        sections = near_pairs(hashes, bench.lengths(documents), documents)
    found: dict[str, Columns] = {name: [np.unique(pairs)] for name, pairs in sections.items()}
    data, layout = encode_run(found, pair_fences(bench.members.total))
    report(1.0)
    bench.store.write(bench.run_file(unit.name), data)
    bench.unfinished.commit(unit.name, encode_layout(layout))


def exact_pairs(high: Hashes, low: Hashes, documents: Numbers) -> Pairs:
    """Each document with the first that has the same hash."""
    order = np.lexsort((documents, low, high))
    high, low, documents = high[order], low[order], documents[order]
    equal = np.append(False, (high[1:] == high[:-1]) & (low[1:] == low[:-1]))[: len(order)]
    first = np.maximum.accumulate(np.where(equal, 0, np.arange(len(order))))
    return pairs_of(documents[first[equal]], documents[equal])


def near_pairs(hashes: Hashes, lengths: AnyInts, documents: Numbers) -> dict[str, Pairs]:
    """Documents of equal hashes, each with the next ones by length (then by number)."""
    order = np.lexsort((documents, lengths, hashes))
    hashes, documents = hashes[order], documents[order]
    found = []
    for step in range(1, NEIGHBOURS + 1):
        equal = hashes[step:] == hashes[:-step]
        found.append(pairs_of(documents[:-step][equal], documents[step:][equal]))
    return {NEXT: found[0], OTHERS: _joined(found[1:])}


def _joined(pairs: Iterable[Pairs]) -> Pairs:
    return np.concatenate([np.empty(0, np.uint64), *pairs])
