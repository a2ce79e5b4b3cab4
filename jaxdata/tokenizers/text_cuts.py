"""Where a long text may be cut, so that its parts give the same tokens one by one; runs of texts.

Every published splitting rule of byte-level BPE begins a new piece before a space between ASCII
letters: a space begins a piece of letters or is one by itself, and letters end a piece before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"gpt2": GPT2_SPLIT, "gpt4": CL100K_SPLIT, "gpt4o": O200K_SPLIT}
"""The splitting rules that a tokenizer may be trained with."""


def split_rule(name: str, digits: int | None = None) -> str:
    """A rule of `SPLITS` whose runs of digits are at most so long; None for the rule's own.

    >>> split_rule("gpt4", 2) == CL100K_SPLIT.replace("{1,3}", "{1,2}")
    True
    """
    rule = SPLITS[name]
    if digits is None:
        return rule
    return re.sub(r"\\p\{N\}(\+|\{1,3\})", lambda _: rf"\p{{N}}{{1,{digits}}}", rule)


# The rules, as tiktoken and as model files write them.
KNOWN_SPLITS = frozenset(
    {
        *(split_rule(name, digits) for name in SPLITS for digits in (None, *range(1, 10))),
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        CL100K_SPLIT.replace("{1,3}", ""),  # Qwen
    }
)
_BETWEEN_WORDS = re.compile(r"[A-Za-z](?= [A-Za-z])")
_ANCHORS = ("\u263a", ")", "\ue000", "|")


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
    """Yield the text between special tokens, and their ids.

    >>> list(split_at_special("<s>one</s>", {"<s>": 1, "</s>": 2}))
    [1, 'one', 2]
    """
    longest_first = sorted(special, key=len, reverse=True)
    found = "|".join(map(re.escape, longest_first))
    for part in re.split(f"({found})", text) if found else [text]:
        if part:
            yield special.get(part, part)


class Anchors:
    """Encodes continuations of texts for tokenizers that put a space before every text.

    A character that never merges with its neighbour goes in front; its tokens are dropped again.
    """

    def __init__(self, encode: Callable[[Sequence[str], bool], list[np.ndarray]]) -> None:
        self._encode = encode
        self._ids = dict(zip(_ANCHORS, encode(_ANCHORS, False), strict=True))

    def encode_after(self, text: str, special: bool) -> np.ndarray:
        for anchor, ids in self._ids.items():
            (whole,) = self._encode([anchor + text], special)
            if np.array_equal(whole[: len(ids)], ids):
                return whole[len(ids) :]
        return self._encode([text], special)[0]


def runs_of_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Texts in runs of about `size` characters, to be worked on together.

    >>> list(runs_of_texts(["ab", "c", "defg", "h"], 3))
    [['ab', 'c'], ['defg'], ['h']]
    """
    run: list[str] = []
    characters = 0
    for text in texts:
        run.append(text)
        characters += len(text)
        if characters >= size:
            yield run
            run, characters = [], 0
    if run:
        yield run
