"""Plain language modelling: a text is a document, every token is a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from jaxdata.convert.records import joined_text_of
from jaxdata.convert.tasks.base import Dropped, Encoded, Rate, Record, Settings, token_dtype
from jaxdata.convert.tasks.draws import Draw
from jaxdata.convert.tasks.encoding import encode
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
        self._settings, self._clean = settings, clean
        self._tokenizer = tokenizer
        self._bos = [tokenizer.bos_id] if settings.bos else []
        self._dtype = token_dtype(tokenizer.vocab_size)

    def prepare(self, record: Record) -> list[str]:
        """See `Task`."""
        text = joined_text_of(record, self.keys, self._settings.text_joiner)
        return [self._clean(text) if self._clean else text]

    def texts(self, document: str) -> tuple[str]:
        """See `Task`."""
        return (document,)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded] | Dropped]:
        """See `Task`."""
        return [
            ids if isinstance(ids, Dropped) else (Encoded(self._shortened(self._whole(ids), text)),)
            for text, ids in zip(documents, encode(self._tokenizer, documents), strict=True)
        ]

    def _shortened(self, tokens: NDArray[Any], text: str) -> NDArray[Any]:
        """The first tokens, where the draw says so: no EOD ends what does not end there."""
        if not self._settings.short_rate:
            return tokens
        draw = Draw(self._settings.seed, "short", text)
        if not draw.happens("rate", self._settings.short_rate):
            return tokens
        return tokens[: 2 + draw.below("length", self._settings.short_length - 2)]

    def _whole(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The ids between BOS, where asked for, and EOD."""
        bos = len(self._bos)
        tokens = np.empty(bos + len(ids) + 1, self._dtype)
        tokens[:bos] = self._bos
        tokens[bos:-1] = ids
        tokens[-1] = self._tokenizer.eod_id
        return tokens
