"""Which documents go to which split: by hash, and by number."""

from __future__ import annotations

import datetime
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from jaxdata.converter.splits import Ratio, assign, read_ratio

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
