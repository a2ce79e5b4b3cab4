"""Units that hash documents: the whole text of each, and the bands of its n-grams."""

from __future__ import annotations

import numpy as np

from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.dedup_job import EXACT, OVERLAP, SignatureUnit, even_cuts
from jaxdata.dedup.units.sorted_runs import Columns, encode_layout, encode_run, even_fences
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.hashing.ngrams import Hashes, Pieces
from jaxdata.processes import Report
from jaxdata.ragged import Ints

_AT_ONCE = 2**16
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
    data, layout = encode_run(_sections(bench, whole, bands, found), HASH_FENCES)
    report(1.0)
    bench.store.write(bench.run_file(unit.name), data)
    bench.unfinished.commit(unit.name, encode_layout(layout))


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
