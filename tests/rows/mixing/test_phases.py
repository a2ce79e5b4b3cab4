"""Phases, weights and recipes: what they make of numbers and rules, and what they refuse."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.rows.mixing.phases import (
    Phase,
    Recipe,
    check_epochs,
    check_names,
    check_phases,
    check_weigh_by,
    check_weights,
    exact,
    weights_from,
)

ONE = {"web": 1}
RULE = (
    "expected a number for each source, like {web: 0.6, code: 0.4}, 'proportional' to their "
    "sizes, or a power of the sizes, like 'size**0.5'"
)


def refused(message: str, call: Any, *given: Any, **named: Any) -> None:
    with pytest.raises(InputError) as caught:
        call(*given, **named)
    assert str(caught.value) == message


@examples(max_examples=40)
@given(st.integers(1, 10**9) | st.decimals("0.01", 1000, places=2).map(float), st.integers(1, 99))
def test_a_budget_of_tokens_is_the_rows_that_hold_them(tokens: float, seq_len: int) -> None:
    rows = Phase(tokens=tokens, weights=ONE).budget(seq_len)
    assert rows
    assert (rows - 1) * seq_len < Decimal(str(tokens)) <= rows * seq_len


@examples(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 30), st.data())
def test_what_is_left_of_a_phase_is_its_budget_without_the_rows(
    size: int, batch_size: int, seq_len: int, data: st.DataObject
) -> None:
    for budget in ({"rows": size}, {"tokens": size}, {"steps": size, "batch_size": batch_size}):
        phase = Phase(**budget, weights=ONE)  # type: ignore[arg-type]
        whole = phase.budget(seq_len)
        assert whole
        gone = data.draw(st.integers(0, whole - 1))
        rest = phase.after(gone, seq_len)
        assert rest.budget(seq_len) == whole - gone
        assert (rest.tokens is None) == ("tokens" not in budget)
        assert rest.tokens is None or rest.tokens == (whole - gone) * seq_len
        assert (rest.steps, rest.batch_size, rest.weights) == (None, None, ONE)
    without = Phase(weights=ONE)
    assert without.budget(seq_len) is None
    assert without.after(3, seq_len) is without


def test_budgets_of_rows_and_steps_are_their_numbers_whatever_the_row() -> None:
    assert Phase(rows=7, weights=ONE).budget(5) == 7
    assert Phase(steps=7, batch_size=3, weights=ONE).budget(5) == 21
    kept = Phase(rows=3e6, weights=ONE).rows  # type: ignore[arg-type]
    assert (kept, type(kept)) == (3_000_000, int)
    assert Phase(tokens=2.5, weights=ONE).tokens == 2.5


def test_a_phase_shows_what_was_given() -> None:
    assert repr(Phase(rows=3, weights=ONE)) == "Phase(rows=3, weights={'web': 1})"
    assert repr(Phase(weights="proportional")) == "Phase(weights='proportional')"


def test_weights_are_a_copy_and_numbers_only_when_weighed() -> None:
    given = {"web": 0.5}
    phase = Phase(weights=given)
    given["web"] = 3
    assert phase.numbers == {"web": 0.5}
    assert (phase.weight("web"), phase.weight("code")) == (0.5, 0)
    ruled = Phase(rows=2, weights="proportional")
    with pytest.raises(AssertionError, match="weights 'proportional' are not weighed yet"):
        ruled.weight("web")
    assert ruled.weighed({"web": 3, "code": 5}) == Phase(rows=2, weights={"web": 3, "code": 5})


@pytest.mark.parametrize("two", [("tokens", "rows"), ("rows", "steps"), ("tokens", "steps")])
def test_two_budgets_of_a_phase_are_refused(two: tuple[str, str]) -> None:
    given: dict[str, Any] = {"tokens": None, "rows": None, "steps": None, **dict.fromkeys(two, 4)}
    told = ", ".join(f"{name}={value}" for name, value in given.items())
    message = f"a phase of {told}: give exactly one of tokens, rows and steps"
    refused(message, Phase, **given, weights=ONE)


@pytest.mark.parametrize("one", [{"steps": 3}, {"batch_size": 4}])
def test_steps_and_their_batch_size_come_together(one: dict[str, Any]) -> None:
    told = "a phase of steps={steps}, batch_size={batch_size}: give both, as batch_size turns steps"
    given = {"steps": None, "batch_size": None, **one}
    refused(f"{told.format(**given)} into rows", Phase, **one, weights=ONE)


@pytest.mark.parametrize("name", ["tokens", "rows", "steps", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "9", True])
def test_budgets_that_are_no_amounts_are_refused(name: str, value: Any) -> None:
    other: dict[str, Any] = {"steps": {"batch_size": 1}, "batch_size": {"steps": 1}}.get(name, {})
    kind = "a number above 0" if name == "tokens" else "a whole number of at least 1"
    message = f"a phase of {name}={value!r}: expected {kind}"
    refused(message, Phase, **{name: value}, **other, weights=ONE)
    if name != "tokens":
        refused(message.replace(repr(value), "2.5"), Phase, **{name: 2.5}, **other, weights=ONE)


def test_a_row_and_a_token_are_budgets() -> None:
    smallest = Phase(rows=1, weights=ONE), Phase(steps=1, batch_size=1, weights=ONE)
    assert [each.budget(4) for each in smallest] == [1, 1]
    assert Phase(tokens=0.01, weights=ONE).budget(4) == 1


@pytest.mark.parametrize(
    "weights", [{"web": -0.1}, {"web": 1, "code": math.inf}, {"web": math.nan}, {"web": "1"}]
)
def test_weights_that_are_no_amounts_are_refused(weights: dict[str, Any]) -> None:
    for check in (check_weights, lambda given: Phase(weights=given)):
        refused(f"weights {weights}: expected finite numbers, none below 0", check, weights)


@pytest.mark.parametrize("weights", [{}, {"web": 0}, {"web": 0, "code": 0.0}])
def test_weights_without_one_above_0_are_refused(weights: dict[str, Any]) -> None:
    refused(f"weights {weights}: at least one source must be above 0", check_weights, weights)
    check_weights({**weights, "sft": 1e-9})


@pytest.mark.parametrize("rule", ["", "sizes", "size**", "size**-1", "size**1.2.3", "web", "size"])
def test_unknown_rules_are_refused(rule: str) -> None:
    refused(f"weights {rule!r}: {RULE}", check_weights, rule)
    refused(f"weights {rule!r}: {RULE}", weights_from, rule, {"web": 3})


def test_powers_are_at_most_16() -> None:
    assert weights_from("size**16", {"web": 2}) == {"web": 65_536}
    steep = "weights 'size**16.5': expected a power of at most 16"
    refused(steep, check_weights, "size**16.5")


@pytest.mark.parametrize(
    ("rule", "exponent"),
    [
        ("proportional", 1),
        (" proportional ", 1),
        ("size**1", 1),
        ("size ** 0.5", 0.5),
        ("size**5e-1", 0.5),
        (" size**0 ", 0),
        ("size**0.3", 0.3),
        ("size**2", 2),
    ],
)
def test_rules_are_powers_of_the_sizes_to_twelve_digits(rule: str, exponent: float) -> None:
    sizes = {"web": 1_234_567, "code": 81, "one": 1, "none": 0}
    found = weights_from(rule, sizes)
    assert [*found] == [*sizes]
    for name, size in sizes.items():
        power = Decimal(size) ** Decimal(str(exponent)) if size else Decimal(0)
        digits = 40 if exponent == 1 else 12
        assert Decimal(str(found[name])) == Decimal(f"{power:.{digits}g}")
    check_weights(rule)


def test_given_weights_are_kept_whatever_the_sizes() -> None:
    given = {"web": 0.1, "code": 0}
    found = weights_from(given, {"web": 9})
    assert found == given
    assert found is not given


def test_numbers_are_exact_as_written() -> None:
    assert exact(1.1) == Fraction(11, 10)
    assert exact(3) == 3


def test_an_unknown_unit_of_weights_is_refused() -> None:
    message = "weigh_by='rows': expected 'tokens' or 'loss_tokens'"
    refused(message, check_weigh_by, "rows")
    refused(message, Recipe([Phase(weights=ONE)], {}, "halt", "rows").check, ["web"])
    for unit in ("tokens", "loss_tokens"):
        check_weigh_by(unit)


def test_a_curriculum_has_phases_and_only_the_last_lacks_a_budget() -> None:
    refused("a mixture needs at least one Phase(tokens=…, weights={…})", check_phases, [])
    open_ended, short = Phase(weights=ONE), Phase(rows=1, weights=ONE)
    others = Phase(tokens=0.5, weights=ONE), Phase(steps=1, batch_size=1, weights=ONE)
    for phases in ([open_ended], [short], [short, short, open_ended], [*others, open_ended]):
        check_phases(phases)
    for number in (0, 1):
        phases = [short, short, short]
        phases[number] = open_ended
        message = (
            f"phase {number} needs a budget: tokens, rows or steps; only the last may run until a "
            "source runs dry"
        )
        refused(message, check_phases, phases)
        refused(message, Recipe(phases, {}, "halt").check, ["web"])


def test_names_that_are_no_sources_are_refused_with_the_nearest() -> None:
    check_names(["web", "code"], {"code": 1}, "phase 0 weighs")
    told = "'wbe', not one of the sources 'web', 'code'; did you mean 'web'?"
    both = {"web": 1, "wbe": 2}
    refused(f"phase 3 weighs {told}", check_names, ["web", "code"], both, "phase 3 weighs")
    phases = [Phase(rows=1, weights="proportional"), Phase(weights=both)]
    refused(f"phase 1 weighs {told}", Recipe(phases, {}, "halt").check, ["web", "code"])
    refused(f"epochs names {told}", Recipe(phases[:1], both, "halt").check, ["web", "code"])


@pytest.mark.parametrize("times", [-1, -0.5, math.inf, math.nan, "2", None, True])
def test_epochs_that_are_no_numbers_are_refused(times: Any) -> None:
    message = f"epochs of 'web': {times!r}; expected a number of at least 0"
    refused(message, check_epochs, {"code": 1, "web": times})
    refused(message, Recipe([Phase(weights=ONE)], {"web": times}, "halt").check, ["web"])


def test_recipes_of_their_sources_are_accepted() -> None:
    recipe = Recipe([Phase(weights=ONE)], {"web": 0, "code": 1.1}, "halt", "loss_tokens")
    recipe.check(["web", "code"])
    epochs = [recipe.epochs_of(name) for name in ("web", "code", "wiki")]
    assert epochs == [0, Fraction(11, 10), 1]


def test_only_sources_that_are_weighed_need_tokens() -> None:
    phases = [Phase(rows=1, weights={"web": 1, "code": 0}), Phase(weights="proportional")]
    sizes = {"web": 3, "code": 0}
    weighed = Recipe(phases, {}, "halt").weighed(sizes)
    assert [phase.weights for phase in weighed] == [{"web": 1, "code": 0}, sizes]
    phases[0] = Phase(rows=1, weights={"web": 0, "code": 1})
    for unit, lacks in (("tokens", "rows to train on"), ("loss_tokens", "target with loss")):
        refused(
            f"source 'code' has no {lacks}, but a phase weighs it",
            Recipe(phases, {}, "halt", unit).weighed,
            sizes,
        )
