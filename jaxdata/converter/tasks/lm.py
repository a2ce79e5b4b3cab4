"""Plain language modelling: a text is a document, every token is a target."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal

import numpy as np

import jaxdata.converter.tasks as tasks
from jaxdata.converter.inputs.parsing import joined_text_of
from jaxdata.converter.options import key_setting
from jaxdata.tokenizers import Tokenizer


class TextSettings(tasks.Settings):
    """The settings that all tasks of plain text have."""

    text_key: str = key_setting(
        "text", "Key or column of the text; a.b goes into objects, a,b joins."
    )

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The fields, one by one."""
        return tuple(key.strip() for key in self.text_key.split(","))


class TextTask(tasks.Task):
    """A task whose records become one text each; a document is that text."""

    strings = True

    def __init__(self, settings: TextSettings, clean: tasks.Clean) -> None:
        self.keys: tuple[str, ...] = settings.text_keys
        self.plain = len(self.keys) == 1
        self._clean = clean

    def prepare(self, record: tasks.Record) -> tasks.Prepared:
        text = joined_text_of(record, self.keys)
        return tasks.Prepared((self._clean(text),), (text,))

    def texts(self, document: Any, stream: str | None = None) -> tuple[str]:  # noqa: ARG002
        return (document,)


class LmSettings(TextSettings):
    """Settings of :class:`LmTask`."""

    makes: ClassVar[str] = "plain text"

    name: Literal["lm"] = "lm"


class LmTask(TextTask):
    """See `Task`; a document is its text."""

    def __init__(self, settings: LmSettings, tokenizer: Tokenizer, clean: tasks.Clean) -> None:
        super().__init__(settings, clean)
        self._tokenizer, self._dtype = tokenizer, tasks.token_dtype(tokenizer.vocab_size)
        self._bos = np.array([tokenizer.bos_id] if settings.bos else [], self._dtype)
        self._eod = np.array([tokenizer.eod_id], self._dtype)

    def stored_text(self, document: str) -> str:
        return document

    def encode(self, documents: Sequence[str]) -> list[tuple[tasks.Encoded] | tasks.Dropped]:
        found = tasks.encode(self._tokenizer, documents)
        ids = [one for one in found if not isinstance(one, tasks.Dropped)]
        # One array for all is made in a fraction of the time that one for each takes.
        parts = [self._bos, self._bos, self._eod] * len(ids)
        parts[1::3] = ids
        whole = np.concatenate([self._bos[:0], *parts], dtype=self._dtype, casting="unsafe")
        added = len(self._bos) + 1
        edges = pairwise(accumulate((len(one) + added for one in ids), initial=0))
        return [
            one if isinstance(one, tasks.Dropped) else (tasks.Encoded(whole[slice(*next(edges))]),)
            for one in found
        ]


tasks.register(LmSettings, LmTask)
