"""MinHash, from the documents' hashes to clusters, and exact copies on the way.

Units hash documents; equal hashes of whole texts are exact copies. A pair of Jaccard similarity *s*
meets in one of *b* bands of *r* rows with chance 1 − (1 − s^r)^b (Broder 1997; Leskovec, Rajaraman,
Ullman, *Mining of Massive Datasets*, 3.4). Pairs that meet are compared by all their n-grams; what
is similar enough is joined by union-find.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdata.base.hashing import Hashes, exact_hashes, ngrams
from jaxdata.base.processes import report
from jaxdata.base.ragged import AnyInts, even_cuts
from jaxdata.dedup.benchmarks import OVERLAP, ngrams_in_benchmarks
from jaxdata.dedup.job import Columns, DedupUnit, Search, Workbench, even_fences
from jaxdata.dedup.members import Numbers

EXACT = "exact"
"""The section of a run with the hashes of whole texts."""
HASH_FENCES = even_fences(2**64 - 1)
NEIGHBOURS = 16
"""In a bucket of a band a document is paired with so many that follow it by length. Copies are
about as long as each other, and a bucket of millions costs no more than a list of them."""
_SAME, _NEXT, _OTHERS = "same", "next", "others"
"""Sections of pairs: exact copies; neighbours in a bucket by length; and those further apart."""
_ALIVE = "alive.bits"
"""Which documents are not a copy of an earlier one."""
_TOKENS_AT_ONCE, _COMPARED_AT_ONCE = 2**16, 2**18
"""Tokens that are read at a time, to be hashed and to be compared."""
_PAIR_TOKENS = 2**23
_RECORD_BYTES, _PAIR_BYTES = 224, 48
"""Memory that merging takes for a record, and joining for a pair, about."""
_HALF = np.uint64(32)

Pairs = Hashes


class Clusters(NamedTuple):
    """Which documents are copies of each other: equal labels, uint32 (documents,)."""

    exact: Numbers
    near: Numbers
    """exact copies are near ones, too"""


def band_section(band: int) -> str:
    """The section of a run with one band's hashes."""
    return f"band-{band:03d}"


def find_clusters(search: Search) -> tuple[Clusters, list[str]]:
    """Do the units without a receipt; the clusters depend on the documents alone.

    Returns:
        The clusters; and the units that hashed documents.
    """
    bench, settings = search.bench, search.job.settings
    found = Components(bench.members.total)
    runs = search.do("reading documents", signature_units(bench))
    copies = search.merge("comparing hashes", write_candidates, [EXACT], runs, _RECORD_BYTES)
    for _, (pairs,) in search.parts(copies, _SAME, _PAIR_BYTES):
        found.connect(*documents_of(_ours(bench, pairs)))
    exact = found.labels().copy()
    if settings.near:
        bench.note_bits(_ALIVE, exact == np.arange(len(exact), dtype=np.uint32))
        sections = [band_section(band) for band in range(settings.bands)]
        met = search.merge("comparing bands", write_candidates, sections, runs, _RECORD_BYTES)
        # Neighbours by length first: most others are then in one cluster already.
        for section in (_NEXT, _OTHERS) if settings.threshold else (_NEXT,):
            _connect_near(search, found, met, section)
    return Clusters(exact, found.labels()), runs


def signature_units(bench: Workbench) -> list[DedupUnit]:
    """All documents, to be hashed."""
    return bench.units("hashes", write_signatures, bench.job.unit_tokens)


def _connect_near(search: Search, found: "Components", met: list[str], section: str) -> None:
    """Join pairs that met, those with a threshold only if they are similar enough."""
    bench, units = search.bench, list[DedupUnit]()
    for name, (some,) in search.parts(met, section, _PAIR_BYTES):
        pairs = np.unique(_ours(bench, some))
        one, other = documents_of(pairs)
        if not bench.settings.threshold:
            found.connect(one, other)
            continue
        pairs = pairs[found.find(one) != found.find(other)]
        one, other = documents_of(pairs)
        sizes = bench.lengths(one) + bench.lengths(other)
        for first, stop, size in even_cuts(sizes, _PAIR_TOKENS):
            unit = DedupUnit(f"{name}-{first:010d}", size, "pairs of documents", compare_pairs)
            bench.unfinished.note(f"{unit.name}.pairs", pairs[first:stop].tobytes())
            search.compared += stop - first
            units.append(unit)
    for each in search.do("comparing n-grams", units):
        pairs = np.frombuffer(bench.unfinished.receipt(each, bytes), np.uint64)
        search.alike += len(pairs)
        found.connect(*documents_of(pairs))


def _ours(bench: Workbench, pairs: Pairs) -> Pairs:
    """The pairs of which a document may be dropped: members that lose some come first."""
    ours = sum(member.documents for member in bench.members.each if not member.against)
    return pairs[documents_of(pairs)[0] < ours]


