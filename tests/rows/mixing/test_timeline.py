"""Shares of rows and phases of them, against a tree of fractions that picks row by row."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from jaxdata.base.errors import SourceExhausted
from jaxdata.rows.mixing.phases import Phase
from jaxdata.rows.mixing.timeline import (
    Apportionment,
    SourceBudget,
    Timeline,
    make_timeline,
    whole_numbers,
)
from tests.rows.mixing.oracle import Supply, shortfalls, tree_of

plain = st.integers(0, 12) | st.fractions(0, 3, max_denominator=40)
tiny = st.sampled_from([Fraction(1, 2**70), Fraction(1, 2**64), Fraction(1, 10**12)])
shares_lists = st.lists(plain | tiny, min_size=1, max_size=6).filter(any)
FAR = st.integers(0, 2**62) | st.integers(0, 70).map(lambda n: 2**n % 2**62)
EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**48 + 12345, 2**53 + 1, 2**62 - 1, 2**62]


@examples(max_examples=60)
@given(shares_lists, st.fractions(Fraction(1, 9), 9, max_denominator=9))
def test_each_row_is_the_one_that_the_splits_pick(shares: list[Fraction], by: Fraction) -> None:
    tree, made = tree_of(shares), Apportionment(shares)
    picked = [tree.pick(row) for row in range(60)]
    for same in (made, Apportionment([share * by for share in shares])):
        source, rank = same.select(np.arange(60))
        assert [*zip(source.tolist(), rank.tolist(), strict=True)] == picked
        assert source.dtype == rank.dtype == np.int64
    counts: Counter[int] = Counter()
    for rows, (number, _) in enumerate(picked, 1):
        counts[number] += 1
        assert made.counts(rows) == [counts[at] for at in range(len(shares))]
        for at, share in enumerate(shares):
            assert abs(counts[at] - rows * share / sum(shares)) < 2
            assert share or not counts[at]
    for at in counts:
        mine = [row for row, (number, _) in enumerate(picked) if number == at]
        assert made.rows_of(at, np.arange(len(mine))[::-1]).tolist() == mine[::-1]
    numbers = whole_numbers(shares)
    assert all(a * sum(shares) == b * sum(numbers) for a, b in zip(numbers, shares, strict=True))


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
        taken = [counts.get(at, 0) for at in range(len(shares))]
        assert made.counts(row) == taken
        assert made.rows_of(number, np.array([before])).tolist() == [row]
        if row < 10**14:  # the row itself goes beyond the rows of each source before it
            assert made.first_beyond(taken) == (row, number)


def test_rows_beyond_64_bits_are_compared_with_limits_and_numbers_are_the_smallest() -> None:
    row, source = Apportionment([2, 1]).first_beyond([2**70, 2**68])
    assert source == 1
    assert abs(row / (3 * 2**68) - 1) < 1e-12
    assert whole_numbers([Fraction(5, 6), Fraction(0), Fraction(3, 4)]) == [10, 0, 9]


SUPPLIES = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 4)), min_size=1, max_size=3)
"""rows of each source, and those taken before"""
WEIGHTS = st.lists(st.sampled_from([1, 0.3, 4]), min_size=3, max_size=3)
PHASES = st.lists(st.tuples(st.none() | st.integers(1, 20), WEIGHTS), min_size=1, max_size=3)


@examples(max_examples=50)
@given(SUPPLIES, PHASES, st.integers(0, 2))
def test_a_strict_mixture_is_refused_with_every_shortfall(
    sources: list[tuple[int, int]], asked: list[tuple[int | None, list[float]]], first: int
) -> None:
    supplies = [Supply(f"s{n}", rows, Fraction(2, n + 1), u) for n, (rows, u) in enumerate(sources)]
    names = [each.name for each in supplies]
    phases = [Phase(rows=n, weights=dict(zip(names, each, strict=False))) for n, each in asked]
    budgets = [SourceBudget(*each) for each in supplies]

    def made(mode: str) -> Timeline:
        more: Any = {"seq_len": 4, "on_exhaustion": mode, "start": 11, "first_phase": first}
        return make_timeline(budgets, phases, **more)

    lines = shortfalls(supplies, phases, first)
    if not lines:
        assert repr(made("refuse")) == repr(made("halt"))
        return
    with pytest.raises(SourceExhausted) as caught:
        made("refuse")
    assert str(caught.value).split("\n") == [
        "the mixture needs more rows than its sources have:",
        *lines,
        "reduce the budget or weight, allow more epochs (epochs={name: 2}), or set "
        "on_exhaustion='renormalize' (the others share the rest) or 'halt'",
    ]
