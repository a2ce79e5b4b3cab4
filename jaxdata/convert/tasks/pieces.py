"""Documents in pieces, with and without loss, and their tokens and loss masks.

Every piece is encoded by itself, as a text that goes on where the last one ended: so no token lies
on both sides of an edge, and the tokens before an answer are those that generation will see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.convert.tasks.base import Dropped, Encoded, token_dtype
from jaxdata.convert.tasks.encoding import encode
from jaxdata.tokenizers import Tokenizer

__all__ = ["Piece", "PieceEncoder", "join"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a document.

    Attributes:
        content: its text, or the id of a token.
        loss: whether its tokens have loss as targets.
        special: whether texts of special tokens in it stand for these.
        continues: whether it goes on where another text ended; None for all but a first piece.
    """

    content: str | int
    loss: bool
    special: bool = False
    continues: bool | None = None


class PieceEncoder:
    """Turns documents in pieces into tokens and masks, many at a time.

    Args:
        tokenizer: text to ids.
        bos: begin each document with the begin-of-sequence token, where it does not already.
    """

    def __init__(self, tokenizer: Tokenizer, bos: bool) -> None:
        self._tokenizer = tokenizer
        self._bos = tokenizer.bos_id if bos else None
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, documents: Sequence[Sequence[Piece]]) -> list[Encoded | Dropped]:
        """Encode documents; `Dropped` in the place of those that the tokenizer fails on."""
        pieces = [
            (piece, number > 0 if piece.continues is None else piece.continues)
            for document in documents
            for number, piece in enumerate(document)
        ]
        ids: dict[int, NDArray[Any] | Dropped] = {}
        for special in (False, True):
            for continuing in (False, True):
                mine = [
                    place
                    for place, (piece, goes_on) in enumerate(pieces)
                    if isinstance(piece.content, str)
                    and (piece.special, goes_on) == (special, continuing)
                ]
                texts = [str(pieces[place][0].content) for place in mine]
                found = encode(self._tokenizer, texts, special=special, continuing=continuing)
                ids.update(zip(mine, found, strict=True))
        return list(self._joined(documents, ids))

    def _joined(
        self, documents: Sequence[Sequence[Piece]], ids: dict[int, NDArray[Any] | Dropped]
    ) -> Iterable[Encoded | Dropped]:
        first = 0
        for document in documents:
            parts = [
                np.array([piece.content]) if isinstance(piece.content, int) else ids[first + number]
                for number, piece in enumerate(document)
            ]
            first += len(document)
            failed = next((part for part in parts if isinstance(part, Dropped)), None)
            losses = [piece.loss for piece in document]
            yield failed or self._whole(parts, losses)  # type: ignore[arg-type]

    def _whole(self, parts: list[NDArray[Any]], losses: list[bool]) -> Encoded:
        begins = next((part[0] for part in parts if len(part)), None)
        if self._bos is not None and begins != self._bos:
            parts, losses = [np.array([self._bos]), *parts], [False, *losses]
        return join(parts, losses, self._dtype)


def join(parts: Sequence[NDArray[Any]], losses: Sequence[bool], dtype: str) -> Encoded:
    """Put pieces of ids together, with the mask that says which of them have loss.

    >>> join([np.array([11, 12]), np.array([21, 0])], [False, True], "uint16")
    Encoded(tokens=array([11, 12, 21,  0], dtype=uint16), mask=array([0, 0, 1, 1], dtype=uint8))
    """
    masks = [np.full(len(part), loss, np.uint8) for part, loss in zip(parts, losses, strict=True)]
    tokens = np.concatenate(list(chain([np.empty(0, dtype)], parts))).astype(dtype)
    return Encoded(tokens, np.concatenate([np.empty(0, np.uint8), *masks]))
