"""Random choices that depend on a document's content and a seed alone."""

from __future__ import annotations

import hashlib

from jaxdata.base.seeds import derive


class RandomChoice:
    """Random choices for one text; the same text, seed and names always give the same.

    >>> one, same = (RandomChoice(0, "fim", "a text") for _ in range(2))
    >>> one.below("edge", 10) == same.below("edge", 10)
    True
    """

    def __init__(self, seed: int, use: str, text: str) -> None:
        self._seed, self._use = seed, use
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    def happens(self, name: str, rate: float) -> bool:
        """Whether something of this probability happens."""
        return self._number(name) < rate * 2**64

    def below(self, name: str, count: int) -> int:
        """A whole number from 0 to `count` - 1."""
        return self._number(name) % count

    def _number(self, name: str) -> int:
        return derive(self._seed, self._use, name, self._digest)
