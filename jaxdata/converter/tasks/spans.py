"""Spans of documents, with and without loss, and their tokens and loss masks.

Every span is encoded by itself, as a text that continues the one before. So no token lies on both
sides of an edge, and the tokens before an answer are those that generation will see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdata.converter.tasks.base import Dropped, Encoded, token_dtype
from jaxdata.converter.tasks.encoding import encode
from jaxdata.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a document: a text or the id of a token, with or without loss."""

    content: str | int
    loss: bool
    special: bool = False  # whether texts of special tokens in it stand for these
    continues: bool | None = None  # another text; None for all spans but the first
    turn: Literal["", "prompt", "answer"] = ""  # whose words it is, where that is known


Fit = Callable[[Sequence[Span], list[NDArray[Any]]], list[NDArray[Any]] | Dropped]
"""Shortens the ids of a document's spans."""


class SpanEncoder:
    """Turns documents in spans into tokens and masks, many at a time.

    With `bos` each document begins with that token, where it does not already. `fit` is done to the
    ids of each before.
    """

    def __init__(self, tokenizer: Tokenizer, bos: bool, fit: Fit | None = None) -> None:
        self._tokenizer, self._fit = tokenizer, fit
        self._bos = tokenizer.bos_id if bos else None
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, documents: Sequence[Sequence[Span]]) -> list[Encoded | Dropped]:
        """Encode documents; `Dropped` in the place of those that the tokenizer fails on."""
        spans = [
            (span, number > 0 if span.continues is None else span.continues)
            for document in documents
            for number, span in enumerate(document)
        ]
        ids: dict[int, NDArray[Any] | Dropped] = {}
        for special, continuing in product((False, True), repeat=2):
            texts = {
                place: span.content
                for place, (span, goes_on) in enumerate(spans)
                if isinstance(span.content, str)
                and (span.special, goes_on) == (special, continuing)
            }
            found = encode(
                self._tokenizer, [*texts.values()], special=special, continuing=continuing
            )
            ids.update(zip(texts, found, strict=True))
        return list(self._joined(documents, ids))

    def _joined(
        self, documents: Sequence[Sequence[Span]], ids: dict[int, NDArray[Any] | Dropped]
    ) -> Iterable[Encoded | Dropped]:
        first = 0
        for document in documents:
            parts = [
                np.array([span.content]) if isinstance(span.content, int) else ids[first + number]
                for number, span in enumerate(document)
            ]
            first += len(document)
            failed = next((part for part in parts if isinstance(part, Dropped)), None)
            fitted = failed or self._fitted(document, parts)  # type: ignore[arg-type]
            losses = [span.loss for span in document]
            yield fitted if isinstance(fitted, Dropped) else self._whole(fitted, losses)

    def _fitted(
        self, document: Sequence[Span], parts: list[NDArray[Any]]
    ) -> list[NDArray[Any]] | Dropped:
        return self._fit(document, parts) if self._fit else parts

    def _whole(self, parts: list[NDArray[Any]], losses: list[bool]) -> Encoded:
        begins = next((part[0] for part in parts if len(part)), None)
        if self._bos is not None and begins != self._bos:
            parts, losses = [np.array([self._bos]), *parts], [False, *losses]
        return join(parts, losses, self._dtype)


def join(parts: Sequence[NDArray[Any]], losses: Sequence[bool], dtype: str) -> Encoded:
    """Put spans of ids together, with the mask that says which of them have loss.

    >>> join([np.array([11, 12]), np.array([21, 0])], [False, True], "uint16")[:2]
    (array([11, 12, 21,  0], dtype=uint16), array([0, 0, 1, 1], dtype=uint8))
    """
    masks = [np.full(len(part), loss, np.uint8) for part, loss in zip(parts, losses, strict=True)]
    tokens = np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
    return Encoded(tokens, np.concatenate([np.empty(0, np.uint8), *masks]))
