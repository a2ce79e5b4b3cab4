"""Documents as hashes: of the whole text, of its n-grams, and of samples of these.

Equal 128 bits mean equal texts; documents that share most n-grams share band hashes (MinHash).
"""

import hashlib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import AnyInts, Ints, expand, in_runs
from jaxdata.base.seeds import derive

Points = NDArray[np.uint32]
Hashes = NDArray[np.uint64]
VERSION = 1
"""Raised when a hash of a document becomes another: those of different versions do not compare."""
UNICODE = unicodedata.unidata_version
"""The version of the tables: a character that a later one adds is no letter to an earlier one."""
_SIZE = 0x110000
_LISTED = 0x20000  # above are ideographs, emoji of private use, tags and nothing else
_WORD, _ALONE = 1, 2
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)
"""Scripts that put no space between words: each character counts as one."""


@cache
def _tables() -> tuple[NDArray[np.uint8], Points]:
    """What each code point is (0: between words), and its lower case where that is one."""
    kind, lower = np.zeros(_SIZE, np.uint8), np.arange(_SIZE, dtype=np.uint32)
    for point in range(_LISTED):
        if unicodedata.category(chr(point))[0] in "LMN":
            kind[point] = _WORD
        if len(small := chr(point).lower()) == 1:
            lower[point] = ord(small)
    for first, last in _WITHOUT_SPACES:
        kind[first : last + 1][(kind[first : last + 1] > 0) | (first >= _LISTED)] = _ALONE
    return kind, lower


def code_points(texts: Sequence[str]) -> Points:
    """The characters of texts, each followed by a NUL, which is in no word."""
    data = "\0".join([*texts, ""]).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(data, "<u4")


def words(points: Points) -> tuple[Points, Ints, Ints]:
    """The characters in lower case, and where each word starts and stops, int64 (words,).

    A word is a run of letters, marks and digits, or one character of a script without spaces.

    >>> lower, starts, stops = words(code_points(["Ab c", "日本"]))
    >>> starts.tolist(), stops.tolist()
    ([0, 3, 5, 6], [2, 4, 6, 7])
    """
    kinds, lower = _tables()
    kind = kinds.take(points)
    within, before = kind > 0, np.append(np.uint8(0), kind[:-1])
    edge = (kind != before) | (kind == _ALONE)
    starts = np.flatnonzero(within & edge)
    # A word ends where the next character is of another kind, or a word by itself.
    following = np.append(edge[1:], True)
    return lower.take(points), starts, np.flatnonzero(within & following) + 1


ExactRule = Literal["none", "whitespace", "letters"]


def as_it_is(text: str) -> bytes:
    """The text itself."""
    return text.encode("utf-8", "surrogatepass")


def with_single_spaces(text: str) -> bytes:
    r"""The text in Unicode's NFC, each run of whitespace one space, none at its ends.

    >>> with_single_spaces("one \n\n two\t")
    b'one two'
    """
    return as_it_is(" ".join(unicodedata.normalize("NFC", text).split()))


def only_letters(text: str) -> bytes:
    """Letters and digits in lower case; a text without any as `with_single_spaces` has it."""
    kind, lower = _tables()
    points = code_points([unicodedata.normalize("NFC", text)])
    found = lower.take(points[kind.take(points) > 0])
    return b"\0" + found.tobytes() if len(found) else with_single_spaces(text)


RULES: dict[ExactRule, Callable[[str], bytes]] = {
    "none": as_it_is,
    "whitespace": with_single_spaces,
    "letters": only_letters,
}
"""How a text is normalised before it is hashed."""


def exact_hashes(normalised: Sequence[bytes]) -> Hashes:
    """The hashes of normalised texts, uint64 (texts, 2)."""
    digests = (hashlib.blake2b(content, digest_size=16).digest() for content in normalised)
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


NgramOf = Literal["words", "bytes", "ids"]

_CHARACTERS_AT_ONCE = 2**18  # characters
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xD6E8FEB86659FD93)  # as in `seeds`
_HALF = np.uint64(32)
_MOST = 3 * _CHARACTERS_AT_ONCE
"""Characters of a batch: the last part may be as long as all before it."""


