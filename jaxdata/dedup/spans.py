"""Spans of tokens that occur before: windows of ids hashed, sampled, then compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.hashing import Hashes, mixed
from jaxdata.base.processes import Report
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dedup.job import KEPT, SAMPLES, SpanPart, SpanUnit, Workbench, even_cuts
from jaxdata.dedup.members import TokenTexts
from jaxdata.dedup.minhash import HASH_FENCES, pair_fences
from jaxdata.dedup.sorted_runs import Columns, Layout, read_part

_BASES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


def sample_sizes(span: int) -> tuple[int, int]:
    """Tokens `n` of a sampled window, and how many of these, `w`, a span has: n + w - 1 = span.

    >>> sample_sizes(50)
    (26, 25)
    """
    w = max(1, span // 2)
    return span - w + 1, w


def window_hashes(ids: AnyInts, n: int, which: int = 0) -> Hashes:
    """One hash for each run of `n` ids, (ids - n + 1,); `which` of 0 and 1 are independent.

    A polynomial modulo 2^64 in mixed values, made of those of half as many ids.

    >>> a, b, c = window_hashes(np.array([7, 8, 7, 8]), 2).tolist()
    >>> a == c != b
    True
    """
    base = int(_BASES[which])
    found = mixed(ids.astype(np.uint64) + np.uint64(base))
    length = 1
    for bit in bin(n)[3:]:
        found = _joined(found, found, length, length, base)
        length *= 2
        if bit == "1":
            one = mixed(ids.astype(np.uint64) + np.uint64(base))
            found = _joined(found, one, length, 1, base)
            length += 1
    return mixed(found)


def _joined(first: Hashes, second: Hashes, one: int, other: int, base: int) -> Hashes:
    """Hashes of windows of `one` ids, each with those of the `other` ids after it."""
    after = second[one:]
    power = np.uint64(pow(base, other, 2**64))
    return first[: len(after)] * power + after


def window_starts(counts: Ints, n: int) -> Ints:
    """Where windows of `n` tokens begin in documents of `counts` tokens, end to end.

    >>> window_starts(np.array([4, 2, 3]), 3).tolist()
    [0, 1, 6]
    """
    document, place = expand(np.maximum(counts - n + 1, 0))
    starts: Ints = (np.cumsum(counts) - counts)[document] + place
    return starts


def sampled(hashes: Hashes, starts: Ints, w: int) -> Ints:
    """The windows with the smallest of `w` hashes in a row, for each row that begins at `starts`.

    Equal rows have their first smallest hash at the same place, so that spans of n + w - 1 equal
    tokens share a sample, wherever they are. Of random tokens about 2 / (w + 1) are sampled.
    """
    if not len(starts):
        return starts
    rows = np.lib.stride_tricks.sliding_window_view(hashes, w)
    return np.unique(starts + rows.argmin(axis=1)[starts])


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
    bench.write_run(unit, {unit.section: joined}, HASH_FENCES, report)


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
    bench.write_run(unit, sections, pair_fences(bench.members.total), report)


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
