"""Code points in sets: which a library's Unicode tables lack, and which texts hold one of a set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

COUNT = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_NEW = {  # a letter that came with each version
    "17.0": 0x10940,
    "16.0": 0x105C0,
    "15.1": 0x2EBF0,
    "15.0": 0x11F04,
    "14.0": 0x10570,
    "13.0": 0x30000,
    "12.0": 0x119A0,
    "11.0": 0x10F00,
}


@cache
def every_character() -> str:
    """A text of all code points but surrogates."""
    return "".join(chr(code) for code in range(COUNT) if code not in _SURROGATES)


def matches(find: Callable[[str], str]) -> NDArray[np.int64]:
    """The code points that a function keeps of a text of all."""
    return np.fromiter(map(ord, find(every_character())), np.int64)


def unicode_version(find: Callable[[str], str]) -> str | None:
    """The version of the tables of a function that keeps what they lack; None for an old one."""
    lacking = find("".join(map(chr, _NEW.values())))
    return next((name for name, letter in _NEW.items() if chr(letter) not in lacking), None)


def ranges_of(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Code points as ranges, both ends included.

    >>> ranges_of([3, 1, 2, 9])
    [(1, 3), (9, 9)]
    """
    table = np.zeros(COUNT + 2, np.int8)
    table[1:-1][np.fromiter(codes, np.int64)] = 1
    steps = np.diff(table)
    ends = zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True)
    return [(int(first), int(after) - 1) for first, after in ends]


class CodePointSet:
    """A set of code points that texts are searched for.

    >>> [*CodePointSet([(0xE9, 0xE9)]).found_in(["e", "é"])]
    [1]
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._table = np.zeros(COUNT, np.bool_)
        for first, last in ranges:
            self._table[first : last + 1] = True
        self._table[_SURROGATES.start : _SURROGATES.stop] = True
        self._ascii = bool(self._table[:128].any())

    def found_in(self, texts: Sequence[str]) -> list[int]:
        """The numbers of the texts that hold one of them, or half a surrogate pair."""
        numbers = [n for n, text in enumerate(texts) if self._ascii or not text.isascii()]
        if not self._holds("".join([texts[n] for n in numbers])):
            return []
        return [n for n in numbers if self._holds(texts[n])]

    def _holds(self, text: str) -> bool:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        return bool(self._table[codes].any())

    def __contains__(self, code: int) -> bool:
        return bool(self._table[code])