class Pieces(NamedTuple):
    """What n-grams are made of, document after document."""

    values: Hashes
    """(pieces,) the hash of each word, byte or id"""
    counts: Ints
    """(documents,) pieces of each"""


def mixed(values: Hashes) -> Hashes:
    """A bijection of 64-bit numbers in which every bit depends on all."""
    for _ in range(2):
        values = (values ^ (values >> _HALF)) * _MIXER
    return values ^ (values >> _HALF)


def word_pieces(texts: Sequence[str]) -> Pieces:
    """The words of texts, in lower case, without what is between them."""
    values, counts = [np.empty(0, np.uint64)], np.zeros(len(texts), np.int64)
    cut = (
        (number, part)
        for number, text in enumerate(texts)
        for part in _cut(unicodedata.normalize("NFC", text))
    )
    for some, _ in in_runs(cut, lambda one: len(one[1]) + 1, lambda: _CHARACTERS_AT_ONCE):
        numbers, parts = [number for number, _ in some], [part for _, part in some]
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


def _word_hashes(lower: Points, starts: Ints, stops: Ints) -> Hashes:
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
    up, down = np.cumprod(np.full((_MOST, 2), [_BASE, inverse], np.uint64), axis=0).T
    return np.ascontiguousarray(up), np.ascontiguousarray(down)


def _cut(text: str) -> Iterator[str]:
    """Cut a text between words, where it has spaces at all."""
    while len(text) > _CHARACTERS_AT_ONCE:
        space = text.rfind(" ", _CHARACTERS_AT_ONCE // 2, _CHARACTERS_AT_ONCE)
        stop = _CHARACTERS_AT_ONCE if space < 0 else space
        yield text[:stop]
        text = text[stop:]
    yield text


_NGRAMS_AT_ONCE = 2**14  # n-grams: an array of them fits in a core's cache


class Bands:
    """The band hashes of documents, for one choice of bands and rows.

    >>> bands = Bands(bands=14, rows=8)
    >>> bands.of_all(Pieces(np.arange(5, dtype=np.uint64), np.array([2, 3]))).shape
    (14, 2)
    """

    def __init__(self, bands: int, rows: int) -> None:
        self.bands, self.rows = bands, rows
        names = [derive(0, "minhash", number) for number in range(bands * rows)]
        keys = mixed(np.array(names, np.uint64))
        self._factors = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        self._offsets = keys.astype(np.uint32)

    def of_all(self, grams: Pieces) -> Hashes:
        """uint64 (bands, documents); 0 in each band for documents without n-grams."""
        known = grams.counts > 0
        found = np.zeros((self.bands, len(known)), np.uint64)
        smallest = self._smallest(grams.values.astype(np.uint32), grams.counts[known])
        by_row = smallest.reshape(self.bands, self.rows, -1).astype(np.uint64)
        hashes = np.arange(self.bands, dtype=np.uint64)[:, None].repeat(by_row.shape[2], 1)
        for row in range(self.rows):
            hashes = hashes * _BASE + by_row[:, row]
        found[:, known] = mixed(hashes)
        return found

    def _smallest(self, values: NDArray[np.uint32], counts: Ints) -> NDArray[np.uint32]:
        """The smallest value of each document under each function, (functions, documents)."""
        begins = np.cumsum(counts) - counts
        pieces = np.union1d(begins, np.arange(0, len(values), _NGRAMS_AT_ONCE))
        functions = [*zip(self._factors, self._offsets, strict=True)]
        found = np.empty((len(functions), len(pieces)), np.uint32)
        for first in range(0, len(values), _NGRAMS_AT_ONCE):
            some = values[first : first + _NGRAMS_AT_ONCE]
            here = slice(*np.searchsorted(pieces, [first, first + len(some)]))
            starts, hashed = pieces[here] - first, np.empty_like(some)
            for number, (factor, offset) in enumerate(functions):
                np.multiply(some, factor, out=hashed)
                np.add(hashed, offset, out=hashed)
                found[number, here] = np.minimum.reduceat(hashed, starts)
        if len(pieces) == len(begins):
            return found
        return np.minimum.reduceat(found, np.searchsorted(pieces, begins), axis=1)
