"""Spans of tokens that occur before: windows of ids hashed, sampled, then compared.

Equal spans have a sample in common: one of their windows of half as many tokens (winnowing). Only
windows around samples that occur twice are hashed at full length, so that no sort takes all windows
of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.hashing import Hashes, mixed
from jaxdata.base.processes import Report
from jaxdata.base.ragged import AnyInts, Ints, expand
from jaxdata.dataset.views.source_view import NO_RANGES, TokenRanges
from jaxdata.dedup.job import Columns, DedupJob, DedupUnit, Search, Work, Workbench, even_cuts
from jaxdata.dedup.minhash import HASH_FENCES, pair_fences

_SAMPLES, _WINDOWS = "samples", "windows"
"""Sections of runs: sampled windows of tokens, and all that are around some of these."""
_KEPT = "kept.bits"
"""Which documents are not dropped."""
_BASES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
_AT_ONCE = 2**18
"""Tokens that are read at a time."""
_UNIT_TOKENS = 2**24
"""Tokens of a unit at most: all of them may be in repeated spans, of 24 bytes each."""
_RECORD_BYTES = 80
"""Memory that merging takes for a record, about."""
_HALF = np.uint64(32)
Places = NDArray[np.uint64]
"""Tokens, by the number of their document and theirs in it."""


def check_no_pairs(job: DedupJob) -> None:
    """Raise InputError where documents of a source have two sides, and a part of one would go."""
    action = job.settings.overlap_action
    if job.settings.repeats:
        setting, remedy = f"repeats={job.settings.repeats}", "repeats=0"
    elif job.overlaps and action != "drop":
        setting, remedy = f"overlap_action={action!r}", "overlap_action='drop'"
    else:
        return
    for member in job.members.each:
        if len(member.sides) > 1 and not member.against:
            raise InputError(
                f"{setting}: {member.name} has preference pairs, whose two sides begin alike; "
                f"expected sources without: name them with --sources, or use {remedy}"
            )


def repeated_spans(search: Search, dropped: AnyInts) -> TokenRanges:
    """The tokens of kept documents in spans of `repeats` tokens, or more, that occur before.

    Before: in an earlier document, in the order of members and then of numbers, or earlier in the
    same one, where the two may overlap. Every such token is found, and no other: windows of so many
    tokens are equal if 128 bits of their hashes are. All tokens count, also those that begin and
    end documents. Documents are numbered across members.
    """
    bench, span = search.bench, search.job.settings.repeats
    if not span:
        return NO_RANGES
    kept = np.ones(bench.members.total, np.bool_)
    kept[dropped] = False
    bench.note_bits(_KEPT, kept)
    samples = _merged(search, _SAMPLES, _write_samples, ())
    windows = _merged(search, _WINDOWS, _write_windows, samples)
    found = []
    for _, (places,) in search.parts(windows, _WINDOWS, _RECORD_BYTES):
        found.append(_ranges(np.sort(places), span))
    return TokenRanges.join(found)


def _merged(search: Search, section: str, work: Work, runs: Sequence[str]) -> list[str]:
    """Hash the documents of sources for a section, and merge the runs."""
    bench, most = search.bench, min(search.job.unit_tokens, _UNIT_TOKENS)
    units = bench.units(section, work, most, section, tuple(runs))
    units = [unit for unit in units if not bench.members.each[unit.member].against]
    hashed = search.do(f"hashing {section}", units)
    label = f"comparing {section}"
    return search.merge(label, "repeated-", _write_repeated, [section], hashed, _RECORD_BYTES)


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
    found = one = mixed(ids.astype(np.uint64) + np.uint64(base))
    length = 1
    for bit in bin(n)[3:]:
        found = _joined(found, found, length, length, base)
        length *= 2
        if bit == "1":
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


def _write_samples(bench: Workbench, unit: DedupUnit, report: Report) -> None:
    """Write hash and place of each sample of a unit's kept documents as a run."""
    span = bench.settings.repeats
    n, w = sample_sizes(span)
    columns: list[Columns] = [[np.empty(0, np.uint64)] * 2]
    for documents in _batches(bench, unit):
        tokens, counts, places = _read(bench, unit, documents)
        hashes = window_hashes(tokens, n)
        at = sampled(hashes, window_starts(counts, span), w)
        columns.append([hashes[at], places[at]])
    _write(bench, unit, columns, report)


