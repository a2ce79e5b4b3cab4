"""Characters as numpy sees them: which ones make words, and their lower case.

Texts are arrays of code points here, so that a megabyte of words costs a dozen passes over arrays
and no Python per word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

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

Points = NDArray[np.uint32]


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


def letters(text: str) -> Points:
    """The letters and digits of a text, in lower case.

    >>> "".join(map(chr, letters("It's 5 o'clock!")))
    'its5oclock'
    """
    kind, lower = _tables()
    points = code_points([text])
    return lower.take(points[kind.take(points) > 0])


def words(points: Points) -> tuple[Points, NDArray[np.int64], NDArray[np.int64]]:
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
