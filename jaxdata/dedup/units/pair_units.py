"""Units that compare pairs of documents: the Jaccard similarity of their n-grams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.candidate_units import Pairs, documents_of
from jaxdata.dedup.units.dedup_job import PairUnit, even_cuts
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.format.checksums import checked_bytes, with_checksum
from jaxdata.hashing.ngrams import Hashes, Pieces
from jaxdata.processes import Report

_AT_ONCE = 2**18
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
        for first, stop in even_cuts(ends, _AT_ONCE):
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
