"""Where documents have words in a row of a benchmark: as ranges of their tokens."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.hashing.characters import code_points, words
from jaxdata.dedup.hashing.ngrams import Hashes, Pieces, id_pieces, word_pieces
from jaxdata.dedup.member_texts import TokenTexts, special_ids
from jaxdata.dedup.published_rules import OverlapRule
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.documents.dataset import Dataset
from jaxdata.ragged import Ints
from jaxdata.views.token_ranges import TokenRanges

Spans = tuple[Ints, Ints]
"""first and last, exclusive, of each"""


def benchmark_spans(
    bench: Workbench, which: int, documents: Ints, shared: Hashes, dataset: Dataset
) -> TokenRanges:
    """The ranges of a member's documents (numbers in it) that are n-grams in `shared`.

    With what a published rule takes around them.
    """
    source = bench.texts[which]
    assert isinstance(source, TokenTexts)
    found: list[tuple[Ints, Ints, Ints]] = [(np.empty(0, np.int64),) * 3]
    for number in documents.tolist():
        tokens = source.tokens(np.array([number]))[0]
        spans = _of_ids if bench.settings.of == "ids" else _of_words
        start, stop = spans(bench, tokens, shared, dataset)
        found.append((np.full(len(start), number), start, stop))
    document, start, stop = (np.concatenate(part) for part in zip(*found, strict=True))
    return TokenRanges(document, start, stop, np.zeros(len(start), np.uint8))


def _of_ids(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    place = np.flatnonzero(~np.isin(tokens, special_ids(dataset.tokenizer)))
    at = _matches(bench, id_pieces([tokens[place]]), shared)
    return place[at], place[at + bench.settings.overlap - 1] + 1


def _of_words(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    """The tokens of words; all tokens, where these are not the bytes of the text."""
    text, every = dataset.decode(tokens), (np.zeros(1, np.int64), np.array([len(tokens)]))
    sizes = dataset.token_bytes[tokens].astype(np.int64)
    points = code_points([text])
    in_bytes = np.append(0, np.cumsum(_utf8_sizes(points)))
    extra = int(sizes.sum() - (in_bytes[-1] - 1))  # a NUL ends the text
    if extra not in (0, 1) or not unicodedata.is_normalized("NFC", text):
        return every
    at = _matches(bench, word_pieces([text]), shared)
    _, starts, stops = words(points)
    spans = starts[at], stops[at + bench.settings.overlap - 1]
    widened = around(bench.settings.overlap_rule, *spans, len(text))
    if widened is None:
        return every
    begin, end = widened
    ends = np.cumsum(sizes) - extra  # a space that SentencePiece puts before a text
    first = np.searchsorted(ends, in_bytes[begin], side="right")
    last = np.searchsorted(ends, in_bytes[end]) + 1
    if not bench.settings.overlap_rule.around:
        return first, last
    # What begins and ends a document goes with the text beside it.
    return np.where(begin == 0, 0, first), np.where(end == len(text), len(tokens), last)


def around(rule: OverlapRule, starts: Ints, stops: Ints, length: int) -> Spans | None:
    """Ranges of characters, ascending, with those around them and pieces that are too short.

    None where the text of so many characters is split into too many pieces.

    >>> rule = OverlapRule(13, around=2, shortest=3, most_pieces=3)
    >>> [each.tolist() for each in around(rule, np.array([5, 12]), np.array([6, 15]), 30)]
    [[3], [17]]
    """
    if not rule.around or not len(starts):
        return starts, stops
    begin, end = np.maximum(starts - rule.around, 0), np.minimum(stops + rule.around, length)
    pieces = np.append(begin, length) - np.append(0, end)
    if 0 < rule.most_pieces < np.count_nonzero(pieces > 0):
        return None
    begin[0] = 0 if begin[0] < rule.shortest else begin[0]
    end[-1] = length if length - end[-1] < rule.shortest else end[-1]
    apart = begin[1:] - end[:-1] >= rule.shortest
    return begin[np.append(True, apart)], end[np.append(apart, True)]


def _matches(bench: Workbench, pieces: Pieces, shared: Hashes) -> Ints:
    """The pieces of a document at which n-grams in `shared` begin."""
    grams = bench.long_ngrams(pieces).values
    return np.flatnonzero(np.isin(grams, shared))


def _utf8_sizes(points: NDArray[np.uint32]) -> Ints:
    """Bytes of each character in UTF-8."""
    sizes = np.ones(len(points), np.int64)
    for least in (0x80, 0x800, 0x10000):
        sizes += points >= least
    return sizes
