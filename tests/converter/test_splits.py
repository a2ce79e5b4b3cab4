"""Which documents go to which split."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.splits import Ratio, read_ratio


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
def test_the_hash_of_a_document_decides_its_split(
    parts: dict[str, int], texts: list[str | bytes], key: Any
) -> None:
    ratio = Ratio({name: float(part) for name, part in parts.items()})
    content = b""
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        content += len(data).to_bytes(8, "little") + data
    assert ratio.of_texts(texts) == dealt(parts, content, b"jaxdata.split")
    written = json.dumps(key, sort_keys=True, default=str).encode()  # dates are in tables
    assert ratio.of_key(key) == dealt(parts, written, b"jaxdata.key")


SHARE = st.sampled_from(["0", "7", "98", "3.", "0.5", ".25", "12.25"])
SPACE = st.sampled_from(["", " ", "  "])


@given(st.dictionaries(st.sampled_from(["train", "val", "a-b"]), SHARE, min_size=1), SPACE)
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


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("train", "train"),
        ("train=1, train=2", "train=2"),
        ("train=-1", "train=-1"),
        ("train=1e3", "train=1e3"),
        ("a b=1", "a b=1"),
        ("=1", "=1"),
    ],
)
def test_what_is_no_share_is_named(text: str, item: str) -> None:
    with pytest.raises(InputError) as caught:
        read_ratio(text)
    assert str(caught.value) == (
        f"--split-ratio {text!r}: {item!r} is not a split and its share; expected each split once, "
        "as in train=98,val=1,test=1"
    )
