"""Plain language modelling: a text is a document, every token is a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from jaxdata.convert.records import joined_text_of
from jaxdata.convert.tasks.base import Dropped, Encoded, Rate, Record, Settings, token_dtype
from jaxdata.convert.tasks.draws import Draw
from jaxdata.convert.tasks.encoding import encode
from jaxdata.convert.text_files import Stretch
from jaxdata.tokenizers import Tokenizer

__all__ = ["LmSettings", "LmTask", "TextSettings"]


class TextSettings(Settings):
    """What tasks of plain text have in common."""

    text_key: str = "text"
    """The field that holds the text; several with commas between."""
    text_joiner: str = "\n\n"
    """What stands between the texts of several fields."""

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The fields, one by one."""
        return tuple(key.strip() for key in self.text_key.split(","))


class LmSettings(TextSettings):
    """Settings of :class:`LmTask`."""

    name: Literal["lm"] = "lm"
    short_rate: Rate = 0.0
    """Share of documents that are cut to a shorter length, drawn from their content."""
    short_length: Annotated[int, Field(ge=3)] = 2_048
    """They keep 2 to one less than so many tokens."""
    seed: int = 0


class LmTask:
    """See `Task`; a document is its text.

    Args:
        settings: which field holds the text, and whether documents begin with BOS.
        tokenizer: text to ids.
        clean: what is done to a text before all else.
    """

    masked = False
    streams: tuple[str, ...] = ("",)

    def __init__(
        self, settings: LmSettings, tokenizer: Tokenizer, clean: Callable[[str], str] | None
    ) -> None:
        self.keys = settings.text_keys
        self.plain = len(settings.text_keys) == 1
        self._settings, self._clean = settings, clean
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._none = np.empty(0, self._dtype)
        self._bos = np.array([tokenizer.bos_id] if settings.bos else [], self._dtype)
        self._eod = np.array([tokenizer.eod_id], self._dtype)

    def prepare(self, record: Record) -> list[str]:
        """See `Task`."""
        text = joined_text_of(record, self.keys, self._settings.text_joiner)
        cleaned = self._clean(text) if self._clean else text
        stretch = record.get(self.keys[0])
        return [Stretch.like(cleaned, stretch) if isinstance(stretch, Stretch) else cleaned]

    def texts(self, document: str, _stream: str | None = None) -> tuple[str]:
        """See `Task`."""
        return (document,)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded] | Dropped]:
        """See `Task`."""
        if not any(isinstance(text, Stretch) for text in documents):
            return self._encode(documents)
        return [
            self._encode([text], text.begins, text.ends)[0]
            if isinstance(text, Stretch)
            else self._encode([text])[0]
            for text in documents
        ]

    def _encode(
        self, texts: Sequence[str], begin: bool = True, end: bool = True
    ) -> list[tuple[Encoded] | Dropped]:
        found = encode(self._tokenizer, texts, continuing=not begin)
        ids = [one for one in found if not isinstance(one, Dropped)]
        whole = self._whole(ids, begin, end)
        if len(ids) == len(found) and end and not self._settings.short_rate:  # as nearly always
            return [(Encoded(tokens),) for tokens in whole]
        made = iter(whole)
        return [
            one if isinstance(one, Dropped) else self._made(text, next(made))
            for text, one in zip(texts, found, strict=True)
        ]

    def _made(self, text: str, tokens: NDArray[Any]) -> tuple[Encoded] | Dropped:
        if self._settings.short_rate:
            tokens = self._shortened(tokens, text)
        return (Encoded(tokens),) if len(tokens) else Dropped("a piece of a text without tokens")

    def _shortened(self, tokens: NDArray[Any], text: str) -> NDArray[Any]:
        """The first tokens, where the draw says so: no EOD ends what does not end there."""
        draw = Draw(self._settings.seed, "short", text)
        if not draw.happens("rate", self._settings.short_rate):
            return tokens
        return tokens[: 2 + draw.below("length", self._settings.short_length - 2)]

    def _whole(self, ids: list[NDArray[Any]], begin: bool, end: bool) -> list[NDArray[Any]]:
        """The ids between BOS, where asked for, and EOD, of texts with their beginning and end.

        One array for all is made in a fraction of the time that one for each takes.
        """
        before, after = self._bos if begin else self._none, self._eod if end else self._none
        parts = [before, self._none, after] * len(ids)
        parts[1::3] = ids
        tokens = np.concatenate([self._none, *parts], dtype=self._dtype, casting="unsafe")
        more = len(before) + len(after)
        edges = accumulate((len(one) + more for one in ids), initial=0)
        return [tokens[start:stop] for start, stop in pairwise(edges)]
