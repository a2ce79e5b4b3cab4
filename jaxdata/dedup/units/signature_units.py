"""Units that hash documents: the whole text of each, and the bands of its n-grams."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.hashing.ngrams import Hashes, Pieces
from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.dedup_job import EXACT, OVERLAP, SignatureUnit, even_cuts
from jaxdata.dedup.units.sorted_runs import Columns, encode_layout, encode_run, even_fences
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.processes import Report
from jaxdata.ragged import Ints

_AT_ONCE = 2**16
"""Tokens that are read at a time."""
HASH_FENCES = even_fences(2**64 - 1)


def write_signatures(bench: Workbench, unit: SignatureUnit, report: Report) -> None:
    """Hash the documents of a unit; its run has a section of whole texts and one for each band.

    A record is a hash and the document's number in the unit; with whole texts the hash's other
    64 bits, too. Another section has n-grams that are also in benchmarks.
    """
    count = unit.stop - unit.first
    whole, known = np.empty((count, 2), np.uint64), np.zeros(count, bool)
    bands = np.empty((len(bench.job.sections), count), np.uint64)
    looks = bench.job.overlaps and not bench.members.each[unit.member].against
    found: list[tuple[Hashes, Numbers]] = []
    for documents in _batches(bench, unit):
        here = slice(int(documents[0]) - unit.first, int(documents[-1]) + 1 - unit.first)
        content = bench.content(unit.member, documents)
        whole[here] = bench.exact_hashes(content)
        if content.pieces is not None and bench.settings.near:
            known[here], bands[:, here] = _bands(bench, content.pieces)
        if content.pieces is not None and looks:
            found.append(_of_benchmarks(bench, content.pieces, here.start))
        report(here.stop / count)
    numbers = np.arange(count, dtype=np.uint32)
    sections: dict[str, Columns] = {EXACT: [whole[:, 0], whole[:, 1], numbers]}
    for name, hashes in zip(bench.job.sections, bands, strict=True):
        sections[name] = [hashes[known], numbers[known]]
    if bench.job.overlaps:
        empty = [(np.empty(0, np.uint64), np.empty(0, np.uint32))]
        sections[OVERLAP] = [np.concatenate(part) for part in zip(*empty, *found, strict=True)]
    data, layout = encode_run(sections, HASH_FENCES)
    report(1.0)
    bench.store.write(bench.run_file(unit.name), data)
    bench.unfinished.commit(unit.name, encode_layout(layout))


def _batches(bench: Workbench, unit: SignatureUnit) -> list[Ints]:
    lengths = bench.texts[unit.member].lengths[unit.first : unit.stop]
    cuts = even_cuts(np.cumsum(lengths, dtype=np.int64), _AT_ONCE)
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


def _bands(bench: Workbench, pieces: Pieces) -> tuple[NDArray[np.bool_], Hashes]:
    """Which documents have n-grams; and band hashes, uint64 (bands, documents), of these."""
    grams = bench.ngrams(pieces)
    known = grams.counts > 0
    found = np.zeros((bench.bands.bands, len(known)), np.uint64)
    if known.any():
        found[:, known] = bench.bands(Pieces(grams.values, grams.counts[known]))
    return known, found
