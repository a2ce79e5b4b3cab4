"""Words, n-grams, bands and windows of any texts, against hashes made one number at a time."""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings, strategies as st

from jaxdata.base import hashing
from jaxdata.base.hashing import Pieces
from jaxdata.base.seeds import derive
from jaxdata.dedup import spans as token_windows

BASE = 0x9E3779B97F4A7C15
ALL = 2**64
IDEOGRAPHS = range(0x20000, 0x40000)
SCRIPTS_WITHOUT_SPACES = (
    range(0x0E00, 0x0F00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0x3040, 0x3100),
    range(0x31F0, 0x3200), range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00),
    range(0xFF66, 0xFFA0), IDEOGRAPHS,
)  # fmt: skip
EDGES = [point for each in SCRIPTS_WITHOUT_SPACES for point in (each[0], each[-1])]
LETTERS = [chr(point + step) for point in EDGES for step in (-1, 0, 1)]
LETTERS += [*"abZ9 \t\n.,'-_", "\u0301", "\u0130", "\u00c9", "\u00df", "\u2167", "\U0001f600"]
LETTERS += ["\U0001d400", "\U00010400", "\u4e2d", "\ud800", "\U000e0100", "\u00a0", "\0"]
"""Characters of every kind, and those at the borders of kinds."""


def mix(number: int) -> int:
    for _ in range(2):
        number = ((number ^ number >> 32) * 0xD6E8FEB86659FD93) % ALL
    return number ^ number >> 32


def polynomial(numbers: Iterable[int], base: int = BASE) -> int:
    """The first number has the highest power."""
    found = 0
    for number in numbers:
        found = (found * base + number) % ALL
    return found


def is_letter(character: str) -> bool:
    point = ord(character)
    if point >= 0x20000:
        return point in IDEOGRAPHS
    return unicodedata.category(character)[0] in "LMN"


def is_a_word(character: str) -> bool:
    """Whether it is one by itself."""
    return is_letter(character) and any(ord(character) in each for each in SCRIPTS_WITHOUT_SPACES)


def small(character: str) -> str:
    lower = character.lower()
    return lower if len(lower) == 1 and ord(character) < 0x20000 else character


def words_of(text: str) -> list[str]:
    found, inside = [], False
    for character in unicodedata.normalize("NFC", text):
        if not is_letter(character):
            inside = False
        elif is_a_word(character) or not inside:
            found.append(small(character))
            inside = not is_a_word(character)
        else:
            found[-1] += small(character)
    return found


def word_hash(word: str) -> int:
    values = [ord(character) * 0xD6E8FEB86659FD93 % ALL for character in word]
    return mix(polynomial(reversed([value ^ value >> 32 for value in values])))


def single_spaced(text: str) -> str:
    known = unicodedata.normalize("NFC", text)
    spaced = "".join(" " if character.isspace() else character for character in known)
    return " ".join(part for part in spaced.split(" ") if part)


def gram_hashes(pieces: Sequence[int], n: int) -> list[int]:
    """Those of runs of `n`; of all pieces where there are fewer, as if zeros followed."""
    if 0 < len(pieces) < n:
        return [mix(polynomial([*pieces, *[0] * (n - len(pieces))]))]
    return [mix(polynomial(pieces[at : at + n])) for at in range(len(pieces) - n + 1)]


TEXTS = st.lists(st.text(st.sampled_from(LETTERS), max_size=12), max_size=5)
GROUPS = st.lists(st.lists(st.integers(0, ALL - 1), max_size=9), max_size=6)


def pieces_of(groups: list[list[int]]) -> Pieces:
    flat = [value for group in groups for value in group]
    return Pieces(np.array(flat, np.uint64), np.array([*map(len, groups)], np.int64))


def split(pieces: Pieces) -> list[list[int]]:
    """What each document has, in order."""
    ends = [*accumulate(pieces.counts.tolist(), initial=0)]
    assert ends[-1] == len(pieces.values)
    assert pieces.values.dtype == np.uint64
    values = pieces.values.tolist()
    return [values[start:stop] for start, stop in pairwise(ends)]


@given(TEXTS)
def test_words_are_hashed_wherever_they_lie(texts: list[str]) -> None:
    found = split(hashing.word_pieces(texts))
    assert found == [[word_hash(word) for word in words_of(text)] for text in texts]


@given(st.lists(st.lists(st.text("abcdefg", min_size=1, max_size=7), max_size=9), max_size=5))
@settings(max_examples=60)
def test_texts_of_many_batches_have_the_hashes_of_each_word(texts: list[list[str]]) -> None:
    """Batches are tiny here; the table of powers has the places of the largest and no more."""
    hashing._powers.cache_clear()
    try:
        with mock.patch.multiple(hashing, _CHARACTERS_AT_ONCE=16, _MOST=32):
            found = split(hashing.word_pieces([" ".join(words) for words in texts]))
    finally:
        hashing._powers.cache_clear()
    assert found == [[*map(word_hash, words)] for words in texts]


