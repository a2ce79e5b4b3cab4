"""Documents that have benchmarks in them: a run of their words, or a share of one's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdata.dedup.benchmarks.published_rules import OverlapRule
from jaxdata.dedup.members import Numbers
from jaxdata.dedup.units.dedup_job import OVERLAP, even_cuts
from jaxdata.dedup.units.sorted_runs import PARTS, read_part
from jaxdata.dedup.units.workbench import BenchmarkNgrams, Workbench
from jaxdata.hashing.ngrams import Hashes
from jaxdata.ragged import Ints, expand

_AT_ONCE = 2**22
"""Places of n-grams in benchmarks that are compared at a time."""


class Overlaps(NamedTuple):
    """Documents with n-grams of benchmarks, ascending; (documents,) each."""

    documents: Numbers
    by: Numbers
    """the text of a benchmark that each has"""
    shared: Hashes
    """the n-grams that count, ascending"""


NONE = Overlaps(np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.uint64))


def overlaps(bench: Workbench) -> Overlaps:
    """Find them in the runs of all signatures."""
    if not bench.job.overlaps:
        return NONE
    rule, known = bench.settings.overlap_rule, bench.benchmark_ngrams
    parts = list(_rare(bench, rule.overlap_most or bench.members.total))
    documents, grams = (np.concatenate(each) for each in zip(*parts, strict=True))
    shared = np.unique(grams)
    if rule.percent:
        documents, texts = _with_share(known, rule, documents, grams)
        shared = np.unique(known.values[np.isin(known.text, texts)])
    else:
        texts = known.owners[np.searchsorted(known.hashes, grams)]
    order = np.lexsort((texts, documents))
    found, first = np.unique(documents[order], return_index=True)
    return Overlaps(found, texts[order][first], shared)


def _rare(bench: Workbench, most: int) -> Iterator[tuple[Numbers, Hashes]]:
    """Each document with each n-gram that it shares with benchmarks, unless that is common."""
    runs = bench.runs(bench.signatures)
    first = np.array([*bench.signatures.values()], np.uint32)
    step = PARTS // 16
    for at in range(0, PARTS, step):
        (grams, numbers), counts = read_part(bench.store, runs, OVERLAP, at, at + step)
        _, which, times = np.unique(grams, return_inverse=True, return_counts=True)
        rare = times[which] <= most
        yield (numbers + first.repeat(counts))[rare], grams[rare]


def _with_share(
    known: BenchmarkNgrams, rule: OverlapRule, documents: Numbers, grams: Hashes
) -> tuple[Numbers, Numbers]:
    """Documents that have enough of a text, and the text; pairs."""
    by_hash = np.argsort(known.values, kind="stable")
    order = np.argsort(documents, kind="stable")
    documents, grams = documents[order], grams[order]
    low, high = (
        np.searchsorted(known.values, grams, side, sorter=by_hash) for side in ("left", "right")
    )
    last = np.flatnonzero(np.append(documents[1:] != documents[:-1], True))[: len(documents)]
    found = [(NONE.documents, NONE.by)]
    stops = np.append(0, last + 1)
    for first, stop in even_cuts(np.cumsum(high - low)[last], _AT_ONCE):
        here = slice(stops[first], stops[stop])
        which, number = expand((high - low)[here])
        at = by_hash[low[here][which] + number]
        found.append(_enough(known, rule, documents[here][which], at))
    pairs = (np.concatenate(each) for each in zip(*found, strict=True))
    both, texts = pairs
    return both, texts


def _enough(
    known: BenchmarkNgrams, rule: OverlapRule, documents: Numbers, at: Ints
) -> tuple[Numbers, Numbers]:
    """The pairs of documents and texts, given the places of the n-grams that they share."""
    order = np.lexsort((at, documents))
    documents, at = documents[order], at[order]
    text = known.text[at]
    ends = np.append((documents[1:] != documents[:-1]) | (text[1:] != text[:-1]), True)[: len(at)]
    sizes, words = np.ones(len(at), np.int64), known.counts[known.row[at]]
    if rule.percent_of == "words":
        sizes = np.where(ends, rule.overlap, np.minimum(np.append(np.diff(at), 0), rule.overlap))
        words = words + rule.overlap - 1
    last = np.flatnonzero(ends)
    had = np.diff(np.append(0, np.cumsum(sizes)[last]))
    enough = 100 * had >= rule.percent * words[last] + rule.more
    return documents[last[enough]], text[last[enough]]
