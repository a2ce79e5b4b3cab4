"""The n-grams of documents, as 64-bit hashes: of words, of bytes or of token ids.

A hash of a word or an n-gram is a polynomial modulo 2^64 in mixed values of its parts, so that
numpy makes all of a batch at once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.hashing.characters import code_points, words
from jaxdata.hashing.exact_hashes import with_single_spaces
from jaxdata.ragged import AnyInts, Ints, expand

NgramOf = Literal["words", "bytes", "ids"]
Hashes = NDArray[np.uint64]

_AT_ONCE = 2**18  # characters
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xD6E8FEB86659FD93)  # as in `seeds`
_HALF = np.uint64(32)
_MOST = 3 * _AT_ONCE
"""Characters of a batch: the last part may be as long as all before it."""


class Pieces(NamedTuple):
    """What n-grams are made of, document after document."""

    values: Hashes
    """(pieces,) the hash of each word, byte or id"""
    counts: Ints
    """(documents,) pieces of each"""


def mixed(values: NDArray[np.uint64]) -> Hashes:
    """A bijection of 64-bit numbers in which every bit depends on all."""
    for _ in range(2):
        values = (values ^ (values >> _HALF)) * _MIXER
    return values ^ (values >> _HALF)


def word_pieces(texts: Sequence[str]) -> Pieces:
    """The words of texts, in lower case, without what is between them."""
    values, counts = [np.empty(0, np.uint64)], np.zeros(len(texts), np.int64)
    for numbers, parts in _batches(texts):
        points = code_points(parts)
        lower, starts, stops = words(points)
        values.append(_word_hashes(lower, starts, stops))
        ends = np.cumsum([len(part) + 1 for part in parts])
        before = np.append(0, np.searchsorted(starts, ends))
        np.add.at(counts, numbers, np.diff(before))
    return Pieces(np.concatenate(values), counts)


def byte_pieces(texts: Sequence[str]) -> Pieces:
    """The bytes of texts in UTF-8, with single spaces, in lower case."""
    data = [with_single_spaces(text.lower()) for text in texts]
    values = np.frombuffer(b"".join(data), np.uint8)
    return _pieces_of(values, np.array([len(one) for one in data], np.int64))


def id_pieces(ids: Sequence[AnyInts]) -> Pieces:
    """Token ids."""
    values = np.concatenate([np.empty(0, np.uint32), *ids])
    return _pieces_of(values, np.array([len(one) for one in ids], np.int64))


def ngrams(pieces: Pieces, n: int) -> Pieces:
    """The hashes of runs of `n` pieces, in order, and how many each document has.

    A document with fewer has one of all its pieces; one without any has none.

    >>> ngrams(Pieces(np.arange(7, dtype=np.uint64), np.array([4, 0, 2, 1])), 3).counts.tolist()
    [2, 0, 1, 1]
    """
    values, counts = pieces
    short = (counts > 0) & (counts < n)
    found = np.where(short, 1, np.maximum(counts - n + 1, 0))
    document, place = expand(found)
    first = (np.cumsum(counts) - counts)[document] + place
    length = np.where(short[document], counts[document], n)
    hashes = np.zeros(len(first), np.uint64)
    if not len(first):
        return Pieces(hashes, found)
    last = len(values) - 1
    for offset in range(n):
        taken = values.take(np.minimum(first + offset, last))
        if short.any():
            taken[offset >= length] = 0
        hashes *= _BASE
        hashes += taken
    return Pieces(mixed(hashes), found)


def _pieces_of(values: AnyInts, counts: Ints) -> Pieces:
    return Pieces(mixed(values.astype(np.uint64) + _BASE), counts)


def _word_hashes(lower: NDArray[np.uint32], starts: Ints, stops: Ints) -> Hashes:
    """One hash for each range of characters: the same wherever in the array it lies."""
    powers, inverses = _powers()
    values = lower.astype(np.uint64) * _MIXER
    values ^= values >> _HALF
    values *= powers[: len(lower)]
    sums = np.append(np.uint64(0), np.cumsum(values))
    return mixed((sums[stops] - sums[starts]) * inverses[starts])


@cache
def _powers() -> tuple[Hashes, Hashes]:
    """Powers of the base for each place in a batch, and those of its inverse."""
    inverse = np.uint64(pow(int(_BASE), -1, 2**64))
    up, down = np.cumprod(
        np.full((_MOST, 2), [_BASE, inverse], np.uint64), axis=0, dtype=np.uint64
    ).T
    return np.ascontiguousarray(up), np.ascontiguousarray(down)


def _batches(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Parts of texts of about `_AT_ONCE` characters together, and the text that each is of."""
    numbers: list[int] = []
    parts: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        for part in _cut(unicodedata.normalize("NFC", text)):
            numbers.append(number)
            parts.append(part)
            size += len(part) + 1
            if size >= _AT_ONCE:
                yield numbers, parts
                numbers, parts, size = [], [], 0
    if parts:
        yield numbers, parts


def _cut(text: str) -> Iterator[str]:
    """Cut a text between words, where it has spaces at all."""
    while len(text) > _AT_ONCE:
        space = text.rfind(" ", _AT_ONCE // 2, _AT_ONCE)
        stop = _AT_ONCE if space < 0 else space
        yield text[:stop]
        text = text[stop:]
    yield text
