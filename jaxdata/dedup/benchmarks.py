"""Benchmarks in documents: runs of their words or shares of n-grams, as ranges of tokens."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import orjson

from jaxdata.base.errors import InputError, digest
from jaxdata.base.hashing import Hashes, Pieces, code_points, id_pieces, word_pieces, words
from jaxdata.base.ragged import AnyArray, Ints, even_cuts, expand
from jaxdata.converter.conversion import texts_with_places
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.dataset.opening import Dataset
from jaxdata.dataset.views.source_view import TokenRanges
from jaxdata.dedup.job import PARTS, BenchmarkNgrams, Workbench
from jaxdata.dedup.members import Member, Numbers
from jaxdata.dedup.settings import OverlapRule

OVERLAP = "overlap"
"""The section of a run with n-grams of benchmarks."""
_AT_ONCE = 2**22
"""Places of n-grams in benchmarks that are compared at a time."""
_PARTS_AT_ONCE = PARTS // 16


def read_benchmarks(given: Sequence[str], text_key: str) -> list[tuple[Member, bytes]]:
    """Read the benchmarks of paths, globs or URLs, all of one place; each file is read once.

    Returns:
        Each file as a member; and the table of its texts that the job keeps, rows of the line (from
        1) or row (from 0) and the text.

    Raises:
        InputError: a file is not found, or has no record with a text under the key.
    """
    keys, found = tuple(key.strip() for key in text_key.split(",")), []
    for number, file in enumerate(find_inputs(given) if given else []):
        rows = [(place, text) for _, place, text in texts_with_places([file], keys)]
        if not rows:
            raise InputError(
                f"{file.where} has no record with a text under the key {','.join(keys)!r}; name "
                "the key of its texts with --text-key (several with commas)"
            )
        name, made_of = f"benchmark-{number:03d}", digest([text for _, text in rows])
        member = Member(file.name, len(rows), made_of, against=True, table=name)
        found.append((member, orjson.dumps(rows)))
    return found


def ngrams_in_benchmarks(
    bench: Workbench, pieces: Pieces, documents: Numbers
) -> tuple[Hashes, Numbers]:
    """N-grams of documents that are also in benchmarks, each once a document, and the document."""
    grams, known = bench.long_ngrams(pieces), bench.benchmarks.hashes
    at = np.searchsorted(known, grams.values)
    shared = known.take(at, mode="clip") == grams.values if len(known) else at < 0
    document = documents.repeat(grams.counts)[shared]
    both = np.stack([grams.values[shared], document.astype(np.uint64)])
    hashes, numbers = np.unique(both, axis=1)
    return hashes, numbers.astype(np.uint32)


class Overlaps(NamedTuple):
    """Documents with n-grams of benchmarks, ascending; (documents,) each."""

    documents: Numbers
    by: Numbers
    """the text of a benchmark that each has"""
    shared: Hashes
    """the n-grams that count, ascending"""


NO_OVERLAPS = Overlaps(np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.uint64))


def overlaps(bench: Workbench, runs: Sequence[str]) -> Overlaps:
    """Find them in the runs of the units that hashed documents."""
    if not bench.job.overlaps:
        return NO_OVERLAPS
    rule, known = bench.settings.overlap_rule, bench.benchmarks
    parts = list(_rare(bench, runs, rule.overlap_most or bench.members.total))
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


def _rare(bench: Workbench, runs: Sequence[str], most: int) -> Iterator[tuple[Numbers, Hashes]]:
    """Each document with each n-gram that it shares with benchmarks, unless that is common."""
    for at in range(0, PARTS, _PARTS_AT_ONCE):
        grams, documents = bench.read_part(runs, OVERLAP, at, at + _PARTS_AT_ONCE)
        _, which, times = np.unique(grams, return_inverse=True, return_counts=True)
        rare = times[which] <= most
        yield documents[rare], grams[rare]


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
    found = [NO_OVERLAPS[:2]]
    stops = np.append(0, last + 1)
    counts = np.diff(np.append(0, np.cumsum(high - low)[last]))
    for first, stop, _ in even_cuts(counts, _AT_ONCE):
        here = slice(stops[first], stops[stop])
        which, number = expand((high - low)[here])
        at = by_hash[low[here][which] + number]
        found.append(_enough(known, rule, documents[here][which], at))
    both, texts = map(np.concatenate, zip(*found, strict=True))
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


Spans = tuple[Ints, Ints]
"""the first and the last token, exclusive, of each"""


def benchmark_spans(
    bench: Workbench, which: int, documents: Ints, shared: Hashes, dataset: Dataset
) -> TokenRanges:
    """The ranges of a member's documents (numbers in it) that are n-grams in `shared`.

    With what a published rule takes around them.
    """
    spans = _of_ids if bench.settings.of == "ids" else _of_words
    found = []
    for number in documents.tolist():
        tokens = bench.texts[which].tokens(np.array([number]))[0]
        start, stop = spans(bench, tokens, shared, dataset)
        found.append(TokenRanges.of(np.full(len(start), number), start, stop))
    return TokenRanges.join(found)


def _of_ids(bench: Workbench, tokens: AnyArray, shared: Hashes, dataset: Dataset) -> Spans:
    place = np.flatnonzero(~np.isin(tokens, [*dataset.tokenizer.silent_ids]))
    at = _matches(bench, id_pieces([tokens[place]]), shared)
    return place[at], place[at + bench.settings.overlap - 1] + 1


def _of_words(bench: Workbench, tokens: AnyArray, shared: Hashes, dataset: Dataset) -> Spans:
    """The tokens of words; all tokens, where these are not the bytes of the text."""
    text, rule = dataset.decode(tokens), bench.settings.overlap_rule
    at = _matches(bench, word_pieces([text]), shared)
    every = np.zeros(1, np.int64), np.array([len(tokens)])
    sizes = dataset.token_bytes[tokens].astype(np.int64)
    points = code_points([text])
    utf8 = 1 + np.searchsorted([0x80, 0x800, 0x10000], points, side="right")
    in_bytes = np.append(0, np.cumsum(utf8))
    extra = int(sizes.sum() - (in_bytes[-1] - 1))  # a NUL ends the text
    if extra not in (0, 1) or not unicodedata.is_normalized("NFC", text):
        return every
    _, starts, stops = words(points)
    begin, end = starts[at], stops[at + bench.settings.overlap - 1]
    if rule.around:
        begin, end = around(rule, begin, end, len(text))
        if not len(begin):
            return every
    ends = np.cumsum(sizes) - extra  # a space that SentencePiece puts before a text
    first = np.searchsorted(ends, in_bytes[begin], side="right")
    last = np.searchsorted(ends, in_bytes[end]) + 1
    if rule.around:  # what begins and ends a document goes with the text beside it
        first[begin == 0], last[end == len(text)] = 0, len(tokens)
    return first, last


def around(rule: OverlapRule, starts: Ints, stops: Ints, length: int) -> tuple[Ints, Ints]:
    """Ranges of characters with those around them, and with pieces between that are too short.

    Returns:
        Where they begin and end; none of a text of so many characters that is split into too many
        pieces.

    >>> rule = OverlapRule(13, around=2, shortest=3, most_pieces=3)
    >>> [each.tolist() for each in around(rule, np.array([5, 12]), np.array([6, 15]), 30)]
    [[3], [17]]
    """
    begin, end = np.maximum(starts - rule.around, 0), np.minimum(stops + rule.around, length)
    pieces = np.append(begin, length) - np.append(0, end)
    if np.count_nonzero(pieces > 0) > rule.most_pieces:
        return begin[:0], end[:0]
    short = pieces < rule.shortest
    begin[:1][short[:1]], end[-1:][short[-1:]] = 0, length
    apart = np.flatnonzero(np.append(True, ~short[1:-1])[: len(begin)])
    return begin[apart], end[np.append(apart[1:], len(end))[: len(apart)] - 1]


def _matches(bench: Workbench, pieces: Pieces, shared: Hashes) -> Ints:
    """The pieces of a document at which n-grams in `shared` begin."""
    return np.flatnonzero(np.isin(bench.long_ngrams(pieces).values, shared))
