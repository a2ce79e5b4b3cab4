"""Trials of encoders that take a moment, and encoders next to their library."""

from __future__ import annotations

import numpy as np
import pytest

from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders import attach, choose, trial
from jaxdata.tokenizers.encoders.trial import naughty_texts

KNOWN = [*range(128), *range(0xA0, 0x250), *range(0x300, 0x345), *range(0x4E00, 0x4E40), 0x1F600]
KNOWN += [*range(0x3040, 0x3100), *range(0x200B, 0x2010)]
KNOWN = sorted({*KNOWN, *map(ord, "".join(naughty_texts(count=0)))})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of some hundred code points and texts instead of all."""
    monkeypatch.setattr(trial, "every_character", lambda: "".join(map(chr, KNOWN)))
    monkeypatch.setattr(trial, "naughty_texts", lambda words: naughty_texts(words, 500))


def guarded(made: Tokenizer, name: str) -> Tokenizer:
    if name == "fast":
        pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    attach(made, choose(made, name, text_bytes=0))  # type: ignore[arg-type]
    assert made.guard
    return made


def same(made: Tokenizer, some: list[str]) -> None:
    """Its encoder gives the library's ids; the library did not encode them in its place."""
    assert made.guard
    for text, one, other in zip(
        some, made.encode(some), made.encode_texts(some, False), strict=True
    ):
        assert np.array_equal(one, other), text
        assert one.dtype == np.uint32
    assert made.guard.counts["own texts"] > 0.5 * len(some)
