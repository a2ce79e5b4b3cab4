"""Units that find spans of tokens which occur before: samples, then all windows around some.

Spans of N equal tokens share a sample. So each window of N tokens that occurs twice is around a
sample that occurs twice, and only such windows are hashed, sorted and compared; none is missed.

A place is one uint64: the document's number in its upper half, the token's in its lower one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.member_texts import TokenTexts
from jaxdata.dedup.units.candidate_units import pair_fences
from jaxdata.dedup.units.dedup_job import KEPT, SAMPLES, SpanPart, SpanUnit, even_cuts
from jaxdata.dedup.units.signature_units import HASH_FENCES
from jaxdata.dedup.units.sorted_runs import (
    Columns,
    Layout,
    encode_layout,
    encode_run,
    read_part,
)
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.hashing.token_windows import sample_sizes, sampled, window_hashes, window_starts
from jaxdata.processes import Report
from jaxdata.ragged import Ints, expand

_AT_ONCE = 2**18
"""Tokens that are read at a time."""
Places = NDArray[np.uint64]


def hash_spans(bench: Workbench, unit: SpanUnit, report: Report) -> None:
    """Write samples of a unit's kept documents as a run; or windows around samples that repeat."""
    one = _samples if unit.section == SAMPLES else _windows
    columns: list[Columns] = [one(bench, unit, documents) for documents in _batches(bench, unit)]
    width = 2 if unit.section == SAMPLES else 3
    none: Columns = [np.empty(0, np.uint64)] * width
    joined = [np.concatenate(each) for each in zip(none, *columns, strict=True)]
    _write(bench, unit, {unit.section: joined}, HASH_FENCES, report)


def merge_spans(bench: Workbench, unit: SpanPart, report: Report) -> None:
    """Write the places of a part of all samples that repeat; or those of windows seen before.

    With each goes the first place of the same.
    """
    runs = bench.runs(unit.runs)
    (*hashes, places), _ = read_part(bench.store, runs, unit.section, unit.first, unit.stop)
    order = np.lexsort((places, *reversed(hashes)))
    equal = np.ones(max(len(order) - 1, 0), bool)
    for each in hashes:
        ordered = each[order]
        equal &= ordered[1:] == ordered[:-1]
    found = np.zeros(len(order), bool)
    found[1:] = equal
    earliest = places[order[np.maximum.accumulate(np.where(found, 0, np.arange(len(order))))]]
    if unit.section == SAMPLES:
        found[:-1] |= equal
    sections: dict[str, Columns] = {unit.section: [places[order[found]], earliest[found]]}
    _write(bench, unit, sections, pair_fences(bench.members.total), report)


def _write(
    bench: Workbench,
    unit: SpanUnit | SpanPart,
    sections: dict[str, Columns],
    fences: Places,
    report: Report,
) -> None:
    data, layout = encode_run(sections, fences)
    report(1.0)
    bench.store.write(bench.run_file(unit.name), data)
    bench.unfinished.commit(unit.name, encode_layout(layout))


def _batches(bench: Workbench, unit: SpanUnit) -> Iterator[Ints]:
    """The documents of a unit that are kept, by their numbers in the member."""
    before = bench.members.first(unit.member)
    bits = np.frombuffer(bench.unfinished.noted(KEPT) or b"", np.uint8)
    numbers = np.arange(before + unit.first, before + unit.stop)
    kept = (bits[numbers >> 3] >> (7 - (numbers & 7)).astype(np.uint8)) & 1
    documents = numbers[kept.astype(bool)] - before
    lengths = bench.texts[unit.member].lengths[documents]
    for first, stop in even_cuts(np.cumsum(lengths, dtype=np.int64), _AT_ONCE):
        yield documents[first:stop]


def _read(bench: Workbench, unit: SpanUnit, documents: Ints) -> tuple[Ints, Ints, Places]:
    """The tokens of documents, end to end; how many each has; and the place of each token."""
    texts = bench.texts[unit.member]
    assert isinstance(texts, TokenTexts)
    tokens = texts.tokens(documents)
    counts = np.array([len(each) for each in tokens], np.int64)
    document, token = expand(counts)
    numbers = (documents + bench.members.first(unit.member)).astype(np.uint64)
    places = (numbers[document] << np.uint64(32)) | token.astype(np.uint64)
    return np.concatenate(tokens).astype(np.int64), counts, places


def _samples(bench: Workbench, unit: SpanUnit, documents: Ints) -> Columns:
    """Hash and place of each sample."""
    span = bench.settings.repeats
    tokens, counts, places = _read(bench, unit, documents)
    n, w = sample_sizes(span)
    hashes = window_hashes(tokens, n)
    at = sampled(hashes, window_starts(counts, span), w)
    return [hashes[at], places[at]]


def _windows(bench: Workbench, unit: SpanUnit, documents: Ints) -> Columns:
    """Hash of 128 bits and place of each window around a sample that repeats."""
    span = bench.settings.repeats
    samples = _repeated(bench, unit, documents)
    number = (samples >> np.uint64(32)).astype(np.int64) - bench.members.first(unit.member)
    documents = np.intersect1d(documents, number)
    if not len(documents):
        return [np.empty(0, np.uint64)] * 3
    tokens, counts, places = _read(bench, unit, documents)
    at = np.searchsorted(places, samples)
    starts = window_starts(counts, span)
    _, w = sample_sizes(span)
    around = np.searchsorted(at, starts) < np.searchsorted(at, starts + w)
    starts = starts[around]
    return [*(window_hashes(tokens, span, which)[starts] for which in (0, 1)), places[starts]]


def _repeated(bench: Workbench, unit: SpanUnit, documents: Ints) -> Places:
    """The places of samples that repeat, in documents of a member; ascending."""
    before = bench.members.first(unit.member)
    begin, end = (
        np.uint64((before + int(number)) << 32) for number in (documents[0], documents[-1] + 1)
    )
    fences = pair_fences(bench.members.total)
    first = max(int(np.searchsorted(fences, begin, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(fences[:-1], end)), first + 1)
    runs: dict[str, Layout] = bench.runs(unit.runs)
    (found, _), _ = read_part(bench.store, runs, SAMPLES, first, stop)
    return np.sort(found[(found >= begin) & (found < end)])
