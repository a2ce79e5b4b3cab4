"""Cleaning texts before they are tokenised; nothing is done unless it is asked for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from jaxdata.errors import MissingExtra

__all__ = ["Cleaner", "Cleaning", "make_cleaner", "without_wikitext_marks"]

Cleaner = Callable[[str], str]


class Cleaning(BaseModel):
    """What is done to every text, in this order; a part of the parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ftfy: bool = False
    """Mend wrongly decoded text with ftfy, which leaves it in no normal form."""
    normalize: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    """Unicode normal form."""
    wikitext: bool = False
    """Undo the tokenisation of the WikiText corpora."""


def make_cleaner(cleaning: Cleaning) -> Cleaner | None:
    """Return the function that cleans a text, None where there is nothing to do."""
    steps: list[Cleaner] = []
    if cleaning.ftfy:
        steps.append(_ftfy())
    if form := cleaning.normalize:
        steps.append(lambda text: unicodedata.normalize(form, text))
    if cleaning.wikitext:
        steps.append(without_wikitext_marks)
    if not steps:
        return None

    def clean(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return clean


def _ftfy() -> Cleaner:
    try:
        import ftfy
    except ImportError:
        raise MissingExtra("clean", "ftfy") from None
    settings = ftfy.TextFixerConfig(normalization=None, explain=False)
    return lambda text: ftfy.fix_text(text, settings)


_Replacement = str | Callable[[re.Match[str]], str]
_RULES: list[tuple[str, _Replacement]] = [
    (r" @([-,.])@ ", r"\1"),  # inside numbers and compounds
    (r" ([:;.!?,])(?=\s)", r"\1"),
    (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
    (r"s ' ", "s' "),
    (r" 's\b", "'s"),
    (r"=(?: =)+", lambda marks: marks.group().replace(" ", "")),  # headings
    (r" ° ", "°"),
    (r" ?\n ?", "\n"),
]
_WIKITEXT = [(re.compile(pattern), replacement) for pattern, replacement in _RULES]


def without_wikitext_marks(text: str) -> str:
    r"""Undo the tokenisation of the WikiText corpora, as far as it can be known.

    >>> without_wikitext_marks("It cost 1 @,@ 000 ( or so ) , they said .\n")
    'It cost 1,000 (or so), they said.\n'
    """
    for pattern, replacement in _WIKITEXT:
        text = pattern.sub(replacement, text)
    return text
