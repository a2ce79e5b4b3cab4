"""Which tokens a text must have, however it was tokenised: exact filters of token ids.

Where a text occurs, some token covers each of its bytes: one that lies inside of the text, or
begins before it, or ends after it. Of a text's bytes the one is chosen whose tokens are rarest; a
document without any of them does not hold the text. Where one of them is, up to eight bytes on both
sides of it are compared with the text's, which leaves next to nothing but hits. No document is
missed, whatever surrounds the text, and whether or not a tokenizer would write it so today.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.hashing import mixed
from jaxdata.base.ragged import Ints, consecutive
from jaxdata.tokenizers import Tokenizer

_SEAM = b"\xff"  # in no UTF-8
_CONSIDERED = 64
"""bytes of a text of which the best is chosen"""
_MARGIN = 16
"""bytes at both ends of a text that are not considered: too many tokens cover them; of a short
text only a third"""
_SIZES = (8, 4, 2, 0)
"""bytes on a side of a token that are compared"""
_BITS = 20
"""of a key, in a table"""
_MASKS = {size: np.uint64(2 ** (8 * size) - 1) for size in _SIZES}
_EIGHT, _FACTOR = np.uint64(8), np.uint64(0x9E3779B97F4A7C15)

Words = NDArray[np.uint64]


class Vocabulary:
    """The bytes of each token, and the tokens that begin, end or hold some bytes.

    Args:
        pieces: of each id.

    >>> found = Vocabulary([b"he", b"ello", b"", b" hell"])
    >>> sorted(found.around(b"hell", range(4)))
    [(0, 0), (1, 1), (3, -1)]
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._ids: dict[bytes, list[int]] = defaultdict(list)
        for number, piece in enumerate(pieces):
            if piece:
                self._ids[piece].append(number)
        self._sorted = sorted(self._ids)
        self._reversed = sorted(piece[::-1] for piece in self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        self._starts = [0, *accumulate(len(piece) + 1 for piece in self._sorted)]
        self._joined = _SEAM.join(self._sorted)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary | None:
        """That of a tokenizer; None if it decodes to more than its tokens one after the other."""
        silent = {tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id}
        pieces = [
            b"" if number in silent else piece
            for number, piece in enumerate(tokenizer.piece_bytes())
        ]
        whole = [number for number, piece in enumerate(pieces) if piece and _is_text(piece)]
        order = np.random.default_rng(0).permutation(whole).tolist()
        expected = b"".join(pieces[number] for number in order).decode()
        if tokenizer.decode(order) not in (expected, expected.removeprefix(" ")):
            return None
        letters = [number for number in order if pieces[number].isalpha()][:1]
        for number in np.flatnonzero([not piece for piece in pieces]).tolist():
            between = _between(tokenizer, letters, number)
            if between is None:
                return None
            pieces[number] = between.encode()
        return cls(pieces)

    def around(self, text: bytes, bytes_: range) -> Iterator[tuple[int, int]]:
        """(token, byte of the text where it begins) of tokens that cover one of some bytes of it.

        And of some that cover only others.
        """
        for ids, start in self._before(text, bytes_.start):
            yield from ((number, start) for number in ids)
        for start in range(max(bytes_.start - self._longest, 0), bytes_.stop):
            yield from ((number, start) for number in self.following(text, start))

    def following(self, text: bytes, start: int) -> Iterator[int]:
        """Tokens with which a text may go on at a byte: in it, or beyond its end."""
        rest = text[start : start + self._longest]
        for size in range(1, len(rest) + 1):
            part = rest[:size]
            at = bisect_left(self._sorted, part)
            if at == len(self._sorted) or not self._sorted[at].startswith(part):
                return
            if self._sorted[at] == part:
                yield from self._ids[part]
        if start + len(rest) == len(text):
            for piece in _beginning(self._sorted, rest):
                if len(piece) > len(rest):
                    yield from self._ids[piece]

    def _before(self, text: bytes, least: int) -> Iterator[tuple[list[int], int]]:
        """Tokens that begin before a text: they end in it after a byte, or hold all of it."""
        for size in range(least + 1, min(self._longest, len(text) - 1) + 1):
            for turned in _beginning(self._reversed, text[:size][::-1]):
                if len(turned) > size:
                    yield self._ids[turned[::-1]], size - len(turned)
        at = self._joined.find(text)
        while at >= 0:
            number = bisect_left(self._starts, at + 1) - 1
            if at > self._starts[number]:
                yield self._ids[self._sorted[number]], self._starts[number] - at
            at = self._joined.find(text, at + 1)


def _is_text(piece: bytes) -> bool:
    try:
        return "\ufffd" not in piece.decode()
    except UnicodeDecodeError:
        return False


def _between(tokenizer: Tokenizer, letters: list[int], number: int) -> str | None:
    """What an id without bytes of its own writes, as an unknown piece may; None if it changes more.

    It stands between `letters`, an id in a list.
    """
    edge = tokenizer.decode(letters)
    try:
        text = tokenizer.decode([*letters, number, *letters])
    except InputError:  # there is no such token
        return ""
    fits = text.startswith(edge) and text.endswith(edge) and len(text) >= 2 * len(edge)
    return text[len(edge) : len(text) - len(edge)] if fits else None


def _beginning(ordered: Sequence[bytes], part: bytes) -> Iterator[bytes]:
    """Those of sorted bytes that begin with a part."""
    for at in range(bisect_left(ordered, part), len(ordered)):
        if not ordered[at].startswith(part):
            return
        yield ordered[at]


class _Place(NamedTuple):
    """A way in which a token may lie in a text."""

    token: int
    before: bytes
    """of the text, as many as `_SIZES` has, nearest first"""
    after: bytes
    text: int


@dataclass(frozen=True)
class _Group:
    """The places with so many bytes before and after them."""

    before: int
    after: int
    seen: NDArray[np.bool_]
    """whether a key begins with these bits"""
    keys: Words
    """sorted"""
    owners: Ints
    """the text of each key"""

    @classmethod
    def of(cls, before: int, after: int, places: Sequence[_Place]) -> _Group:
        tokens = np.array([place.token for place in places], np.uint64)
        befores = np.array([_word(place.before) for place in places], np.uint64)
        afters = np.array([_word(place.after) for place in places], np.uint64)
        keys = _keys(tokens, befores, afters)
        order = np.argsort(keys, kind="stable")
        seen = np.zeros(2**_BITS, bool)
        seen[keys >> np.uint64(64 - _BITS)] = True
        owners = np.array([place.text for place in places], np.int64)
        return cls(before, after, seen, keys[order], owners[order])

    def matches(self, tokens: Words, before: Words, after: Words) -> tuple[Ints, Ints]:
        """(which of some tokens, text) that agree."""
        keys = _keys(tokens, before & _MASKS[self.before], after & _MASKS[self.after])
        rows = np.flatnonzero(self.seen.take(keys >> np.uint64(64 - _BITS)))
        first = np.searchsorted(self.keys, keys[rows])
        counts = np.searchsorted(self.keys, keys[rows], side="right") - first
        return rows.repeat(counts), self.owners[consecutive(first, counts)]


def _keys(tokens: Words, before: Words, after: Words) -> Words:
    return mixed(mixed(before) * _FACTOR + mixed(after) + tokens)


def _word(data: bytes) -> int:
    """Bytes as a number, the first one lowest."""
    return int.from_bytes(data[:8], "little")


class Anchors:
    """The places in documents where some texts may be.

    Args:
        vocabulary: the tokenizer's.
        texts: in UTF-8, none empty.
        counts: (ids,) how often each token occurs in a sample; makes it fast, not right.
    """

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[bytes], counts: Ints) -> None:
        pieces = [*vocabulary.pieces, b""]  # the last one stands for ids that are in no vocabulary
        self._heads = np.array([_word(piece) for piece in pieces], np.uint64)
        self._tails = np.array([_word(piece[::-1]) for piece in pieces], np.uint64)
        self._sizes = np.array([min(len(piece), 8) for piece in pieces], np.int64)
        self._flags = np.zeros(len(pieces), bool)
        places = defaultdict[tuple[int, int], list[_Place]](list)
        for place in _places(vocabulary, texts, counts):
            places[len(place.before), len(place.after)].append(place)
            self._flags[place.token] = True
        self._groups = [_Group.of(*sizes, some) for sizes, some in places.items()]

    def passing(self, ids: NDArray[np.unsignedinteger]) -> tuple[Ints, Ints]:
        """(place, text) where a text may be in documents that lie end to end."""
        at = np.flatnonzero(self._flags.take(ids, mode="clip"))
        tokens = ids[at].astype(np.uint64)
        after, before = self._beside(ids, at, 1), self._beside(ids, at, -1)
        places, texts = [at[:0]], [at[:0]]
        for group in self._groups:
            rows, owners = group.matches(tokens, before, after)
            places.append(at[rows])
            texts.append(owners)
        return np.concatenate(places), np.concatenate(texts)

    def _beside(self, ids: NDArray[np.unsignedinteger], at: Ints, way: int) -> Words:
        """The eight bytes after places (`way` 1) or before them (-1); zeros beyond all tokens."""
        words = self._heads if way > 0 else self._tails
        found, known = np.zeros(len(at), np.uint64), np.zeros(len(at), np.int64)
        rows, place = np.arange(len(at)), at
        while len(rows):
            place = place + way
            inside = (place >= 0) & (place < len(ids))
            rows, place = rows[inside], place[inside]
            token, filled = ids[place], known[rows]
            found[rows] |= words.take(token, mode="clip") << (_EIGHT * filled.astype(np.uint64))
            filled += self._sizes.take(token, mode="clip")
            known[rows] = filled
            rows, place = rows[filled < 8], place[filled < 8]
        return found


