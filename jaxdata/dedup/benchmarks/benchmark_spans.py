"""Where documents have words in a row of a benchmark: as ranges of their tokens."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.benchmarks.published_rules import OverlapRule
from jaxdata.dedup.member_texts import TokenTexts, special_ids
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.documents.dataset import Dataset
from jaxdata.hashing.characters import code_points, words
from jaxdata.hashing.ngrams import Hashes, Pieces, id_pieces, word_pieces
from jaxdata.ragged import Ints
from jaxdata.views.cut_ranges import TokenRanges

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
