"""What is asked of a mixture and refused of it; and its rows, picked one by one from a tree."""

import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings as examples, strategies as st

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.mixing.phases import Phase, Recipe, exact, weights_from
from jaxdata.rows.mixing.timeline import Apportionment, SourceBudget, make_timeline, whole_numbers
from tests.rows.mixing.oracle import Supply, shortfalls, tree_of

ONE = {"web": 1}


@examples(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 30), st.data())
def test_what_is_left_of_a_phase_is_its_budget_without_the_rows(
    size: int, batch_size: int, seq_len: int, data: st.DataObject
) -> None:
    for budget in ({"rows": size}, {"tokens": size}, {"steps": size, "batch_size": batch_size}):
        phase = Phase(**budget, weights=ONE)  # type: ignore[arg-type]
        whole = phase.budget(seq_len)
        assert whole
        if "tokens" in budget:
            assert (whole - 1) * seq_len < size <= whole * seq_len
        else:
            assert whole == math.prod(budget.values())
        gone = data.draw(st.integers(0, whole - 1))
        rest = phase.after(gone, seq_len)
        assert rest.budget(seq_len) == whole - gone
        assert rest.tokens == ((whole - gone) * seq_len if "tokens" in budget else None)
        assert (rest.steps, rest.batch_size, rest.weights) == (None, None, ONE)
    without = Phase(weights=ONE)
    assert without.budget(seq_len) is None
    assert without.after(3, seq_len) is without


def test_numbers_are_kept_as_written_and_weights_are_a_copy() -> None:
    kept = Phase(rows=3e6, weights=ONE).rows  # type: ignore[arg-type]
    assert (kept, type(kept)) == (3_000_000, int)
    assert (exact(1.1), exact(3)) == (Fraction(11, 10), 3)
    assert Phase(tokens=4.01, weights=ONE).budget(4) == 2
    given_weights = {"web": 0.5}
    phase = Phase(weights=given_weights)
    given_weights["web"] = 3
    assert (phase.weight("web"), phase.weight("code")) == (0.5, 0)
    recipe = Recipe([Phase(weights="size**0")], {"web": 0, "code": 1.5}, "refuse")
    recipe.check(["web", "code"])
    assert [recipe.epochs_of(name) for name in ("web", "code", "x")] == [0, Fraction(3, 2), 1]


RULES = {" proportional ": 1, "size ** 0.5": 0.5, "size**5e-1": 0.5, " size**0 ": 0, "size**16": 16}


@pytest.mark.parametrize(("rule", "exponent"), RULES.items())
def test_rules_are_powers_of_the_sizes_to_twelve_digits(rule: str, exponent: float) -> None:
    sizes = {"web": 1_234_567, "code": 81, "one": 1, "none": 0}
    found = weights_from(rule, sizes)
    assert [*found] == [*sizes]
    for name, size in sizes.items():
        power = Decimal(size) ** Decimal(str(exponent)) if size else Decimal(0)
        digits = 40 if exponent == 1 else 12
        assert Decimal(str(found[name])) == Decimal(f"{power:.{digits}g}")
    [phase] = Recipe([Phase(weights=rule)], {}, "halt").weighed({"web": 9})
    assert phase.numbers == weights_from(rule, {"web": 9})


SHORT, OPEN = Phase(rows=1, weights=ONE), Phase(weights=ONE)
RULE = (
    "expected a number for each source, like {web: 0.6, code: 0.4}, 'proportional' to their "
    "sizes, or a power of the sizes, like 'size**0.5'"
)
BUDGETED = "needs a budget: tokens, rows or steps; only the last may run until a source runs dry"
ONE_OF = "give exactly one of tokens, rows and steps"
TOGETHER = "give both, as batch_size turns steps into rows"
WRONG_PHASES: list[tuple[dict[str, Any], str]] = [
    ({"tokens": 4, "rows": 4}, f"a phase of tokens=4, rows=4, steps=None: {ONE_OF}"),
    ({"steps": 3}, f"a phase of steps=3, batch_size=None: {TOGETHER}"),
    ({"batch_size": 4}, f"a phase of steps=None, batch_size=4: {TOGETHER}"),
    *(
        ({"tokens": value}, f"a phase of tokens={value!r}: expected a number above 0")
        for value in (0, math.nan, "9")
    ),
    *(
        ({name: value}, f"a phase of {name}={value!r}: expected a whole number of at least 1")
        for name in ("rows", "steps", "batch_size")
        for value in (0, 2.5)
    ),
    *(
        ({"weights": weights}, f"weights {weights}: expected finite numbers, none below 0")
        for weights in ({"web": -0.1}, {"a": 1, "b": math.inf}, {"web": "1"})
    ),
    *(
        ({"weights": weights}, f"weights {weights}: at least one source must be above 0")
        for weights in ({}, {"web": 0, "code": 0.0})
    ),
    *(({"weights": rule}, f"weights {rule!r}: {RULE}") for rule in ("sizes", "size**1.2.3")),
    ({"weights": "size**16.5"}, "weights 'size**16.5': expected a power of at most 16"),
]


@pytest.mark.parametrize(("given", "message"), WRONG_PHASES)
def test_phases_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Phase(**{"weights": ONE, **given})
    assert str(caught.value) == message


WRONG_RECIPES: list[tuple[Recipe, str]] = [
    (Recipe([], {}, "halt"), "a mixture needs at least one Phase(tokens=…, weights={…})"),
    (Recipe([OPEN, SHORT], {}, "halt"), f"phase 0 {BUDGETED}"),
    (
        Recipe([SHORT, Phase(rows=1, weights={"wbe": 1})], {}, "halt"),
        "phase 1 weighs 'wbe', not one of the sources 'web', 'code'; did you mean 'web'?",
    ),
    (
        Recipe([SHORT], {"cod": 2}, "halt"),
        "epochs names 'cod', not one of the sources 'web', 'code'; did you mean 'code'?",
    ),
    *(
        (
            Recipe([SHORT], {"code": 1, "web": times}, "halt"),
            f"epochs of 'web': {times!r}; expected a number of at least 0",
        )
        for times in (-1, math.inf, "2")
    ),
]


@pytest.mark.parametrize(("recipe", "message"), WRONG_RECIPES)
def test_recipes_that_make_no_sense_are_refused(recipe: Recipe, message: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe.check(["web", "code"])
    assert str(caught.value) == message


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

    def made(mode: str) -> Any:
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
