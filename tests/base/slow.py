"""The hashes of documents, one number at a time."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

BASE = 0x9E3779B97F4A7C15
ALL = 2**64
SCRIPTS_WITHOUT_SPACES = (
    range(0x0E00, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0x3040, 0x3100),
    range(0x31F0, 0x3200),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0xFF66, 0xFFA0),
)
IDEOGRAPHS = range(0x20000, 0x40000)
EDGES = [point for each in (*SCRIPTS_WITHOUT_SPACES, IDEOGRAPHS) for point in (each[0], each[-1])]
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
    scripts = (*SCRIPTS_WITHOUT_SPACES, IDEOGRAPHS)
    return is_letter(character) and any(ord(character) in each for each in scripts)


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
    found = ""
    for character in unicodedata.normalize("NFC", text):
        if not character.isspace():
            found += character
        elif found and not found.endswith(" "):
            found += " "
    return found.removesuffix(" ")


def gram_hashes(pieces: Sequence[int], n: int) -> list[int]:
    """Those of runs of `n`; of all pieces where there are fewer, as if zeros followed."""
    if 0 < len(pieces) < n:
        return [mix(polynomial([*pieces, *[0] * (n - len(pieces))]))]
    return [mix(polynomial(pieces[at : at + n])) for at in range(len(pieces) - n + 1)]
