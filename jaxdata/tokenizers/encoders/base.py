"""What an encoder is: another implementation of a tokenizer, faster, that gives the library's ids.

`library` is the tokenizer library that the user named, which decides the ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from jaxdata.tokenizers.base import Tokenizer

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
