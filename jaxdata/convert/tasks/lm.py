"""Plain language modelling: a text is a document, every token is a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdata.convert.records import joined_text_of
from jaxdata.convert.tasks.base import Encoded, Record, Settings, token_dtype
from jaxdata.tokenizers import Tokenizer

__all__ = ["LmSettings", "LmTask"]


class LmSettings(Settings):
    """Settings of :class:`LmTask`."""

    name: Literal["lm"] = "lm"
    text_key: str = "text"
    """The field that holds the text; several with commas between."""
    text_joiner: str = "\n\n"
    """What stands between the texts of several fields."""

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The fields, one by one."""
        return tuple(key.strip() for key in self.text_key.split(","))


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
        self._joiner, self._clean = settings.text_joiner, clean
        self._tokenizer = tokenizer
        self._bos = [tokenizer.bos_id] if settings.bos else []
        self._dtype = token_dtype(tokenizer.vocab_size)

    def prepare(self, record: Record) -> list[str]:
        """See `Task`."""
        text = joined_text_of(record, self.keys, self._joiner)
        return [self._clean(text) if self._clean else text]

    def texts(self, document: str) -> tuple[str]:
        """See `Task`."""
        return (document,)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded]]:
        """See `Task`."""
        return [(Encoded(self._whole(ids)),) for ids in self._tokenizer.encode(documents)]

    def _whole(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The ids between BOS, where asked for, and EOD."""
        bos = len(self._bos)
        tokens = np.empty(bos + len(ids) + 1, self._dtype)
        tokens[:bos] = self._bos
        tokens[bos:-1] = ids
        tokens[-1] = self._tokenizer.eod_id
        return tokens
