"""Spans of tokens that occur before: windows of ids hashed, sampled, then compared.

Equal spans have a sample in common: one of their windows of half as many tokens (winnowing). Only
windows around samples that occur twice are hashed at full length, so that no sort takes all windows
of all tokens.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxdata.base.hashing import Hashes, mixed
from jaxdata.base.ragged import AnyInts, Ints, even_cuts, expand, merged
from jaxdata.dataset.views.source_view import NO_RANGES, TokenRanges
from jaxdata.dedup.job import Columns, DedupUnit, Search, Work, Workbench
from jaxdata.dedup.minhash import HASH_FENCES, documents_of, pair_fences

_SAMPLES, _WINDOWS = "samples", "windows"
"""Sections of runs: sampled windows of tokens, and all that are around some of these."""
_KEPT = "kept.bits"
"""Which documents are not dropped."""
_BASES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_AT_ONCE = 2**18
"""Tokens that are read at a time."""
_UNIT_TOKENS = 2**24
"""Tokens of a unit at most: all of them may be in repeated spans, of 24 bytes each."""
_RECORD_BYTES = 80
"""Memory that merging takes for a record, about."""
_HALF = np.uint64(32)
Places = Hashes
"""Tokens, by the number of their document and theirs in it."""


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
    parts = search.parts(windows, _WINDOWS, _RECORD_BYTES)
    return TokenRanges.join(_ranges(places, span) for _, (places,) in parts)


def _merged(search: Search, section: str, work: Work, runs: Sequence[str]) -> list[str]:
    """Hash the documents of sources for a section, and merge the runs."""
    bench, most = search.bench, min(search.job.unit_tokens, _UNIT_TOKENS)
    units = bench.units(section, work, most, section, tuple(runs))
    units = [unit for unit in units if not bench.members.each[unit.member].against]
    hashed = search.do(f"hashing {section}", units)
    label = f"comparing {section}"
    return search.merge(label, _write_repeated, [section], hashed, _RECORD_BYTES)


def sample_sizes(span: int) -> tuple[int, int]:
    """Tokens `n` of a sampled window, and how many of these, `w`, a span has: n + w - 1 = span.

    >>> sample_sizes(50)
    (26, 25)
    """
    w = max(1, span // 2)
    return span - w + 1, w


def window_hashes(ids: AnyInts, n: int, which: int = 0) -> Hashes:
    """One hash for each run of `n` ids, (ids - n + 1,); `which` of 0 and 1 are independent.

    A polynomial modulo 2^64 in mixed values: the difference of two sums of powers, shifted.

    >>> a, b, c = window_hashes(np.array([7, 8, 7, 8]), 2).tolist()
    >>> a == c != b
    True
    """
    base = _BASES[which]
    both = np.array([[base], [pow(base, -1, 2**64)]], np.uint64)
    up, down = np.cumprod(both.repeat(len(ids), axis=1), axis=1)
    values = mixed(ids.astype(np.uint64) + np.uint64(base)) * down
    sums = np.append(np.uint64(0), np.cumsum(values))
    return mixed((sums[n:] - sums[: max(len(sums) - n, 0)]) * up[n - 1 :])


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


def _write_samples(bench: Workbench, unit: DedupUnit) -> None:
    """Write hash and place of each sample of a unit's kept documents as a run."""
    span, first = bench.settings.repeats, bench.members.first(unit.member)
    n, w = sample_sizes(span)
    numbers = np.arange(first + unit.first, first + unit.stop)
    columns: list[Columns] = [[np.empty(0, np.uint64)] * 2]
    for tokens, counts, places in _read(bench, unit, numbers[bench.holds(_KEPT, numbers)]):
        hashes = window_hashes(tokens, n)
        at = sampled(hashes, window_starts(counts, span), w)
        columns.append([hashes[at], places[at]])
    _write(bench, unit, columns)


def _write_windows(bench: Workbench, unit: DedupUnit) -> None:
    """Write hash of 128 bits and place of each window around a sample that repeats."""
    span = bench.settings.repeats
    _, w = sample_sizes(span)
    samples = _repeated_samples(bench, unit)
    columns: list[Columns] = [[np.empty(0, np.uint64)] * 3]
    for tokens, counts, places in _read(bench, unit, np.unique(samples >> _HALF).astype(np.int64)):
        here = slice(*samples.searchsorted([places[0], places[-1] + np.uint64(1)]))
        at, starts = np.searchsorted(places, samples[here]), window_starts(counts, span)
        around = np.searchsorted(at, starts) < np.searchsorted(at, starts + w)
        starts = starts[around]
        both = (window_hashes(tokens, span, which)[starts] for which in (0, 1))
        columns.append([*both, places[starts]])
    _write(bench, unit, columns)


def _read(
    bench: Workbench, unit: DedupUnit, numbers: Ints
) -> Iterator[tuple[AnyInts, Ints, Places]]:
    """The tokens of a unit's documents, some at a time, end to end; how many each has; places."""
    texts, documents = bench.texts[unit.member], numbers - bench.members.first(unit.member)
    for first, stop, _ in even_cuts(texts.lengths[documents], _AT_ONCE):
        tokens, counts = texts.end_to_end(documents[first:stop])
        document, token = expand(counts)
        places = numbers[first:stop][document].astype(np.uint64) << _HALF
        yield tokens, counts, places | token.astype(np.uint64)


def _write(bench: Workbench, unit: DedupUnit, columns: list[Columns]) -> None:
    joined = [np.concatenate(each) for each in zip(*columns, strict=True)]
    bench.write_run(unit, {unit.section: joined}, HASH_FENCES)


def _write_repeated(bench: Workbench, unit: DedupUnit) -> None:
    """Write the places of a part of all samples that repeat; or those of windows seen before."""
    *hashes, places = bench.read_part(unit.runs, unit.section, unit.first, unit.stop)
    order = np.lexsort((places, *reversed(hashes)))
    ordered = np.stack(hashes)[:, order]
    found = np.append(False, (ordered[:, 1:] == ordered[:, :-1]).all(axis=0))[: len(order)]
    if unit.section == _SAMPLES:
        found |= np.append(found[1:], False)[: len(order)]
    sections: dict[str, Columns] = {unit.section: [places[order[found]]]}
    bench.write_run(unit, sections, pair_fences(bench.members.total))


def _repeated_samples(bench: Workbench, unit: DedupUnit) -> Places:
    """The places of samples that repeat, in the documents of a unit; ascending."""
    first = bench.members.first(unit.member)
    begin, end = (np.uint64(first + each) << _HALF for each in (unit.first, unit.stop))
    fences = pair_fences(bench.members.total)
    parts = int(fences.searchsorted(begin, side="right")) - 1, int(fences.searchsorted(end))
    (found,) = bench.read_part(unit.runs, _SAMPLES, *parts)
    return np.sort(found[(found >= begin) & (found < end)])


def _ranges(places: Places, span: int) -> TokenRanges:
    """Windows of `span` tokens as ranges, those that meet as one."""
    document, start = (each.astype(np.int64) for each in documents_of(places))
    return TokenRanges.of(*merged(document, start, start + span, gap=0)[:3])
