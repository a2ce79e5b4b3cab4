"""Which documents go to which split: by hash, and by number."""

from __future__ import annotations

import datetime
import hashlib
import json
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.converter.receipts import Receipt
from jaxdata.converter.splits import Ratio, assign, documents_of, is_assigned, read_ratio
from jaxdata.errors import InputError
from tests.converter.decisions.made import wrote

shares = st.lists(st.integers(0, 50), min_size=1, max_size=5).filter(any)


def written(parts: list[int]) -> str:
    return ",".join(f"s{number}={part}" for number, part in enumerate(parts))


@given(shares, st.lists(st.integers(0, 40), max_size=12))
def test_contiguous_splits_get_their_shares_one_after_the_other(
    parts: list[int], counts: list[int]
) -> None:
    given = [part for part in parts if part]
    splits: list[list[tuple[int, int]]] = [[] for _ in given]
    for unit, (deal, count) in enumerate(zip(assign(written(parts), counts), counts, strict=True)):
        assert deal[-1] == count
        for split, (start, stop) in enumerate(zip((0, *deal), deal, strict=False)):
            splits[split] += [(unit, number) for number in range(start, stop)]
    everything = [(unit, number) for unit, count in enumerate(counts) for number in range(count)]
    assert [one for split in splits for one in split] == everything
    for number, split in enumerate(splits):
        ideal = Fraction(given[number], sum(given)) * len(everything)
        assert abs(len(split) - ideal) <= 1


@given(shares)
def test_a_split_without_a_share_is_none(parts: list[int]) -> None:
    names = [f"s{number}" for number, part in enumerate(parts) if part]
    assert Ratio(read_ratio(written(parts))).names == names


def test_documents_are_dealt_by_their_shares_and_nothing_else() -> None:
    ratio = Ratio(read_ratio("a=3,b=1"))
    found = [ratio.of_texts([f"text {number}"]) for number in range(20_000)]
    assert 14_800 < found.count("a") < 15_200
    assert found == [Ratio({"a": 0.75, "b": 0.25}).of_texts([f"text {n}"]) for n in range(20_000)]


def test_where_one_text_ends_and_the_next_begins_matters() -> None:
    ratio = Ratio({str(name): 1.0 for name in range(1_000)})
    ways = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""]]
    assert len({ratio.of_texts(texts) for texts in ways}) == len(ways)


def test_keys_of_any_kind_and_the_order_of_their_fields() -> None:
    ratio = Ratio({str(name): 1.0 for name in range(1_000)})
    assert ratio.of_key({"a": 1, "b": 2}) == ratio.of_key({"b": 2, "a": 1})
    days = [datetime.date(2026, 11, day) for day in (1, 2, 3)]  # as tables have them
    assert len({ratio.of_key(day) for day in days}) == 3
    assert len({ratio.of_key(1), ratio.of_key("1"), ratio.of_key(None), ratio.of_key([1])}) == 4


def dealt(parts: dict[str, int], data: bytes, use: bytes) -> str:
    """The split whose share of all hashes has this one."""
    digest = hashlib.blake2b(data, digest_size=8, person=use).digest()
    place = Fraction(int.from_bytes(digest, "little"), 2**64)
    ends = accumulate(Fraction(part, sum(parts.values())) for part in parts.values())
    return next(name for name, end in zip(parts, ends, strict=True) if place < end)


PARTS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9), min_size=1, max_size=5)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
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
    written = json.dumps(key, sort_keys=True).encode()
    assert ratio.of_key(key) == dealt(parts, written, b"jaxdata.key")


SHARE = st.tuples(st.integers(0, 99), st.sampled_from(["", ".", ".5", ".25"]))
SPACE = st.sampled_from(["", " ", "  "])


@given(st.dictionaries(st.sampled_from(["train", "val", "a-b"]), SHARE, min_size=1), SPACE)
def test_shares_are_read_as_written(shares: dict[str, tuple[int, str]], space: str) -> None:
    text = ",".join(
        f"{space}{name}{space}={space}{whole}{part}{space}"
        for name, (whole, part) in shares.items()
    )
    expected = {
        name: whole + {"": 0.0, ".": 0.0, ".5": 0.5, ".25": 0.25}[part]
        for name, (whole, part) in shares.items()
    }
    if not any(expected.values()):
        with pytest.raises(InputError) as caught:
            read_ratio(text)
        assert str(caught.value) == f"--split-ratio {text!r}: the shares add up to zero"
        return
    found = read_ratio(text)
    assert found == {name: share for name, share in expected.items() if share}
    assert [*found] == [name for name in shares if name in found], "in the order given"


def test_a_share_may_begin_with_its_point() -> None:
    assert read_ratio("a=.5,b=.25") == {"a": 0.5, "b": 0.25}


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("", ""),
        ("train", "train"),
        ("train=98,", ""),
        ("train=98,val", "val"),
        ("train=1, train=2", "train=2"),
        ("train=-1", "train=-1"),
        ("train=1e3", "train=1e3"),
        ("train=.", "train=."),
        ("a b=1", "a b=1"),
        ("=1", "=1"),
        ("a==1", "a==1"),
    ],
)
def test_what_is_no_share_is_named(text: str, item: str) -> None:
    with pytest.raises(InputError) as caught:
        read_ratio(text)
    assert str(caught.value) == (
        f"--split-ratio {text!r}: {item!r} is not a split and its share; expected each split once, "
        "as in train=98,val=1,test=1"
    )


def test_a_unit_is_written_as_assigned_or_not() -> None:
    documents = [(3, 0, record) for record in range(5)]
    outputs = {"train/a": wrote("train/a/x", documents[:3]), "test/a": wrote("t", documents[3:])}
    receipt, names = Receipt([5], outputs, []), ["train/a", "val/a", "test/a"]
    assert documents_of(receipt, names) == [3, 0, 2]
    assert is_assigned(receipt, names, (3, 3, 5))
    for ends in [(3, 4, 5), (2, 3, 5), (3, 3, 4), (5, 5, 5), (3, 3, 6)]:
        assert not is_assigned(receipt, names, ends)
