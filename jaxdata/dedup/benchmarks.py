"""Benchmarks in documents: runs of their words or shares of n-grams, as ranges of tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.facts import digest
from jaxdata.base.hashing import Hashes, Pieces, code_points, id_pieces, word_pieces, words
from jaxdata.base.ragged import Ints, expand
from jaxdata.converter.conversion import texts_with_places
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import InputFile
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.views.source_view import TokenRanges
from jaxdata.dedup.job import OVERLAP, BenchmarkNgrams, Workbench, even_cuts
from jaxdata.dedup.members import Member, Numbers, TokenTexts, special_ids
from jaxdata.dedup.settings import OverlapRule
from jaxdata.dedup.sorted_runs import PARTS, read_part


@dataclass(frozen=True)
class Benchmark:
    """The texts of a file, and the line (from 1) or row (from 0) of each."""

    member: Member
    texts: list[str]
    places: list[int]

    def table(self) -> bytes:
        """The texts as a job keeps them."""
        return orjson.dumps(self.texts)


def read_benchmarks(given: Sequence[str], text_key: str) -> list[Benchmark]:
    """Read the benchmarks of paths, globs or URLs, all of one place; each file is read once.

    Raises:
        InputError: a file is not found, or has no record with a text under the key.
    """
    files = find_inputs(given) if given else []
    keys = tuple(key.strip() for key in text_key.split(","))
    return [_read(file, keys, f"benchmark-{number:03d}") for number, file in enumerate(files)]


def _read(file: InputFile, keys: tuple[str, ...], table: str) -> Benchmark:
    rows = [(place, text) for _, place, text in texts_with_places([file], keys, "\n\n")]
    if not rows:
        raise InputError(
            f"{file.where} has no record with a text under the key {','.join(keys)!r}; name the "
            "key of its texts with --text-key (several with commas)"
        )
    texts = [text for _, text in rows]
    member = Member(file.name, len(texts), digest(texts), against=True, table=table)
    return Benchmark(member, texts, [place for place, _ in rows])


def places_by_file(benchmarks: Iterable[Benchmark]) -> Mapping[str, list[int]]:
    """The places of each file's texts, by its name."""
    return {each.member.name: each.places for each in benchmarks}


Spans = tuple[Ints, Ints, Hashes]
"""first and last, exclusive, of each; and the n-gram that begins it"""


def benchmark_spans(
    bench: Workbench, which: int, documents: Ints, shared: Hashes, dataset: Dataset
) -> TokenRanges:
    """The ranges of a member's documents (numbers in it) that are n-grams in `shared`.

    With what a published rule takes around them, and the benchmark's text that has them.
    """
    source = bench.texts[which]
    assert isinstance(source, TokenTexts)
    known = bench.benchmark_ngrams
    spans = _of_ids if bench.settings.of == "ids" else _of_words
    found = []
    for number in documents.tolist():
        tokens = source.tokens(np.array([number]))[0]
        start, stop, gram = spans(bench, tokens, shared, dataset)
        text = known.owners[np.searchsorted(known.hashes, gram)].astype(np.int64)
        first = np.column_stack([np.zeros_like(text), text, np.full_like(text, -1)])
        found.append(TokenRanges.of(np.full(len(start), number), start, stop, first=first))
    return TokenRanges.join(found)


def _of_ids(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    place = np.flatnonzero(~np.isin(tokens, special_ids(dataset.tokenizer)))
    at, grams = _matches(bench, id_pieces([tokens[place]]), shared)
    return place[at], place[at + bench.settings.overlap - 1] + 1, grams


def _of_words(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    """The tokens of words; all tokens, where these are not the bytes of the text."""
    text, rule = dataset.decode(tokens), bench.settings.overlap_rule
    at, grams = _matches(bench, word_pieces([text]), shared)
    every = np.zeros(1, np.int64), np.array([len(tokens)]), grams[:1]
    sizes = dataset.token_bytes[tokens].astype(np.int64)
    points = code_points([text])
    in_bytes = np.append(0, np.cumsum(_utf8_sizes(points)))
    extra = int(sizes.sum() - (in_bytes[-1] - 1))  # a NUL ends the text
    if extra not in (0, 1) or not unicodedata.is_normalized("NFC", text):
        return every
    _, starts, stops = words(points)
    begin, end = starts[at], stops[at + bench.settings.overlap - 1]
    if rule.around:
        apart, begin, end = around(rule, begin, end, len(text))
        if not len(begin):
            return every
        grams = grams[apart]
    ends = np.cumsum(sizes) - extra  # a space that SentencePiece puts before a text
    first = np.searchsorted(ends, in_bytes[begin], side="right")
    last = np.searchsorted(ends, in_bytes[end]) + 1
    if rule.around:  # what begins and ends a document goes with the text beside it
        first[begin == 0], last[end == len(text)] = 0, len(tokens)
    return first, last, grams


def around(rule: OverlapRule, starts: Ints, stops: Ints, length: int) -> tuple[Ints, Ints, Ints]:
    """Ranges of characters with those around them, and with pieces between that are too short.

    Returns:
        Which range begins each of them, and where they begin and end; none of a text of so many
        characters that is split into too many pieces.

    >>> rule = OverlapRule(13, around=2, shortest=3, most_pieces=3)
    >>> [each.tolist() for each in around(rule, np.array([5, 12]), np.array([6, 15]), 30)]
    [[0], [3], [17]]
    """
    begin, end = np.maximum(starts - rule.around, 0), np.minimum(stops + rule.around, length)
    pieces = np.append(begin, length) - np.append(0, end)
    if np.count_nonzero(pieces > 0) > rule.most_pieces:
        return begin[:0], begin[:0], end[:0]
    short = pieces < rule.shortest
    begin[:1][short[:1]], end[-1:][short[-1:]] = 0, length
    apart = np.flatnonzero(np.append(True, ~short[1:-1])[: len(begin)])
    return apart, begin[apart], end[np.append(apart[1:], len(end))[: len(apart)] - 1]


def _matches(bench: Workbench, pieces: Pieces, shared: Hashes) -> tuple[Ints, Hashes]:
    """The pieces of a document at which n-grams in `shared` begin, and these."""
    grams = bench.long_ngrams(pieces).values
    at = np.flatnonzero(np.isin(grams, shared))
    return at, grams[at]


def _utf8_sizes(points: NDArray[np.uint32]) -> Ints:
    """Bytes of each character in UTF-8."""
    sizes = np.ones(len(points), np.int64)
    for least in (0x80, 0x800, 0x10000):
        sizes += points >= least
    return sizes


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
