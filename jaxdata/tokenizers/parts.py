"""Parts of a text, encoded one by one: where it may be cut, and what is not a beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

__all__ = ["Anchors", "cut_between_words", "split_at_special"]

# Before a space between ASCII letters every splitting rule of GPT-2's kind begins a new piece.
_BETWEEN_WORDS = re.compile(r"[A-Za-z](?= [A-Za-z])")
_ANCHORS = ("\u263a", ")", "\ue000", "|")


class Anchors:
    """Encodes texts that are no beginnings, for tokenizers that put a space before a text.

    A character that melts with nothing is put in front, and its tokens are taken away again.
    """

    def __init__(self, encode: Callable[[Sequence[str], bool], list[np.ndarray]]) -> None:
        self._encode = encode
        self._ids = dict(zip(_ANCHORS, encode(_ANCHORS, False), strict=True))

    def encode_after(self, text: str, special: bool) -> np.ndarray:
        """Token ids of a text that goes on where another ended."""
        for anchor, ids in self._ids.items():
            (whole,) = self._encode([anchor + text], special)
            if np.array_equal(whole[: len(ids)], ids):
                return whole[len(ids) :]
        return self._encode([text], special)[0]


def cut_between_words(text: str, size: int) -> list[str]:
    """Cut a text before spaces between ASCII letters, each at or after `size` characters.

    >>> cut_between_words("one two, three four", 5)
    ['one two, three', ' four']
    """
    parts, start = [], 0
    while found := _BETWEEN_WORDS.search(text, start + max(size - 1, 0)):
        parts.append(text[start : found.end()])
        start = found.end()
    return [*parts, text[start:]]


def split_at_special(text: str, special: Mapping[str, int]) -> Iterator[str | int]:
    """Give the stretches of a text between special tokens, and the ids of these.

    >>> list(split_at_special("<s>one</s>", {"<s>": 1, "</s>": 2}))
    [1, 'one', 2]
    """
    longest_first = sorted(special, key=len, reverse=True)
    found = "|".join(map(re.escape, longest_first))
    for stretch in re.split(f"({found})", text) if found else [text]:
        if stretch:
            yield special.get(stretch, stretch)
