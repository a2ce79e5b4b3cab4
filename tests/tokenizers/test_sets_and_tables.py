"""Sets of code points and tables of words, against sets, dicts and loops."""

from __future__ import annotations

import sys
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.tokenizers.encoders import base as code_points
from jaxdata.tokenizers.encoders import words as word_table
from jaxdata.tokenizers.encoders.base import CodePointSet, ranges_of
from jaxdata.tokenizers.encoders.words import WordTable

EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFE, 0x10FFFF]
CODES = st.sampled_from(EDGES) | st.integers(0, 9)


@given(st.sets(CODES))
@settings(max_examples=30)
def test_code_points_as_ranges_are_those_that_follow_each_other(codes: set[int]) -> None:
    expected: list[tuple[int, int]] = []
    for code in sorted(codes):
        if expected and expected[-1][1] == code - 1:
            expected[-1] = expected[-1][0], code
        else:
            expected.append((code, code))
    assert ranges_of(codes) == expected


RANGES = st.lists(st.tuples(CODES, CODES).map(sorted).map(tuple), max_size=3)  # type: ignore[arg-type]
TEXTS = st.lists(st.text(st.sampled_from([*map(chr, EDGES), "a", "\ud800", "\udfff"])), max_size=5)


@given(RANGES, TEXTS)
@settings(max_examples=60)
def test_texts_with_a_code_point_of_a_set_are_found(
    ranges: list[tuple[int, int]], texts: list[str]
) -> None:
    found = CodePointSet(ranges)

    def held(code: int) -> bool:
        return 0xD800 <= code < 0xE000 or any(a <= code <= b for a, b in ranges)

    for code in [*EDGES, 0xD800, 0xDFFF, ord("a")]:
        assert (code in found) == held(code), hex(code)
    expected = [n for n, text in enumerate(texts) if any(held(ord(one)) for one in text)]
    assert found.found_in(texts) == expected


def test_every_character_is_there_once() -> None:
    every = code_points.every_character()
    assert len(every) == 0x110000 - 0x800
    assert (every[0], every[0xD7FF], every[0xD800], every[-1]) == (
        "\0",
        "\ud7ff",
        "\ue000",
        chr(sys.maxunicode),
    )
    kept = code_points.matches(lambda text: "".join(c for c in text if c in "z\U0010ffffa"))
    assert (kept.tolist(), kept.dtype) == ([97, 122, 0x10FFFF], np.int64)


LETTERS = {
    "17.0": "\U00010940",
    "16.0": "\U000105c0",
    "15.1": "\U0002ebf0",
    "15.0": "\U00011f04",
    "14.0": "\U00010570",
    "13.0": "\U00030000",
    "12.0": "\U000119a0",
    "11.0": "\U00010f00",
}


def test_tables_are_of_the_first_version_whose_letter_they_have() -> None:
    versions = [*LETTERS]
    for number, version in enumerate(versions):
        newer = "".join(LETTERS[one] for one in versions[:number])
        found = code_points.unicode_version(lambda text, newer=newer: "".join({*text} & {*newer}))
        assert found == version
    assert code_points.unicode_version(lambda text: text) is None


@given(
    st.lists(st.lists(st.text("ab", min_size=1, max_size=3) | st.just("w" * 17)), max_size=6),
    st.integers(4, 12),
)
@settings(max_examples=50)
def test_a_table_keeps_words_until_it_is_full(batches: list[list[str]], room: int) -> None:
    """Four words are taken at a time here; a full table forgets all."""
    asked: list[str] = []
    expected: list[str] = []
    kept: set[str] = set()

    def encode(words: list[bytes]) -> list[list[int]]:
        asked.extend(word.decode() for word in words)
        return [[*word] * 3 for word in words]

    with mock.patch.object(word_table, "_WORDS_AT_ONCE", 4):
        table = WordTable(encode, room)
        for words in batches:
            data = "".join(words).encode()
            starts = np.array([len("".join(words[:n])) for n in range(len(words))], np.int64)
            ids, counts = table.encode(data, starts)
            assert ids.tolist() == [i for word in words for i in [*word.encode()] * 3]
            assert counts.tolist() == [3 * len(word) for word in words]
            assert (ids.dtype, counts.dtype) == (np.int32, np.int64)
            for first in range(0, len(words), 4):
                some = words[first : first + 4]
                if len(kept) + len(some) + 1 > room:
                    kept = set()
                new = [word for word in dict.fromkeys(some) if word not in kept]
                expected += new
                kept |= {*new}
    assert asked == expected


