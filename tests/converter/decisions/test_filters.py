"""Texts cleaned, documents that limits leave out, and the split that each goes to."""

import hashlib
import json
import sys
import unicodedata
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxdata.base.errors import InputError, MissingExtra
from jaxdata.converter.filters import Cleaning, LengthFilter, make_cleaner
from jaxdata.converter.splits import Ratio, read_ratio
from jaxdata.converter.tasks import Dropped, Encoded

Limit = int | None
LIMIT = st.none() | st.integers(1, 6) | st.just(2_000)


STREAMS = st.lists(st.integers(0, 8) | st.integers(1_999, 2_001), min_size=1, max_size=2)


@given(LIMIT, LIMIT, st.lists(st.none() | STREAMS, max_size=4))
@settings(max_examples=60)
def test_documents_too_short_or_long_say_so(least: Limit, most: Limit, documents: Any) -> None:
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
    for one, was, made in zip(of_tokens.of_tokens(encoded), encoded, documents, strict=True):
        reason = made and why(made, "tokens")
        assert isinstance(one, Dropped) and one.reason == reason if reason else one is was
        for count in made or ():
            dropped = of_characters.of_characters(count)
            assert (dropped and dropped.reason) == why([count], "characters")
            assert of_tokens.of_characters(count) is None
    assert of_characters.of_tokens(encoded) is encoded


LETTERS = st.sampled_from(" \n\tae\u0301\ufb01@,.\u00a0")


@settings(max_examples=40)
@given(st.booleans(), st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"]), st.text(LETTERS))
def test_texts_are_cleaned_in_order(strip: bool, form: Any, text: str) -> None:
    clean = make_cleaner(Cleaning(strip=strip, normalize=form))
    expected = text.strip() if strip else text
    assert clean(text) == (unicodedata.normalize(form, expected) if form else expected)


def test_text_is_repaired_before_it_is_normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ftfy")
    clean = make_cleaner(Cleaning(ftfy=True))
    assert clean("sch\u00c3\u00b6n e\u0301") == "sch\u00f6n e\u0301", "in no normal form"
    both = make_cleaner(Cleaning(ftfy=True, normalize="NFD", strip=True))
    assert both(" sch\u00c3\u00b6n ") == "scho\u0308n"
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(MissingExtra, match="clean"):
        make_cleaner(Cleaning(ftfy=True))


def dealt(parts: dict[str, int], data: bytes, use: bytes) -> str:
    """The split whose share of all hashes has this one."""
    digest = hashlib.blake2b(data, digest_size=8, person=use).digest()
    place = Fraction(int.from_bytes(digest, "little"), 2**64)
    ends = accumulate(Fraction(part, sum(parts.values())) for part in parts.values())
    return next(name for name, end in zip(parts, ends, strict=True) if place < end)


PARTS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9), min_size=1, max_size=5)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@given(PARTS, st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=3), KEYS)
def test_the_hash_of_a_document_decides_its_split(parts: Any, texts: Any, key: Any) -> None:
    ratio = Ratio({name: float(part) for name, part in parts.items()})
    content = b""
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        content += len(data).to_bytes(8, "little") + data
    assert ratio.of_texts(texts) == dealt(parts, content, b"jaxdata.split")
    written = json.dumps(key, sort_keys=True, default=str).encode()  # dates are in tables
    assert ratio.of_key(key) == dealt(parts, written, b"jaxdata.key")


SHARE = st.sampled_from(["0", "7", "98", "3.", "0.5", ".25", "12.25"])
NAME = st.sampled_from(["train", "val", "a-b"])


@given(st.dictionaries(NAME, SHARE, min_size=1), st.sampled_from(["", " ", "  "]))
def test_shares_are_read_as_written(shares: dict[str, str], space: str) -> None:
    text = ",".join(f"{space}{name}{space}={space}{one}{space}" for name, one in shares.items())
    expected = {name: float(one) for name, one in shares.items() if float(one)}
    if expected:
        assert [*read_ratio(text).items()] == [*expected.items()], "in the order given"
        assert Ratio(expected).names == [*expected]
        return
    with pytest.raises(InputError) as caught:
        read_ratio(text)
    assert str(caught.value) == f"--split-ratio {text!r}: the shares add up to zero"


def test_what_is_no_share_is_named() -> None:
    for text in ("train", "train=1, train=2", "train=-1", "train=1e3", "a b=1", "=1"):
        item = text.split(", ")[-1]
        with pytest.raises(InputError) as caught:
            read_ratio(text)
        assert str(caught.value) == (
            f"--split-ratio {text!r}: {item!r} is not a split and its share; expected each split "
            "once, as in train=98,val=1,test=1"
        )
