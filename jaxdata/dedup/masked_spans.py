"""Where documents have words in a row of a benchmark: as ranges of their tokens, to be masked."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.dedup.member_texts import TokenTexts, special_ids
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.documents.dataset import Dataset
from jaxdata.hashing.characters import code_points, words
from jaxdata.hashing.ngrams import Hashes, Pieces, id_pieces, word_pieces
from jaxdata.ragged import Ints
from jaxdata.views.source_view import NO_RANGES, MaskedRanges

Spans = tuple[Ints, Ints]
"""first and last, exclusive, of each"""


def masked_spans(
    bench: Workbench, which: int, documents: Ints, shared: Hashes, dataset: Dataset
) -> MaskedRanges:
    """The ranges of a member's documents (numbers in it) that are n-grams in `shared`."""
    source = bench.texts[which]
    if not isinstance(source, TokenTexts):
        return NO_RANGES
    found: list[tuple[Ints, Ints, Ints]] = [(np.empty(0, np.int64),) * 3]
    for number in documents.tolist():
        tokens = source.tokens(np.array([number]))[0]
        spans = _of_ids if bench.settings.of == "ids" else _of_words
        start, stop = spans(bench, tokens, shared, dataset)
        found.append((np.full(len(start), number), start, stop))
    document, start, stop = (np.concatenate(part) for part in zip(*found, strict=True))
    return MaskedRanges(document, start, stop, np.zeros(len(start), np.uint8))


def _of_ids(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    place = np.flatnonzero(~np.isin(tokens, special_ids(dataset.tokenizer)))
    at = _matches(bench, id_pieces([tokens[place]]), shared)
    return place[at], place[at + bench.settings.overlap - 1] + 1


def _of_words(bench: Workbench, tokens: NDArray[Any], shared: Hashes, dataset: Dataset) -> Spans:
    """The tokens of words; all tokens, where these are not the bytes of the text."""
    text = dataset.decode(tokens)
    sizes = dataset.token_bytes[tokens].astype(np.int64)
    points = code_points([text])
    in_bytes = np.append(0, np.cumsum(_utf8_sizes(points)))
    extra = int(sizes.sum() - (in_bytes[-1] - 1))  # a NUL ends the text
    if extra not in (0, 1) or not unicodedata.is_normalized("NFC", text):
        return np.zeros(1, np.int64), np.array([len(tokens)])
    at = _matches(bench, word_pieces([text]), shared)
    _, starts, stops = words(points)
    begin, end = in_bytes[starts[at]], in_bytes[stops[at + bench.settings.overlap - 1]]
    ends = np.cumsum(sizes) - extra  # a space that SentencePiece puts before a text
    return np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end) + 1


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