def _places(vocabulary: Vocabulary, texts: Sequence[bytes], counts: Ints) -> Iterator[_Place]:
    """The places of the rarest tokens of each text."""
    for number, text in enumerate(texts):
        for token, start, end in _rarest(vocabulary, text, counts):
            before = text[max(start - 8, 0) : max(start, 0)][::-1]
            yield _Place(token, _cut(before), _cut(text[end : end + 8]), number)


def _cut(data: bytes) -> bytes:
    return data[: next(size for size in _SIZES if size <= len(data))]


def _rarest(vocabulary: Vocabulary, text: bytes, counts: Ints) -> list[tuple[int, int, int]]:
    """(token, start, end) of tokens that cover the byte of a text whose tokens are rarest."""
    margin = min(len(text) // 3, _MARGIN)
    considered = range(margin, min(len(text) - margin, margin + _CONSIDERED))
    around = list(vocabulary.around(text, considered))
    tokens, starts = np.array(around, np.int64).reshape(-1, 2).T
    ends = starts + np.array([len(vocabulary.pieces[token]) for token in tokens.tolist()], np.int64)
    cost = np.zeros(len(text) + 1)
    weights = counts[tokens] + 0.01  # what the sample lacks is not free
    np.add.at(cost, np.maximum(starts, 0), weights)
    np.add.at(cost, np.minimum(ends, len(text)), -weights)
    byte = considered.start + int(np.argmin(np.cumsum(cost)[considered.start : considered.stop]))
    covers = (starts <= byte) & (byte < ends)
    found = (tokens[covers], starts[covers], ends[covers])
    return list(zip(*(each.tolist() for each in found), strict=True))