def _write_windows(bench: Workbench, unit: DedupUnit, report: Report) -> None:
    """Write hash of 128 bits and place of each window around a sample that repeats."""
    span = bench.settings.repeats
    _, w = sample_sizes(span)
    columns: list[Columns] = [[np.empty(0, np.uint64)] * 3]
    for documents in _batches(bench, unit):
        samples = _repeated(bench, unit, documents)
        number = (samples >> _HALF).astype(np.int64) - bench.members.first(unit.member)
        if len(documents := np.intersect1d(documents, number)):
            tokens, counts, places = _read(bench, unit, documents)
            at, starts = np.searchsorted(places, samples), window_starts(counts, span)
            around = np.searchsorted(at, starts) < np.searchsorted(at, starts + w)
            starts = starts[around]
            both = (window_hashes(tokens, span, which)[starts] for which in (0, 1))
            columns.append([*both, places[starts]])
    _write(bench, unit, columns, report)


def _write(bench: Workbench, unit: DedupUnit, columns: list[Columns], report: Report) -> None:
    joined = [np.concatenate(each) for each in zip(*columns, strict=True)]
    bench.write_run(unit, {unit.section: joined}, HASH_FENCES, report)


def _write_repeated(bench: Workbench, unit: DedupUnit, report: Report) -> None:
    """Write the places of a part of all samples that repeat; or those of windows seen before."""
    (*hashes, places), _ = bench.read_part(unit.runs, unit.section, unit.first, unit.stop)
    order = np.lexsort((places, *reversed(hashes)))
    equal = np.ones(max(len(order) - 1, 0), np.bool_)
    for each in hashes:
        ordered = each[order]
        equal &= ordered[1:] == ordered[:-1]
    found = np.zeros(len(order), np.bool_)
    found[1:] = equal
    if unit.section == _SAMPLES:
        found[:-1] |= equal
    sections: dict[str, Columns] = {unit.section: [places[order[found]]]}
    bench.write_run(unit, sections, pair_fences(bench.members.total), report)


def _batches(bench: Workbench, unit: DedupUnit) -> Iterator[Ints]:
    """The documents of a unit that are kept, by their numbers in the member."""
    documents = np.arange(unit.first, unit.stop)
    documents = documents[bench.holds(_KEPT, documents + bench.members.first(unit.member))]
    lengths = bench.texts[unit.member].lengths[documents]
    for first, stop, _ in even_cuts(lengths, _AT_ONCE):
        yield documents[first:stop]


def _read(bench: Workbench, unit: DedupUnit, documents: Ints) -> tuple[Ints, Ints, Places]:
    """The tokens of documents, end to end; how many each has; and the place of each token."""
    tokens = bench.texts[unit.member].tokens(documents)
    counts = np.array([len(each) for each in tokens], np.int64)
    document, token = expand(counts)
    numbers = (documents + bench.members.first(unit.member)).astype(np.uint64)
    places = (numbers[document] << _HALF) | token.astype(np.uint64)
    return np.concatenate(tokens).astype(np.int64), counts, places


def _repeated(bench: Workbench, unit: DedupUnit, documents: Ints) -> Places:
    """The places of samples that repeat, in documents of a member; ascending."""
    before = bench.members.first(unit.member)
    begin, end = (
        np.uint64((before + int(number)) << 32) for number in (documents[0], documents[-1] + 1)
    )
    fences = pair_fences(bench.members.total)
    first = max(int(np.searchsorted(fences, begin, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(fences[:-1], end)), first + 1)
    (found,), _ = bench.read_part(unit.runs, _SAMPLES, first, stop)
    return np.sort(found[(found >= begin) & (found < end)])


def _ranges(places: Places, span: int) -> TokenRanges:
    """Windows of `span` tokens as ranges, those that meet as one."""
    apart = np.append(True, np.diff(places) > span)[: len(places)]
    (document, start), (_, last) = map(
        _document_and_token, (places[apart], places[np.append(apart[1:], True)[: len(places)]])
    )
    return TokenRanges.of(document, start, last + span)


def _document_and_token(places: Places) -> tuple[Ints, Ints]:
    return (places >> _HALF).astype(np.int64), places.astype(np.uint32).astype(np.int64)