@given(TEXTS)
def test_bytes_are_those_of_the_text_in_lower_case_with_single_spaces(texts: list[str]) -> None:
    expected = []
    for text in texts:
        data = single_spaced(text.lower()).encode("utf-8", "surrogatepass")
        expected.append([mix((byte + BASE) % ALL) for byte in data])
    assert split(hashing.byte_pieces(texts)) == expected


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=6), max_size=4))
def test_ids_are_hashed_one_by_one(documents: list[list[int]]) -> None:
    found = split(hashing.id_pieces([np.array(ids, np.uint32) for ids in documents]))
    assert found == [[mix((i + BASE) % ALL) for i in ids] for ids in documents]


@given(GROUPS, st.integers(1, 7))
def test_ngrams_are_the_runs_of_each_document_and_of_short_ones_all(groups: Any, n: int) -> None:
    found = split(hashing.ngrams(pieces_of(groups), n))
    assert found == [gram_hashes(group, n) for group in groups]


def band_hashes(grams: list[int], bands: int, rows: int) -> list[int]:
    """Of each band, the smallest n-gram under each of its functions, as one number."""
    found = []
    for band in range(bands):
        smallest = []
        for function in range(band * rows, (band + 1) * rows):
            key = mix(derive(0, "minhash", function))
            factor, offset = key >> 32 | 1, key % 2**32
            smallest.append(min((gram * factor + offset) % 2**32 for gram in grams))
        found.append(mix(polynomial([band, *smallest])))
    return found


@given(GROUPS, st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 4, 2**14]))
@settings(max_examples=60)
def test_bands_are_of_the_smallest_ngrams(groups: Any, bands: int, rows: int, at_once: int) -> None:
    with mock.patch.object(hashing, "_NGRAMS_AT_ONCE", at_once):
        every = hashing.Bands(bands, rows).of_all(pieces_of(groups))
    expected = [band_hashes(group, bands, rows) if group else [0] * bands for group in groups]
    assert every.shape == (bands, len(groups))
    assert every.dtype == np.uint64
    assert every.T.tolist() == expected


@given(TEXTS)
def test_exact_hashes_are_of_the_text_as_a_rule_takes_it(texts: list[str]) -> None:
    def by_letters(text: str) -> bytes:
        known = unicodedata.normalize("NFC", text)
        letters = "".join(small(one) for one in known if is_letter(one))
        return b"\0" + letters.encode("utf-32-le", "surrogatepass") if letters else spaced(text)

    def spaced(text: str) -> bytes:
        return single_spaced(text).encode("utf-8", "surrogatepass")

    expected = {"none": lambda text: text.encode("utf-8", "surrogatepass"), "whitespace": spaced}
    for name, rule in (expected | {"letters": by_letters}).items():
        taken = [hashing.RULES[name](text) for text in texts]  # type: ignore[index]
        assert taken == [*map(rule, texts)], name
        hashes = hashing.exact_hashes(taken)
        assert hashes.shape == (len(texts), 2)
        for data, (low, high) in zip(taken, hashes.tolist(), strict=True):
            found = low.to_bytes(8, "little") + high.to_bytes(8, "little")
            assert found == hashlib.blake2b(data, digest_size=16).digest()


@given(st.lists(st.integers(0, 9), max_size=24), st.integers(1, 20), st.integers(0, 1))
def test_windows_of_ids_are_hashed_by_their_ids_alone(ids: list[int], n: int, which: int) -> None:
    base = (BASE, 0xC2B2AE3D27D4EB4F)[which]
    values = [mix((one + base) % ALL) for one in ids]
    runs = [values[at : at + n] for at in range(len(ids) - n + 1)]
    found = token_windows.window_hashes(np.array(ids, np.uint32), n, which)
    assert found.tolist() == [mix(polynomial(run, base)) for run in runs]


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5))
def test_windows_lie_within_documents(counts: list[int], n: int) -> None:
    found, before = [], 0
    for count in counts:
        found += [before + at for at in range(count) if at + n <= count]
        before += count
    assert token_windows.window_starts(np.array(counts, np.int64), n).tolist() == found


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_of_each_row_of_windows_the_first_smallest_is_sampled(hashes: Any, data: Any) -> None:
    w = data.draw(st.integers(1, len(hashes)))
    starts = data.draw(st.sets(st.integers(0, len(hashes) - w)).map(sorted))
    expected = set()
    for start in starts:
        row = hashes[start : start + w]
        expected.add(start + row.index(min(row)))
    found = token_windows.sampled(np.array(hashes, np.uint64), np.array(starts, np.int64), w)
    assert found.tolist() == sorted(expected)
