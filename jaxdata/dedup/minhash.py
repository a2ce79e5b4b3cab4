"""MinHash in three stages of units: hash documents, group equal bands, compare the pairs.

A pair of Jaccard similarity *s* meets in one of *b* bands of *r* rows with chance 1 − (1 − s^r)^b
(Broder 1997; Leskovec, Rajaraman, Ullman, *Mining of Massive Datasets*, 3.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.hashing import Hashes, Pieces
from jaxdata.base.processes import Report
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.dataset.checksums import checked_bytes, with_checksum
from jaxdata.dedup.job import (
    EXACT,
    NEXT,
    OTHERS,
    OVERLAP,
    SAME,
    CandidateUnit,
    PairUnit,
    SignatureUnit,
    Workbench,
    even_cuts,
)
from jaxdata.dedup.members import Numbers
from jaxdata.dedup.sorted_runs import Columns, even_fences, read_part

_TOKENS_AT_ONCE = 2**16
"""Tokens that are read at a time."""
HASH_FENCES = even_fences(2**64 - 1)


def write_signatures(bench: Workbench, unit: SignatureUnit, report: Report) -> None:
    """Hash the documents of a unit; its run has a section of whole texts and one for each band.

    A record is a hash and the document's number in the unit; with whole texts the hash's other
    64 bits, too. Another section has n-grams that are also in benchmarks. What the conversion kept
    is not made again.
    """
    count = unit.stop - unit.first
    kept = bench.kept[unit.member].between(unit.first, unit.stop)
    whole = kept.get("exact_hash", np.empty((count, 2), np.uint64))
    bands = kept.get("band_hash", np.zeros((count, len(bench.job.sections)), np.uint64))
    found: list[tuple[Hashes, Numbers]] = []
    for documents in _batches(bench, unit) if bench.reads_text(unit.member) else ():
        here = slice(int(documents[0]) - unit.first, int(documents[-1]) + 1 - unit.first)
        content = bench.content(unit.member, documents)
        if "exact_hash" not in kept:
            whole[here] = bench.exact_hashes(content)
        if content.pieces is not None and bench.settings.near and "band_hash" not in kept:
            bands[here] = bench.bands.of_all(bench.ngrams(content.pieces)).T
        if content.pieces is not None and bench.looks_in(unit.member):
            found.append(_of_benchmarks(bench, content.pieces, here.start))
        report(here.stop / count)
    bench.write_run(unit, _sections(bench, whole, bands, found), HASH_FENCES, report)


def _sections(
    bench: Workbench,
    whole: Hashes,
    bands: Hashes,
    found: list[tuple[Hashes, Numbers]],
) -> dict[str, Columns]:
    """The sections of a run, of hashes (documents, n); documents without n-grams are in no band."""
    numbers = np.arange(len(whole), dtype=np.uint32)
    known = bands.any(axis=1)
    sections: dict[str, Columns] = {EXACT: [whole[:, 0], whole[:, 1], numbers]}
    for name, hashes in zip(bench.job.sections, bands[known].T, strict=True):
        sections[name] = [hashes, numbers[known]]
    if bench.job.overlaps:
        empty = [(np.empty(0, np.uint64), np.empty(0, np.uint32))]
        sections[OVERLAP] = [np.concatenate(part) for part in zip(*empty, *found, strict=True)]
    return sections


def _batches(bench: Workbench, unit: SignatureUnit) -> list[Ints]:
    lengths = bench.texts[unit.member].lengths[unit.first : unit.stop]
    cuts = even_cuts(np.cumsum(lengths, dtype=np.int64), _TOKENS_AT_ONCE)
    return [np.arange(unit.first + a, unit.first + b) for a, b in cuts]


def _of_benchmarks(bench: Workbench, pieces: Pieces, first: int) -> tuple[Hashes, Numbers]:
    """N-grams of benchmarks, each once a document; numbers of documents begin at `first`."""
    grams = bench.long_ngrams(pieces)
    known = bench.benchmark_ngrams.hashes
    at = np.searchsorted(known, grams.values)
    shared = known.take(at, mode="clip") == grams.values if len(known) else at < 0
    document = np.arange(first, first + len(grams.counts), dtype=np.uint32).repeat(grams.counts)
    both = np.stack([grams.values[shared], document[shared].astype(np.uint64)])
    hashes, numbers = np.unique(both, axis=1)
    return hashes, numbers.astype(np.uint32)


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
    bench.write_run(unit, found, pair_fences(bench.members.total), report)


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


_PAIRS_AT_ONCE = 2**18
"""Tokens that are read at a time."""


def pairs_file(unit: str) -> str:
    """The name under which the job keeps the pairs of a unit."""
    return f"{unit}.pairs"


def compare_pairs(bench: Workbench, unit: PairUnit, report: Report) -> None:
    """Compare the pairs of a unit; its receipt has those that are similar enough."""
    data = bench.unfinished.noted(pairs_file(unit.name)) or b""
    pairs = np.frombuffer(data, np.uint64)
    one, other = documents_of(pairs)
    sets = NgramSets(bench, np.union1d(one, other))
    found = [
        jaccard(sets[a], sets[b]) >= bench.settings.threshold
        for a, b in zip(one.tolist(), other.tolist(), strict=True)
    ]
    report(1.0)
    bench.unfinished.commit(unit.name, encode_pairs(pairs[np.array(found, bool)]))


def jaccard(one: Hashes, other: Hashes) -> float:
    """The share of common elements in the union of two sets, as sorted arrays; 0 of empty ones.

    >>> jaccard(np.array([1, 2, 3]), np.array([2, 3, 4]))
    0.5
    """
    both = np.sort(np.concatenate([one, other]))
    common = int(np.count_nonzero(both[1:] == both[:-1]))
    return common / (len(both) - common) if len(both) else 0.0


def encode_pairs(pairs: Pairs) -> bytes:
    """A receipt of pairs."""
    return with_checksum(pairs.tobytes())


def decode_pairs(data: bytes) -> Pairs:
    """The pairs in a receipt; raises ValueError if it differs from its checksum."""
    content = checked_bytes(data)
    if content is None:
        raise ValueError("a receipt differs from its checksum")
    return np.frombuffer(content, np.uint64)


class NgramSets:
    """The n-grams of some documents, each a sorted set."""

    def __init__(self, bench: Workbench, numbers: Numbers) -> None:
        self._bench = bench
        self._sets = dict(self._read(numbers))

    def __getitem__(self, number: int) -> Hashes:
        return self._sets[number]

    def _read(self, numbers: Numbers) -> Iterator[tuple[int, Hashes]]:
        ends = np.cumsum(self._bench.lengths(numbers))
        for first, stop in even_cuts(ends, _PAIRS_AT_ONCE):
            some = numbers[first:stop]
            member, document = self._bench.members.places(some)
            for each in np.unique(member).tolist():
                of = np.flatnonzero(member == each)
                content = self._bench.content(each, document[of])
                assert content.pieces is not None
                yield from zip(some[of].tolist(), self._sets_of(content.pieces), strict=True)

    def _sets_of(self, pieces: Pieces) -> Iterator[NDArray[np.uint64]]:
        grams = self._bench.ngrams(pieces)
        yield from map(np.unique, np.split(grams.values, np.cumsum(grams.counts)[:-1]))
