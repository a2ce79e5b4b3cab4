"""Phases laid out in intervals, against taking row after row until a source has none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.mixing.phases import Phase
from jaxdata.rows.mixing.timeline import SourceBudget, Timeline, make_timeline
from jaxdata.rows.table import Interval
from tests.rows.mixing.oracle import Plan, Supply, lay_out, shortfalls

MODES = ["refuse", "halt", "renormalize"]


class Case(NamedTuple):
    supplies: list[Supply]
    phases: list[tuple[int | None, dict[str, float]]]
    start: int
    first_phase: int

    def made(self, mode: str) -> Timeline:
        budgets = [SourceBudget(*each) for each in self.supplies]
        phases = [Phase(rows=rows, weights=weights) for rows, weights in self.phases]
        named: dict[str, Any] = {"start": self.start, "first_phase": self.first_phase}
        return make_timeline(budgets, phases, seq_len=4, on_exhaustion=mode, **named)

    def expected(self, mode: str) -> Plan:
        return lay_out(self.supplies, self.phases, mode, self.start, self.first_phase)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = ["web", "code", "wiki", "sft"][: draw(st.integers(1, 4))]
    density = st.fractions(Fraction(1, 3), 4, max_denominator=6)
    used = st.sampled_from([0, 0, 3, 9])
    amount = st.integers(0, 15) | st.integers(5, 60)
    supplies = [Supply(name, draw(amount), draw(density), draw(used)) for name in names]
    weight = st.sampled_from([0, 1, 2, 0.1, 0.25, 7])
    weights = st.dictionaries(st.sampled_from(names), weight, min_size=1)
    weights = weights.filter(lambda given: any(given.values()))
    phases = draw(st.lists(st.tuples(st.integers(1, 40), weights), min_size=1, max_size=4))
    if draw(st.booleans()):
        phases[-1] = (None, phases[-1][1])
    return Case(supplies, phases, draw(st.sampled_from([0, 0, 11])), draw(st.integers(0, 2)))


@examples(max_examples=50)
@given(cases(), st.sampled_from(MODES))
def test_intervals_and_exhaustions_are_those_of_taking_rows_one_by_one(
    case: Case, mode: str
) -> None:
    if mode == "refuse" and shortfalls(case.supplies, case.phases):
        return
    made, plan = case.made(mode), case.expected(mode)
    intervals = [(each.start, each.rows, each.phase, each.shares) for each in made.intervals]
    assert intervals == plan.intervals
    assert [(each.source, each.phase, each.row) for each in made.exhaustions] == plan.exhaustions
    halted = made.halted and (made.halted.source, made.halted.phase, made.halted.row)
    assert halted == plan.halted
    assert (made.start, made.first_phase) == (case.start, case.first_phase)
    assert [*made.used_before] == [each.used for each in case.supplies]
    assert [*made.budgets] == [rows for rows, _ in case.phases]
    assert made.asked == [[rows, weights] for rows, weights in case.phases]
    used = [each.used for each in case.supplies]
    for row, (_, source, rank) in enumerate(plan.rows, case.start):
        assert [*made.used(row)] == used
        assert rank == used[source]
        used[source] += 1
    for later in (0, 1, 100):
        assert [*made.used(case.start + len(plan.rows) + later)] == used
    assert [*made.used(0)] == [each.used for each in case.supplies]
    for each in made.intervals:
        assert repr(each) == repr(Interval(each.start, each.rows, each.phase, each.shares))


@examples(max_examples=50)
@given(cases())
def test_a_strict_mixture_is_refused_with_every_shortfall(case: Case) -> None:
    lines = shortfalls(case.supplies, case.phases, case.first_phase)
    if not lines:
        case.made("refuse")
        return
    with pytest.raises(SourceExhausted) as caught:
        case.made("refuse")
    first, *told, last = str(caught.value).split("\n")
    assert told == lines
    assert first == "the mixture needs more rows than its sources have:"
    assert last == (
        "reduce the budget or weight, allow more epochs (epochs={name: 2}), or set "
        "on_exhaustion='renormalize' (the others share the rest) or 'halt'"
    )


def test_thousands_of_missing_rows_are_told_with_commas() -> None:
    case = Case([Supply("web", 1_500, Fraction(1))], [(4_000, {"web": 1})], 0, 0)
    with pytest.raises(SourceExhausted, match="demanded 4,000 rows, available 1,500, short by 2,5"):
        case.made("refuse")


def test_an_unknown_answer_to_exhaustion_is_refused() -> None:
    case = Case([Supply("web", 9, Fraction(1))], [(4, {"web": 1})], 0, 0)
    with pytest.raises(InputError) as caught:
        case.made("stop")
    expected = "on_exhaustion='stop': expected 'refuse', 'halt' or 'renormalize'"
    assert str(caught.value) == expected


def test_budgets_in_tokens_are_of_rows_of_so_many_slots() -> None:
    supply = SourceBudget("web", 99, Fraction(1))
    phases = [Phase(tokens=9, weights={"web": 1}), Phase(steps=2, batch_size=3, weights={"web": 2})]
    made = make_timeline([supply], phases, seq_len=4, on_exhaustion="refuse")
    assert [each.rows for each in made.intervals] == [3, 6]
    assert made.asked == [[3, {"web": 1}], [6, {"web": 2}]]
    assert (made.start, made.first_phase, [*made.used_before]) == (0, 0, [0])


def test_plain_timelines_begin_at_row_0_with_nothing_used() -> None:
    made = Timeline([], [], [], [], None)
    assert (made.start, made.first_phase, made.used_before, made.used(5)) == (0, 0, (), ())