@given(st.lists(st.binary(min_size=1, max_size=20).map(lambda b: b.replace(b"\0", b"1"))))
def test_the_key_of_a_word_is_its_first_16_bytes(words: list[bytes]) -> None:
    data = b"".join(words)
    sizes = np.array([*map(len, words)], np.int64)
    starts = np.array([sum(sizes[:n]) for n in range(len(words))], np.int64)
    low, high = word_table._keys(data, starts, sizes)
    assert low.tolist() == [int.from_bytes(word[:8], "little") for word in words]
    assert high.tolist() == [int.from_bytes(word[8:16], "little") for word in words]


def test_words_are_spread_over_the_slots() -> None:
    table = WordTable(lambda words: [[1]] * len(words))
    words = [f"{number:x}".encode() for number in range(60_000)]
    data = b"".join(words)
    starts = np.cumsum([0, *map(len, words)])[:-1]
    table.encode(data, starts)
    assert table._others == {}, "a search of words that lie close to each other takes longer"
    at = table._hash(table._keys[:, : len(words)])
    assert at.min() >= 0
    assert at.max() < len(table._slots) == 2**19
    assert len({*at.tolist()}) > 55_000
    assert len({*(at // 2**9).tolist()}) == 2**10


def test_a_word_of_16_bytes_is_found_by_its_key_and_longer_ones_in_a_dict() -> None:
    asked: list[bytes] = []
    table = WordTable(lambda words: asked.extend(words) or [[len(word)] for word in words])  # type: ignore[func-returns-value]
    words = [b"x" * size for size in (15, 16, 17, 18)]
    for _ in range(2):
        ids, _counts = table.encode(b"".join(words), np.array([0, 15, 31, 48]))
        assert ids.tolist() == [15, 16, 17, 18]
    assert {*table._others} == {b"x" * 17, b"x" * 18}
    assert asked == words, "each once"


def test_ids_get_the_room_they_need_and_long_words_none_forever() -> None:
    asked: list[bytes] = []

    def encode(words: list[bytes]) -> list[list[int]]:
        asked.extend(words)
        return [[word[0]] * 40_000 for word in words]

    table = WordTable(encode)
    for word in (b"a", b"b", b"c", b"a"):
        ids, _ = table.encode(word, np.array([0]))
        assert ids.tolist() == [word[0]] * 40_000
    assert len(asked) == 3
    long: list[int] = []
    table = WordTable(lambda words: [long.append(len(words[0])) or [1]])  # type: ignore[func-returns-value]
    room = 4 * 2**16
    with mock.patch.object(word_table, "_BYTES", room + 100):
        for size in (50, 50, 51, 50, 50, 51):
            table.encode(b"%03d" % size + b"." * (size - 3), np.array([0]))
    assert long == [50, 51, 50, 51], "after 101 bytes it began anew"
    with mock.patch.object(word_table, "_BYTES", room + 101):
        table._clear()
        for size in (50, 51, 50, 51):
            table.encode(b"%03d" % size + b"." * (size - 3), np.array([0]))
    assert long[4:] == [50, 51], "of 101 bytes all are kept"


def letters(words: list[bytes]) -> list[list[int]]:
    return [[*word, 0] for word in words]


def test_words_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordTable, "_hash", lambda _, keys: np.full(keys.shape[1], 2**19 - 3))
    table = WordTable(letters)
    words = [f"{number:08}".encode() for number in range(200)]
    for some in (words[:3], words, words[::-1]):
        ids, _ = table.encode(b"".join(some), np.arange(0, 8 * len(some), 8))
        assert ids.tolist() == [i for one in letters(some) for i in one]
    assert len(table._others) == 200 - word_table._TRIES, "a search ends"
