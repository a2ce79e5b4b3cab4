"""What an encoder is: another implementation of a tokenizer, faster, with the library's ids."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from jaxdata.tokenizers.base import CannotEncode, Tokenizer

EncoderName = Literal["auto", "library", "fast", "words"]
"""The values of `encoder`."""
Ranges = Sequence[tuple[int, int]]
"""Code points as ranges, both ends included."""
_SHOWN = 64
"""characters of a text in a message"""


class Refused(Exception):
    """An encoder cannot stand in for the library, and why: a clause without a full stop."""


class EncoderDiffers(Exception):
    """An encoder gave other ids than the library."""

    def __init__(self, encoder: str, text: str) -> None:
        self.encoder, self.text = encoder, text

    def __str__(self) -> str:
        return f"{self.encoder} gives other ids than the library for {shown(self.text)}"


def shown(text: str) -> str:
    """The beginning of a text, escaped."""
    return ascii(text[:_SHOWN]) + ("..." if len(text) > _SHOWN else "")


class Encoder(ABC):
    """Plain texts to ids; made of a tokenizer, used by one thread at a time.

    Raises:
        Refused: by its constructor, where it is not installed or a part of the tokenizer is one
            that it is not proven to do as the library does.
    """

    name: ClassVar[str]
    """What `encoder` calls it."""
    kinds: ClassVar[tuple[str, ...]]
    """The kinds of tokenizers that it may stand in for."""
    trial_bytes: ClassVar[int] = 64 * 2**20
    """Bytes of text from which `auto` has it tried on every code point, for 5 to 20 seconds; 0: it
    needs no trial."""

    @abstractmethod
    def __init__(self, tokenizer: Tokenizer) -> None: ...

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The library behind it and its version, "fastokens 0.3.5"; raises Refused without it."""

    @classmethod  # noqa: B027
    def check(cls, tokenizer: Tokenizer) -> None:
        """Prove before a trial what takes too long for each worker; raises Refused."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, as `Tokenizer.encode` gives them: of shape (tokens,) a text.

        Raises:
            CannotEncode: it fails on one of the texts; they are then encoded one by one.
        """

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Ids of each text; None for one that it fails on."""
        try:
            return [*self.encode(texts)]
        except CannotEncode:
            return [None] if len(texts) == 1 else [self.encode_each([text])[0] for text in texts]


class CodePoints:
    """A set of code points that texts are searched for; half a surrogate pair is always in it.

    >>> [*CodePoints([(0xE9, 0xE9)]).found_in(["e", "é"])]
    [1]
    """

    def __init__(self, ranges: Ranges) -> None:
        self._table = np.zeros(0x110000, np.bool_)
        for first, last in (*ranges, (0xD800, 0xDFFF)):
            self._table[first : last + 1] = True
        self._ascii = bool(self._table[:128].any())

    def found_in(self, texts: Sequence[str]) -> list[int]:
        """The numbers of the texts that hold one of them."""
        numbers = [n for n, text in enumerate(texts) if self._ascii or not text.isascii()]
        if not self._holds("".join([texts[n] for n in numbers])):
            return []
        return [n for n in numbers if self._holds(texts[n])]

    def _holds(self, text: str) -> bool:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        return bool(self._table[codes].any())