def write_signatures(bench: Workbench, unit: DedupUnit) -> None:
    """Hash the documents of a unit; its run has a section of whole texts and one for each band.

    A record is a hash and the document's number; with whole texts the hash's other 64 bits, too.
    Another section has n-grams that are also in benchmarks. What the conversion kept is not made
    again.
    """
    settings, count, texts = bench.settings, unit.stop - unit.first, bench.texts[unit.member]
    kept, bands = texts.kept(settings, unit.first, unit.stop), settings.bands * settings.near
    whole = kept.get("exact_hash", np.empty((count, 2), np.uint64))
    hashes = kept.get("band_hash", np.zeros((count, bands), np.uint64))
    first = bench.members.first(unit.member) + unit.first
    numbers = np.arange(first, first + count, dtype=np.uint32)
    shared: list[Columns] = [(np.empty(0, np.uint64), np.empty(0, np.uint32))]
    read = bench.looks_in(unit.member) or not texts.hashed(settings)
    lengths = texts.lengths[unit.first : unit.stop]
    for first, stop, _ in even_cuts(lengths, _TOKENS_AT_ONCE) if read else ():
        here = slice(first, stop)
        pieces, normalised = bench.content(unit.member, np.arange(first, stop) + unit.first)
        if "exact_hash" not in kept:
            whole[here] = exact_hashes(normalised)
        if settings.near and "band_hash" not in kept:
            hashes[here] = bench.bands.of_all(ngrams(pieces, settings.ngram)).T
        if bench.looks_in(unit.member):
            shared.append(ngrams_in_benchmarks(bench, pieces, numbers[here]))
        report(stop / count)
    sections: dict[str, Columns] = {EXACT: [whole[:, 0], whole[:, 1], numbers]}
    known = hashes.any(axis=1)  # documents without n-grams are in no band
    for band in range(bands):
        sections[band_section(band)] = [hashes[known, band], numbers[known]]
    if bench.job.overlaps:
        sections[OVERLAP] = [np.concatenate(part) for part in zip(*shared, strict=True)]
    bench.write_run(unit, sections, HASH_FENCES)


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


def write_candidates(bench: Workbench, unit: DedupUnit) -> None:
    """Write the pairs of a part of all hashes as a run."""
    columns = bench.read_part(unit.runs, unit.section, unit.first, unit.stop)
    documents = columns[-1]
    if unit.section == EXACT:
        sections = {_SAME: exact_pairs(columns[0], columns[1], documents)}
    else:
        alive = bench.holds(_ALIVE, documents)
        hashes, documents = columns[0][alive], documents[alive]
        sections = near_pairs(hashes, bench.lengths(documents), documents)
    found: dict[str, Columns] = {name: [np.unique(pairs)] for name, pairs in sections.items()}
    bench.write_run(unit, found, pair_fences(bench.members.total))


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
    return {_NEXT: found[0], _OTHERS: np.concatenate(found[1:])}


def compare_pairs(bench: Workbench, unit: DedupUnit) -> None:
    """Compare the pairs of a unit; its receipt has those that are similar enough."""
    pairs = np.frombuffer(bench.unfinished.noted(f"{unit.name}.pairs") or b"", np.uint64)
    one, other = documents_of(pairs)
    sets = dict(_ngram_sets(bench, np.union1d(one, other)))
    found = [
        jaccard(sets[a], sets[b]) >= bench.settings.threshold
        for a, b in zip(one.tolist(), other.tolist(), strict=True)
    ]
    report(1.0)
    bench.unfinished.commit(unit.name, pairs[np.array(found, np.bool_)].tobytes())


def _ngram_sets(bench: Workbench, numbers: Numbers) -> Iterator[tuple[int, Hashes]]:
    """The n-grams of some documents, each a sorted set."""
    for first, stop, _ in even_cuts(bench.lengths(numbers), _COMPARED_AT_ONCE):
        some = numbers[first:stop]
        member, document = bench.members.places(some)
        for each in np.unique(member).tolist():
            of = np.flatnonzero(member == each)
            grams = ngrams(bench.content(each, document[of])[0], bench.settings.ngram)
            sets = map(np.unique, np.split(grams.values, np.cumsum(grams.counts)[:-1]))
            yield from zip(some[of].tolist(), sets, strict=True)


def jaccard(one: Hashes, other: Hashes) -> float:
    """The share of common elements in the union of two sets, as sorted arrays; 0 of empty ones.

    >>> jaccard(np.array([1, 2, 3]), np.array([2, 3, 4]))
    0.5
    """
    both = np.sort(np.concatenate([one, other]))
    common = int(np.count_nonzero(both[1:] == both[:-1]))
    return common / (len(both) - common) if len(both) else 0.0


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

    def find(self, nodes: AnyInts) -> Numbers:
        """The component of each node."""
        root = self._parent[nodes]
        while not np.array_equal(root, up := self._parent[root]):
            root = up
        self._parent[nodes] = root
        return root

    def labels(self) -> Numbers:
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
