"""Skipped rows, against going through rows and ranges one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import InputError
from jaxdata.feed.skips import Skips, check_skips, whole_pairs

Given = list[tuple[int, ...]]
MOST = 26
"""beyond the last row that any range reaches"""


def _range(draw: st.DrawFn) -> tuple[int, ...]:
    begin = draw(st.integers(0, 14))
    end = begin + draw(st.integers(1, 9))
    return (begin, end, draw(st.integers(0, 22))) if draw(st.booleans()) else (begin, end)


@st.composite
def ranges(draw: st.DrawFn) -> Given:
    return [_range(draw) for _ in range(draw(st.integers(0, 6)))]


def gone(given_: Given, replayed: int = 99) -> list[int]:
    """The rows that are not delivered, in a run that begins again at a row."""
    return [
        row
        for row in range(MOST)
        if any(a <= row < b and row >= min(*since, replayed) for a, b, *since in _since(given_))
    ]


def _since(given_: Given) -> Given:
    return [each if len(each) == 3 else (*each, 0) for each in given_]


def check(skips: Skips, lost: list[int]) -> None:
    kept = [row for row in range(MOST) if row not in lost]
    told = [row for begin, end in skips.gaps for row in range(begin, end)]
    assert told == lost
    assert all(begin < end for begin, end in skips.gaps)
    assert all(one[1] < other[0] for one, other in pairwise(skips.gaps)), "no two touch"
    for row in range(MOST + 1):
        before = sum(each < row for each in lost)
        assert (skips.before(row), skips.ordinal(row)) == (before, row - before)
    ordinals = np.arange(len(kept), dtype=np.int32)
    rows = skips.rows(ordinals)
    assert (rows.tolist(), rows.dtype) == (kept, np.int64)
    even = len(kept) // 2 * 2
    assert skips.rows(ordinals[:even].reshape(2, -1)).tolist() == [
        kept[: even // 2],
        kept[even // 2 : even],
    ]


@given(ranges())
def test_skipped_rows_are_those_of_any_range_from_its_row_on(given_: Given) -> None:
    check(Skips(given_), gone(given_))


@given(ranges(), st.integers(0, MOST))
def test_a_run_that_begins_again_skips_what_any_range_ever_named(given_: Given, row: int) -> None:
    skips = Skips(given_).replayed(row)
    check(skips, gone(given_, row))
    check(Skips(skips.ranges), gone(given_, row))


@given(ranges(), ranges(), st.integers(0, MOST))
def test_ranges_that_are_joined_hold_from_the_row_on(given_: Given, more: Given, row: int) -> None:
    asked = [(a, b) for a, b, *_ in more]
    whole = [*given_, *((a, b, row) for a, b in asked)]
    skips = Skips(given_).joined(asked, row)
    check(skips, gone(whole))
    check(skips.replayed(0), gone(whole, 0))


@given(ranges())
def test_ranges_are_told_in_order_none_within_another(given_: Given) -> None:
    skips = Skips(given_)
    told = skips.ranges
    assert told == sorted(told)
    assert {type(number) for each in told for number in each} <= {int}
    assert Skips(told).ranges == told
    whole = [each for each in told if len(each) == 2]
    assert all(one[1] < other[0] for one, other in pairwise(whole))
    for each in (late for late in told if len(late) == 3):
        assert each[2] > each[0], "from its begin on, a range is a whole one"
        for other in told:
            since = max(other[0], *other[2:], 0)
            inside = other[0] <= each[0] and each[1] <= other[1]
            assert other == each or not (inside and since <= each[2])
    in_whole = {row for a, b in whole for row in range(a, b)}
    named = {row for a, b, *since in given_ if max(since, default=0) <= a for row in range(a, b)}
    assert in_whole == named


def test_no_ranges_skip_nothing() -> None:
    skips = Skips()
    assert (skips.ranges, skips.gaps, skips.before(7), skips.ordinal(7)) == ([], [], 0, 7)
    assert skips.rows(np.array([[3]])).tolist() == [[3]]


NUMBERS = st.integers(-2, 8)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4), st.integers(0, 7))
def test_ranges_lie_within_the_rows(given_: list[tuple[int, int]], total: int) -> None:
    wrong = [(a, b) for a, b in given_ if a < 0 or b <= a or b > total]
    if not wrong:
        assert check_skips(given_, total) == given_
        return
    with pytest.raises(InputError) as caught:
        check_skips(given_, total)
    a, b = wrong[0]
    assert str(caught.value) == (
        f"cannot skip rows ({a}, {b}): expected (a, b) with 0 <= a < b <= {total}, the number of "
        "rows; b itself is not skipped"
    )


WRONG: list[Any] = [7, None, [3], [(1, 2, 3)], [(1,)], [(1, 2.0)], [(True, 4)], [(1, "2")], "abc"]


@pytest.mark.parametrize("given_", WRONG)
def test_what_is_no_pair_of_rows_is_refused(given_: Any) -> None:
    assert whole_pairs(given_) is None
    with pytest.raises(InputError) as caught:
        check_skips(given_, 9)
    assert str(caught.value) == (
        f"skip_rows={given_!r}: expected pairs of rows, like [(4000, 4800)]"
    )


def test_pairs_of_any_kind_are_pairs_of_plain_numbers() -> None:
    for given_ in ([[1, 2]], np.array([[1, 2]]), ((np.uint8(1), np.int64(2)),), {(1, 2): "x"}):
        found = whole_pairs(given_)
        assert found == [(1, 2)]
        assert {type(number) for number in found[0]} == {int}
    assert whole_pairs([]) == []
