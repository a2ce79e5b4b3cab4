"""Cleaning of texts, and limits on the length of documents; all off by default."""

import unicodedata
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Literal

from jaxdata.base.errors import extra_module
from jaxdata.base.settings import Settings, setting
from jaxdata.converter.options import CLEANING
from jaxdata.converter.tasks import Clean, Dropped, Encoded

_cleaning = partial(setting, heading=CLEANING)


def _limit(what: str) -> Any:
    return _cleaning(None, f"Drop documents of {what}.", ge=1)


class LengthFilter(Settings):
    """Limits on the length of documents; a part of the parameters."""

    min_chars: int | None = _limit("fewer characters, counted after cleaning")
    max_chars: int | None = _limit("more characters, counted after cleaning")
    min_tokens: int | None = _limit("fewer tokens, the end-of-document token included")
    max_tokens: int | None = _limit("more tokens, the end-of-document token included")

    def of_characters(self, count: int) -> Dropped | None:
        """Why a document of `count` characters is dropped; None if it is kept."""
        return _outside(count, count, self.min_chars, self.max_chars, "characters")

    def of_tokens(
        self, encoded: Sequence[tuple[Encoded, ...] | Dropped]
    ) -> Sequence[tuple[Encoded, ...] | Dropped]:
        """Documents as a task encodes them; `Dropped` in the place of those left out."""
        if self.min_tokens is None and self.max_tokens is None:
            return encoded
        return [one if isinstance(one, Dropped) else self._checked(one) for one in encoded]

    def _checked(self, streams: tuple[Encoded, ...]) -> tuple[Encoded, ...] | Dropped:
        """The document, or `Dropped` if the length of a stream is out of bounds."""
        lengths = [len(one.tokens) for one in streams]
        limits = self.min_tokens, self.max_tokens
        return _outside(min(lengths), max(lengths), *limits, "tokens") or streams


def _outside(
    shortest: int, longest: int, least: int | None, most: int | None, what: str
) -> Dropped | None:
    if least is not None and shortest < least:
        return Dropped(f"shorter than {least:,} {what}")
    if most is not None and longest > most:
        return Dropped(f"longer than {most:,} {what}")
    return None


class Cleaning(Settings):
    """Cleaning of every text, in this order; a part of the parameters."""

    strip: bool = _cleaning(False, "Remove white space at both ends of texts.")
    ftfy: bool = _cleaning(False, "Repair wrongly decoded text (needs the extra 'clean').")
    """ftfy leaves text in no normal form."""
    normalize: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = _cleaning(
        None, "Convert text to a Unicode normal form."
    )


def make_cleaner(cleaning: Cleaning) -> Clean:
    """Return the function that cleans a text."""
    steps: list[Clean] = [str.strip] if cleaning.strip else []
    if cleaning.ftfy:
        ftfy = extra_module("clean", "ftfy")
        settings = ftfy.TextFixerConfig(normalization=None, explain=False)
        steps.append(partial(ftfy.fix_text, config=settings))
    if form := cleaning.normalize:
        steps.append(partial(unicodedata.normalize, form))
    return lambda text: reduce(lambda made, step: step(made), steps, text)
