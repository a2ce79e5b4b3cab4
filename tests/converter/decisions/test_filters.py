"""Cleaning and limits, text by text."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import MissingExtra
from jaxdata.converter.filters import Cleaning, LengthFilter, make_cleaner
from jaxdata.converter.tasks.base import Dropped, Encoded

LIMIT = st.none() | st.integers(1, 6) | st.just(2_000)


STREAMS = st.lists(st.integers(0, 8) | st.integers(1_999, 2_001), min_size=1, max_size=2)


@given(LIMIT, LIMIT, st.lists(st.none() | STREAMS, max_size=4))
@settings(max_examples=60)
def test_documents_too_short_or_long_say_so(
    least: int | None, most: int | None, documents: list[list[int] | None]
) -> None:
    def why(lengths: list[int], what: str) -> str | None:
        if least is not None and min(lengths) < least:
            return f"shorter than {least:,} {what}"
        if most is not None and max(lengths) > most:
            return f"longer than {most:,} {what}"
        return None

    gone = Dropped("before")
    encoded: list[Any] = [
        gone if one is None else tuple(Encoded(np.zeros(n, np.uint16)) for n in one)
        for one in documents
    ]
    of_tokens = LengthFilter(min_tokens=least, max_tokens=most)
    of_characters = LengthFilter(min_chars=least, max_chars=most)
    found = of_tokens.of_tokens(encoded)
    for one, was, made in zip(found, encoded, documents, strict=True):
        reason = made and why(made, "tokens")
        assert isinstance(one, Dropped) and one.reason == reason if reason else one is was
        for count in made or ():
            dropped = of_characters.of_characters(count)
            assert (dropped and dropped.reason) == why([count], "characters")
            assert of_tokens.of_characters(count) is None
    assert of_characters.of_tokens(encoded) is encoded


FORMS = st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"])


@settings(max_examples=40)
@given(st.booleans(), FORMS, st.text(st.sampled_from(" \n\tae\u0301\ufb01@,.\u00a0")))
def test_texts_are_cleaned_in_order(strip: bool, form: Any, text: str) -> None:
    clean = make_cleaner(Cleaning(strip=strip, normalize=form))
    if not (strip or form):
        assert clean is None
        return
    assert clean is not None
    expected = text.strip() if strip else text
    assert clean(text) == (unicodedata.normalize(form, expected) if form else expected)


def test_wrongly_decoded_text_is_repaired_before_it_is_normalized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ftfy")
    clean = make_cleaner(Cleaning(ftfy=True))
    assert clean is not None
    assert clean("sch\u00c3\u00b6n e\u0301") == "sch\u00f6n e\u0301", "in no normal form"
    both = make_cleaner(Cleaning(ftfy=True, normalize="NFD", strip=True))
    assert both is not None
    assert both(" sch\u00c3\u00b6n ") == "scho\u0308n"
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(MissingExtra, match="clean"):
        make_cleaner(Cleaning(ftfy=True))
