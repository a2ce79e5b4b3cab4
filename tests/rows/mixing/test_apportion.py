"""The division of rows among sources, against a tree of fractions that picks row by row."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from jaxdata.rows.mixing.timeline import Apportionment, whole_numbers
from tests.rows.mixing.oracle import tree_of

plain = st.integers(0, 12) | st.fractions(0, 3, max_denominator=40)
tiny = st.sampled_from([Fraction(1, 2**70), Fraction(1, 2**64), Fraction(1, 10**12)])
shares_lists = st.lists(plain | tiny, min_size=1, max_size=6).filter(any)
FAR = st.integers(0, 2**62) | st.integers(0, 70).map(lambda n: 2**n % 2**62)
EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**48 + 12345, 2**53 + 1, 2**62 - 1, 2**62]


@examples(max_examples=50)
@given(shares_lists)
def test_each_row_is_the_one_that_the_splits_pick(shares: list[Fraction]) -> None:
    tree = tree_of(shares)
    source, rank = Apportionment(shares).select(np.arange(60))
    assert [*zip(source.tolist(), rank.tolist(), strict=True)] == [
        tree.pick(row) for row in range(60)
    ]
    assert source.dtype == rank.dtype == np.int64


@examples(max_examples=50)
@given(shares_lists)
def test_every_prefix_holds_each_share_within_two_rows(shares: list[Fraction]) -> None:
    source, _ = Apportionment(shares).select(np.arange(60))
    counts: Counter[int] = Counter()
    for rows, number in enumerate(source.tolist(), 1):
        counts[number] += 1
        for at, share in enumerate(shares):
            assert abs(counts[at] - rows * share / sum(shares)) < 2
            assert share or not counts[at]


@examples(max_examples=50)
@given(shares_lists, st.lists(FAR, min_size=1, max_size=5))
@example([Fraction(2, 3), Fraction(1, 3)], EDGES)
@example([Fraction(1)] * 5, EDGES)
@example([Fraction(1), Fraction(1, 2**70)], EDGES)
@example([Fraction(1), Fraction(3, 2**66)], EDGES)
def test_rows_far_out_are_picked_the_same_way(shares: list[Fraction], rows: list[int]) -> None:
    tree, made = tree_of(shares), Apportionment(shares)
    source, rank = made.select(np.array(rows))
    picked = [tree.pick(row) for row in rows]
    assert [*zip(source.tolist(), rank.tolist(), strict=True)] == picked
    for row, (number, before) in zip(rows, picked, strict=True):
        counts = tree.counts(row)
        assert made.counts(row) == [counts.get(at, 0) for at in range(len(shares))]
        assert made.rows_of(number, np.array([before])).tolist() == [row]


@examples(max_examples=50)
@given(shares_lists)
def test_counts_and_the_rows_of_ranks_are_those_of_the_rows(shares: list[Fraction]) -> None:
    tree, made = tree_of(shares), Apportionment(shares)
    picked = [tree.pick(row)[0] for row in range(40)]
    for rows in range(41):
        assert made.counts(rows) == [picked[:rows].count(at) for at in range(len(shares))]
    for at in {*picked}:
        mine = [row for row, number in enumerate(picked) if number == at]
        found = made.rows_of(at, np.arange(len(mine)))
        assert found.tolist() == mine
        assert found.dtype == np.int64


@examples(max_examples=50)
@given(shares_lists, st.data())
def test_the_first_row_beyond_limits_is_the_one_that_is_met_first(
    shares: list[Fraction], data: st.DataObject
) -> None:
    limits = data.draw(st.lists(st.integers(0, 12), min_size=len(shares), max_size=len(shares)))
    shares = [share if share > Fraction(1, 50) else Fraction(0) for share in shares]
    if any(shares):
        tree, taken, row = tree_of(shares), Counter[int](), 0
        while taken[source := tree.pick(row)[0]] < limits[source]:
            taken[source] += 1
            row += 1
        assert Apportionment(shares).first_beyond(limits) == (row, source)


@examples(max_examples=50)
@given(shares_lists, st.integers(0, 10**14))
def test_the_first_row_beyond_limits_far_out(shares: list[Fraction], row: int) -> None:
    """The row itself goes beyond the rows of each source before it."""
    counts = tree_of(shares).counts(row)
    limits = [counts.get(at, 0) for at in range(len(shares))]
    expected = row, tree_of(shares).pick(row)[0]
    assert Apportionment(shares).first_beyond(limits) == expected


@examples(max_examples=50)
@given(shares_lists, st.fractions(Fraction(1, 9), 9, max_denominator=9))
def test_whole_numbers_keep_the_proportions(shares: list[Fraction], by: Fraction) -> None:
    numbers = whole_numbers(shares)
    assert all(isinstance(each, int) for each in numbers)
    assert all(a * sum(shares) == b * sum(numbers) for a, b in zip(numbers, shares, strict=True))
    rows = np.arange(30)
    for one, other in zip(
        Apportionment(shares).select(rows),
        Apportionment([share * by for share in shares]).select(rows),
        strict=True,
    ):
        assert one.tolist() == other.tolist()


def test_one_source_gets_every_row_and_no_rows_are_none() -> None:
    alone = Apportionment([0, 3, 0])
    source, rank = alone.select(np.arange(4))
    assert (source.tolist(), rank.tolist()) == ([1] * 4, [0, 1, 2, 3])
    assert alone.counts(7) == [0, 7, 0]
    assert alone.rows_of(1, np.array([5, 2])).tolist() == [5, 2]
    assert alone.first_beyond([0, 9, 0]) == (9, 1)
    source, rank = Apportionment([1, 2]).select(np.arange(0))
    assert len(source) == len(rank) == 0


def test_rows_beyond_64_bits_are_compared_with_limits() -> None:
    row, source = Apportionment([2, 1]).first_beyond([2**70, 2**68])
    assert source == 1
    assert abs(row / (3 * 2**68) - 1) < 1e-12


def test_whole_numbers_are_of_the_smallest_scale() -> None:
    assert whole_numbers([Fraction(5, 6), Fraction(0), Fraction(3, 4)]) == [10, 0, 9]
    assert whole_numbers([4, 2]) == [4, 2]
