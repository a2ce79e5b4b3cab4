"""Skipped rows, against going through rows and ranges one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.feed.schedule import Skips, check_skips, whole_pairs

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
    since = [(a, b, min(*more, replayed) if more else 0) for a, b, *more in given_]
    return [row for row in range(MOST) if any(a <= row < b and row >= at for a, b, at in since)]


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
    half = len(kept) // 2
    assert skips.rows(ordinals[: 2 * half].reshape(2, -1)).tolist() == [
        kept[:half],
        kept[half : 2 * half],
    ]


@given(ranges(), ranges(), st.integers(0, MOST), st.integers(0, MOST))
def test_rows_are_skipped_by_any_range_from_its_row_on(
    given_: Given, more: Given, row: int, again: int
) -> None:
    """Ranges may join on the way, and a run may begin again at a row that it had passed."""
    check(Skips(given_), gone(given_))
    asked = [(a, b) for a, b, *_ in more]
    whole = [*given_, *((a, b, row) for a, b in asked)]
    skips = Skips(given_).joined(asked, row)
    check(skips, gone(whole))
    check(skips.replayed(again), gone(whole, again))
    check(Skips(skips.replayed(again).ranges), gone(whole, again))


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


def test_pairs_are_of_two_whole_numbers() -> None:
    for wrong in WRONG:
        assert whole_pairs(wrong) is None
        with pytest.raises(InputError) as caught:
            check_skips(wrong, 9)
        assert str(caught.value) == (
            f"skip_rows={wrong!r}: expected pairs of rows, like [(4000, 4800)]"
        )
    for right in ([[1, 2]], np.array([[1, 2]]), ((np.uint8(1), np.int64(2)),), {(1, 2): "x"}):
        found = whole_pairs(right)
        assert found == [(1, 2)]
        assert {type(number) for number in found[0]} == {int}
    assert whole_pairs([]) == []
