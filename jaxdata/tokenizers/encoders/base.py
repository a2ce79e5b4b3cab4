"""What an encoder is: another implementation of a tokenizer, faster, with the library's ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdata.tokenizers.base import Tokenizer

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


EncoderName = Literal["auto", "library", "fast", "words", "verify"]
"""The values of `--encoder`."""


class Refused(Exception):
    """An encoder cannot stand in for the library, and why: a clause without a full stop."""


class Encoder(ABC):
    """Plain texts to ids; made of a tokenizer, used by one thread at a time.

    Raises:
        Refused: by its constructor, where it is not installed or a part of the tokenizer is one
            that it is not proven to do as the library does.
    """

    name: ClassVar[str]
    """What `--encoder` calls it."""
    kinds: ClassVar[tuple[str, ...]]
    """The kinds of tokenizers that it may stand in for."""
    needs_trial: ClassVar[bool] = True
    """Whether it is tried on every code point before it is used."""

    @abstractmethod
    def __init__(self, tokenizer: Tokenizer) -> None: ...

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The library behind it and its version, "fastokens 0.3.5"; raises Refused without it."""

    @classmethod
    def check(cls, tokenizer: Tokenizer) -> None:
        """Prove what takes too long for the constructor, before a trial; raises Refused."""
        cls(tokenizer)

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, as `Tokenizer.encode` gives them: uint32 of shape (tokens,) a text.

        Raises:
            CannotEncode: it fails on one of the texts; they are then encoded one by one.
        """


_LIBRARIES = {"hf": "tokenizers", "tiktoken": "tiktoken", "sentencepiece": "sentencepiece"}
_UNASSIGNED = r"\p{Cn}"


@cache
def library_of(kind: str) -> str | None:
    """The library that decides the ids of a kind of tokenizer; None for our own.

    With its version as it is installed and, where it can be told, that of its Unicode tables:
    "tokenizers 0.23.3, Unicode 16.0".
    """
    if kind not in _LIBRARIES:
        return None
    named = f"{_LIBRARIES[kind]} {version(_LIBRARIES[kind])}"
    find = _FINDS.get(kind)
    tables = unicode_version(find) if find else None
    return f"{named}, Unicode {tables}" if tables else named


@cache
def unassigned(kind: str) -> NDArray[np.int64]:
    """Code points that the Unicode tables of a kind's library lack; empty where it has none."""
    return matches(_FINDS[kind]) if kind in _FINDS else np.empty(0, np.int64)


def _found_by_tokenizers(text: str) -> str:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(f"{_UNASSIGNED}+"), "removed", invert=True)
    return "".join(piece for piece, _ in split.pre_tokenize_str(text))


def _found_by_tiktoken(text: str) -> str:
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)}
    made = tiktoken.Encoding(
        "table", pat_str=f"{_UNASSIGNED}+", mergeable_ranks=ranks, special_tokens={}
    )
    return bytes(made.encode_ordinary(text)).decode()


_FINDS = {"hf": _found_by_tokenizers, "tiktoken": _found_by_tiktoken}


def added_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of tokens beside the vocabulary, special or not."""
    settings = getattr(tokenizer, "settings", None)
    added = settings()["added_tokens"] if settings else []
    return [*tokenizer.special_tokens, *(one["content"] for one in added if not one["special"])]
