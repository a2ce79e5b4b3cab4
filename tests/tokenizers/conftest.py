"""Trials of encoders that take a moment."""

from __future__ import annotations

import pytest

from jaxdata.tokenizers.encoders import trial
from jaxdata.tokenizers.encoders.trial import _FRAGMENTS, _WHOLE, hard_texts

KNOWN = [*range(128), *range(0xA0, 0x250), *range(0x300, 0x345), *range(0x4E00, 0x4E40), 0x1F600]
KNOWN += [*range(0x3040, 0x3100), *range(0x200B, 0x2010)]
KNOWN = sorted({*KNOWN, *map(ord, "".join([*_FRAGMENTS, *_WHOLE]))})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of some hundred code points and texts instead of all."""
    monkeypatch.setattr(trial, "_known", lambda: [*map(chr, KNOWN)])
    monkeypatch.setattr(trial, "hard_texts", lambda made: hard_texts(made, 500))
