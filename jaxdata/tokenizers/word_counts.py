"""Counting the words that a splitting rule makes of texts.

Different stretches of text are counted first, and split into words once. A stretch ends after an
ASCII letter or digit where ASCII of another class follows, which every rule splits too: letters
and digits end a word where they end, but for an apostrophe, and no rule looks behind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.errors import MissingExtra

_AT_ONCE = 2**20  # characters
_LONG = 64  # bytes: a stretch that hardly occurs twice
_MOST = 2**20  # stretches
_MOST_WORDS = 2**20

_NO_END, _LETTER, _DIGIT, _OTHER = range(4)
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[:128] = _OTHER
for _characters, _class in ((b"A-Z", _LETTER), (b"a-z", _LETTER), (b"0-9", _DIGIT)):
    _CLASSES[_characters[0] : _characters[2] + 1] = _class
_CLASSES[ord("'")] = _NO_END
_ENDS = np.array(
    [
        left in (_LETTER, _DIGIT) and right not in (_NO_END, left)
        for left in range(4)
        for right in range(4)
    ]
)
_ASCII = (
    *((r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", "A-Z"), (r"\p{Ll}\p{Lm}\p{Lo}\p{M}", "a-z")),
    *((r"\p{L}\p{N}", "A-Za-z0-9"), (r"\p{L}", "[A-Za-z]"), (r"\p{N}", "[0-9]")),
)


class WordCounts:
    """How often each word of some texts occurs.

    Beyond a million different words, the rarest half of them is forgotten, so that memory is
    bounded; what follows depends on the texts and their order alone.

    Args:
        rule: one of `text_cuts.SPLITS`, with digits of any length.
    """

    def __init__(self, rule: str) -> None:
        self._split_ascii = re.compile(ascii_rule(rule).encode()).findall
        self._split_any = _library_split(rule)
        self._stretches: Counter[bytes] = Counter()
        self._words: Counter[bytes] = Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Count the words of texts."""
        some: list[bytes] = []
        size = 0
        for text in texts:
            some.append(text.encode())
            size += len(text)
            if size >= _AT_ONCE:
                self._add(some)
                some, size = [], 0
        self._add(some)

    def words(self) -> dict[bytes, int]:
        """The words and how often each occurred, in an order that the texts decide."""
        self._split_stretches()
        return self._words

    def _add(self, texts: Sequence[bytes]) -> None:
        stretches, long = _stretches(texts)
        for number in long:
            self._words.update(self._split(stretches[number]))
            stretches[number] = b""  # which has no words
        self._stretches.update(stretches)
        if len(self._stretches) > _MOST:
            self._split_stretches()
        if len(self._words) > _MOST_WORDS:
            self._words = Counter(dict(self._words.most_common(_MOST_WORDS // 2)))

    def _split_stretches(self) -> None:
        words = self._words
        for stretch, count in self._stretches.items():
            for word in self._split(stretch):
                words[word] += count
        self._stretches.clear()

    def _split(self, stretch: bytes) -> list[bytes]:
        if stretch.isascii():
            return self._split_ascii(stretch)
        return [word.encode() for word, _ in self._split_any(stretch.decode())]


def ascii_rule(rule: str) -> str:
    """A splitting rule for ASCII alone, as Python's `re` reads it on bytes."""
    for theirs, ours in _ASCII:
        rule = rule.replace(theirs, ours)
    return rule


def _stretches(texts: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """The stretches of texts, and which are long."""
    raw = b"".join(texts)
    classes = _CLASSES[np.frombuffer(raw, np.uint8)]
    ends = np.ones(len(raw) + 1, np.bool_)
    ends[1:-1] = _ENDS[classes[:-1] * 4 + classes[1:]]
    ends[np.cumsum([0, *map(len, texts)])] = True
    edges = np.flatnonzero(ends)
    stretches = [raw[a:b] for a, b in pairwise(edges.tolist())]
    return stretches, np.flatnonzero(np.diff(edges) > _LONG).tolist()


def _library_split(rule: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("hf", "tokenizers") from error
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(rule), "isolated").pre_tokenize_str
