"""Recipes that change on the way, against taking rows one by one from what is left."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.mixing.amended_rows import AmendedRows, Amendment, amended
from jaxdata.rows.mixing.mixture import Mixture, mixture
from jaxdata.rows.mixing.phases import Phase
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import Segments, TokenCounts
from tests.rows.mixing.oracle import Plan, Supply, lay_out

Phases = list[tuple[int | None, dict[str, float]]]


def table_of(lengths: list[int], name: str, **settings: Any) -> PackedRows:
    documents = jaxdata.ArrayDocuments([[1] * n for n in lengths], name=name)
    return jaxdata.pack(documents, **{"seq_len": 6, **settings}).table


def phases_of(given: Phases) -> list[Phase]:
    return [Phase(rows=rows, weights=weights) for rows, weights in given]


class Change(NamedTuple):
    row: int
    phases: Phases | None
    epochs: dict[str, float] | None
    mode: str | None
    added: bool
    """whether it adds a source"""
    weights: dict[str, float] | None = None
    """for the rest of the phase under way"""

    def follows(self, rest: Phases) -> Phases:
        """The phases from its row on, where `rest` are left."""
        rest = rest if self.phases is None else self.phases
        return rest if self.weights is None else [(rest[0][0], self.weights), *rest[1:]]

    @property
    def begins_a_phase(self) -> bool:
        return self.phases is not None or self.weights is not None


class Case(NamedTuple):
    tables: dict[str, PackedRows]
    new: PackedRows
    phases: Phases
    mode: str
    changes: list[Change]

    def amendment(self, change: Change) -> Amendment:
        phases = None if change.phases is None else phases_of(change.phases)
        tables = {"new": self.new} if change.added else {}
        return Amendment(tables, phases, change.epochs, change.mode, change.weights)


class Expected(NamedTuple):
    plan: Plan
    phases: Phases
    """by number, those that an amendment shortened included"""
    names: list[str]


class Leg(NamedTuple):
    """The rows of one recipe."""

    start: int
    first_phase: int
    phases: Phases
    epochs: dict[str, float]
    mode: str
    tables: dict[str, PackedRows]

    def plan(self, before: Plan) -> Plan:
        supplies = []
        for number, (name, table) in enumerate(self.tables.items()):
            rows = math.ceil(Fraction(str(self.epochs.get(name, 1))) * len(table))
            density = Fraction(table.summary.trained_tokens, len(table))
            used = sum(source == number for _, source, _ in before.rows)
            supplies.append(Supply(name, rows, density, used))
        return lay_out(supplies, self.phases, self.mode, self.start, self.first_phase)


def cut(plan: Plan, row: int) -> Plan:
    """The plan without its rows from a row on."""
    intervals = [(s, min(n, row - s), p, w) for s, n, p, w in plan.intervals if s < row]
    return Plan(plan.rows[:row], intervals, [e for e in plan.exhaustions if e[2] < row])


def left_of(leg: Leg, row: int) -> tuple[int, Phases]:
    """The number and the phases of a leg from a row on."""
    begin = leg.start
    for number, (budget, weights) in enumerate(leg.phases):
        if budget is None or row < begin + budget:
            rest = None if budget is None else begin + budget - row
            return leg.first_phase + number, [(rest, weights), *leg.phases[number + 1 :]]
        begin += budget
    return leg.first_phase + len(leg.phases), []


def expected(case: Case) -> Expected:
    leg = Leg(0, 0, case.phases, {}, case.mode, case.tables)
    plan, phases = leg.plan(Plan()), [*case.phases]
    for change in case.changes:
        first, rest = left_of(leg, change.row)
        rest = change.follows(rest)
        if change.begins_a_phase:
            begun = [
                phase for start, _, phase, _ in plan.intervals if leg.start <= start < change.row
            ]
            first = begun[-1] + 1 if begun else leg.first_phase
        leg = Leg(
            change.row,
            first,
            rest,
            {**leg.epochs, **(change.epochs or {})},
            change.mode or leg.mode,
            {**leg.tables, **({"new": case.new} if change.added else {})},
        )
        plan = cut(plan, change.row)
        after = leg.plan(plan)
        plan = Plan(
            plan.rows + after.rows,
            plan.intervals + after.intervals,
            plan.exhaustions + after.exhaustions,
            after.halted,
        )
        phases[first:] = rest
    return Expected(plan, phases, [*leg.tables])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = st.lists(st.integers(2, 14), min_size=1, max_size=9)
    names = ["web", "code"][: draw(st.integers(1, 2))]
    tables = {name: table_of(draw(lengths), name) for name in names}
    new = table_of(draw(lengths), "new", lanes=draw(st.sampled_from([1, 2])), chunk_bytes=16)
    mode = draw(st.sampled_from(["halt", "renormalize"]))

    def weights(of: list[str]) -> dict[str, float]:
        given = st.dictionaries(st.sampled_from(of), st.sampled_from([1, 0.3, 4]), min_size=1)
        return draw(given)

    def phases(of: list[str]) -> Phases:
        found: Phases = [(draw(st.integers(1, 9)), weights(of)) for _ in range(draw(SOME))]
        return found if draw(st.booleans()) else [*found[:-1], (None, found[-1][1])]

    case = Case(tables, new, phases(names), mode, [])
    for _ in range(draw(SOME)):
        plan = expected(case).plan
        row = draw(st.integers(case.changes[-1].row if case.changes else 0, len(plan.rows)))
        if case.changes and row == case.changes[-1].row:
            break
        added = draw(st.booleans()) and not any(change.added for change in case.changes)
        names = [*names, *["new"] * added]
        epochs = draw(
            st.none() | st.dictionaries(st.sampled_from(names), st.sampled_from([2, 0.5]))
        )
        given = phases(names) if draw(st.booleans()) else None
        answer = draw(st.sampled_from([None, "halt", "renormalize"]))
        other = weights(names) if draw(st.booleans()) else None
        case.changes.append(Change(row, given, epochs, answer, added, other))
        if not left(case):
            case.changes[-1] = case.changes[-1]._replace(phases=phases(names))
    return case


SOME = st.integers(1, 3)


def left(case: Case) -> bool:
    """Whether every amendment has a phase to go on with."""
    *before, last = case.changes
    if last.phases is not None:
        return True
    leg = Leg(0, 0, case.phases, {}, case.mode, case.tables)
    for number, change in enumerate(before):
        first, rest = left_of(leg, change.row)
        rest = change.follows(rest)
        if change.begins_a_phase:
            first = expected_first(case, leg, number)
        leg = leg._replace(start=change.row, first_phase=first, phases=rest)
    return bool(left_of(leg, last.row)[1])


def expected_first(case: Case, leg: Leg, number: int) -> int:
    plan = expected(case._replace(changes=case.changes[:number])).plan
    row = case.changes[number].row
    begun = [phase for start, _, phase, _ in plan.intervals if leg.start <= start < row]
    return begun[-1] + 1 if begun else leg.first_phase


def made(case: Case, order: int = 1) -> Mixture:
    found: Mixture = mixture(case.tables, phases_of(case.phases), {}, case.mode)
    for change in case.changes[::order]:
        found = amended(found, change.row, case.amendment(change))
    return found


@examples(max_examples=40)
@given(cases())
def test_amended_rows_are_those_before_and_then_those_of_what_is_left(case: Case) -> None:
    rows, (plan, phases, names) = made(case), expected(case)
    tables = {**case.tables, "new": case.new}
    assert isinstance(rows, AmendedRows)
    assert len(rows) == len(plan.rows)
    assert rows.names == names
    listed = []
    for row, (_, source, rank) in enumerate(plan.rows):
        for _, _, *more in listed_of(tables[names[source]].segments(np.array([rank]))):
            listed.append((row, source, *more))
    found = rows.segments(np.arange(len(rows)))
    assert listed_of(rows.origins(found)) == listed
    documents = [rows.documents[number] for number in found.source.tolist()]
    assert documents == [tables[names[each[1]]].documents[0] for each in listed]
    back = rows.segments(np.arange(len(rows))[::-1])
    assert listed_of(rows.origins(back)) == sorted(
        [(len(rows) - 1 - row, *more) for row, *more in listed], key=lambda each: each[0]
    )
    assert [(i.start, i.rows, i.phase, i.shares) for i in rows.intervals] == plan.intervals
    assert [(e.source, e.phase, e.row) for e in rows.exhaustions] == plan.exhaustions
    halted = rows.halted
    assert (halted and (halted.source, halted.phase, halted.row)) == plan.halted
    assert rows.timeline.asked == [[budget, weights] for budget, weights in phases]
    for outside in ([-1], [len(rows)]):
        with pytest.raises(IndexError, match=f"out of range for a mixture of {len(rows)} rows$"):
            rows.segments(np.array(outside))


def listed_of(found: Segments) -> list[tuple[int, ...]]:
    return [*zip(*(each.tolist() for each in found.columns), strict=True)]


@examples(max_examples=30)
@given(cases())
def test_amended_rows_are_counted_one_by_one(case: Case) -> None:
    rows, (plan, _, names) = made(case), expected(case)
    tables = {**case.tables, "new": case.new}
    taken, totals = dict.fromkeys(names, 0), dict.fromkeys(names, TokenCounts())
    starts = [change.row for change in case.changes]
    for row, picked in enumerate([*plan.rows, None]):
        assert rows.counts(row) == taken
        assert rows.token_counts(row) == totals
        read = {name: Fraction(taken[name], len(tables[name])) for name in names}
        assert rows.epochs(row) == read
        if picked:
            name, rank = names[picked[1]], picked[2]
            taken[name] += 1
            totals[name] += tables[name].total(rank + 1) - tables[name].total(rank)
            [key] = rows.batch_key(np.array([row])).tolist()
            lanes = max(tables[n].lanes for n in (names if row >= starts[-1] else case.tables))
            expected_key = tables[name].batch_key(np.array([rank])).tolist()[0]
            assert key in ([expected_key] if lanes > 1 else [0, expected_key])
    found = rows.origins(rows.segments(np.arange(len(rows))))
    for number, name in enumerate(names):
        for document in range(len(tables[name].documents[0])):
            mine = (found.source == number) & (found.document == document)
            holding = sorted({*found.row[mine].tolist()})
            assert rows.rows_with(name, document) == holding
            some = len(rows) // 2
            assert rows.rows_with(name, document, some) == [r for r in holding if r < some]


@examples(max_examples=30)
@given(cases())
def test_amendments_are_told_with_what_they_change(case: Case) -> None:
    rows = made(case)
    assert rows.identity() == mixture(case.tables, phases_of(case.phases), {}, case.mode).identity()
    assert [each["row"] for each in rows.amendments] == [change.row for change in case.changes]
    leg_epochs: dict[str, float] = {}
    for told, change in zip(rows.amendments, case.changes, strict=True):
        leg_epochs |= change.epochs or {}
        assert ("phases" in told) == (change.phases is not None)
        assert told.get("on_exhaustion") == change.mode
        assert told.get("weights") == change.weights
        assert told.get("epochs") == (None if change.epochs is None else leg_epochs)
        assert ("sources" in told) == ("seq_len" in told) == change.added
    recipes = [each.rows.recipe for each in rows.revisions]  # type: ignore[attr-defined]
    starts = [0, *(change.row for change in case.changes)]
    for row in range(len(rows) + 1):
        number = max(n for n, start in enumerate(starts) if start <= row)
        assert rows.recipe_at(row) is recipes[number]


def web(rows: int = 12, **settings: Any) -> dict[str, PackedRows]:
    return {"web": table_of([7] * rows, "web", **settings)}


ONLY = {"web": 1.0}
NOTHING = Amendment({}, None, None, None)


def test_an_amendment_is_told_in_plain_words() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    new = table_of([5] * 3, "new", seq_len=4)
    other = amended(run, 8, Amendment({"new": new}, [Phase(rows=2, weights={"new": 1})], {}, None))
    [facts] = other.amendments
    sources = facts.pop("sources")
    assert facts == {"row": 8, "phases": [[2, {"new": 1}]], "epochs": {}, "seq_len": 4}
    assert isinstance(sources, str)
    assert len(sources) == 8, "a digest, as it is long"
    assert [(row, table.seq_len) for row, table in other.sections()] == [(0, 6), (8, 4)]
    assert [other.section_at(row).seq_len for row in (0, 7, 8, 9)] == [6, 6, 4, 4]
    assert (other.seq_len, other.positions, other.lanes) == (6, "segment", 1)


def test_sections_join_recipes_of_one_shape_and_leave_out_those_without_rows() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    same = amended(run, 3, NOTHING._replace(phases=[Phase(rows=2, weights=ONLY)]))
    assert [(row, table.seq_len) for row, table in same.sections()] == [(0, 6)]
    at_once = amended(run, 0, NOTHING._replace(tables=web(seq_len=3, positions="row")))
    assert (at_once.seq_len, at_once.positions) == (3, "row")
    [(row, table)] = at_once.sections()
    assert (row, table.seq_len, table.positions) == (0, 3, "row")
    wide = web(positions="row")
    later = amended(run, 4, NOTHING._replace(tables=wide))
    assert [(row, t.positions) for row, t in later.sections()] == [(0, "segment"), (4, "row")]
    back = amended(later, 6, NOTHING._replace(tables=web()))
    assert [row for row, _ in back.sections()] == [0, 4, 6], "each differs from that before it"
    none = mixture(web(), [Phase(rows=8, weights=ONLY)], {"web": 0}, "halt")
    still = amended(none, 0, NOTHING._replace(on_exhaustion="renormalize"))
    assert (len(still), still.sections()) == (0, [(0, still)])


def test_lanes_are_the_most_and_rows_without_them_keep_their_order() -> None:
    small = {"lanes": 4, "chunk_bytes": 16, "block_bytes": 64}
    run = mixture(web(30), [Phase(rows=20, weights=ONLY)], {}, "halt")
    other = amended(run, 6, NOTHING._replace(tables=web(30, seq_len=3, **small)))
    [before, after] = other.revisions
    assert (before.rows.lanes, after.rows.lanes, other.lanes) == (1, 4, 4)
    keys = other.batch_key(np.arange(12)).tolist()
    assert keys == [0] * 6 + after.rows.batch_key(np.arange(6, 12)).tolist()
    assert len({*keys[6:]}) > 1


def test_documents_of_a_source_must_stay_the_same() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    with pytest.raises(InputError) as caught:
        amended(run, 5, NOTHING._replace(tables=web(9)))
    assert str(caught.value) == (
        "source 'web' has other documents than before, so its untrained remainder is unknown; "
        "give the new documents another name"
    )


@pytest.mark.parametrize("row", [-1, 1_201, 2.0, "3"])
def test_rows_that_are_none_of_the_mixture_cannot_be_amended(row: Any) -> None:
    run = mixture(web(1_200), [Phase(rows=1_200, weights=ONLY)], {}, "halt")
    with pytest.raises(InputError) as caught:
        amended(run, row, NOTHING)
    expected = f"from row {row!r} on: expected 0 to 1,200"
    assert str(caught.value) == f"cannot amend a mixture of 1,200 rows {expected}"


def test_the_last_row_of_all_needs_phases_to_follow() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    for phases in (None, []):
        with pytest.raises(InputError) as caught:
            amended(run, 8, NOTHING._replace(phases=phases))
        assert str(caught.value) == "no phase is left at row 8; pass the phases to follow"
    more = [Phase(rows=3, weights=ONLY)]
    assert len(amended(run, 8, NOTHING._replace(phases=more))) == 11


def test_changes_at_one_row_are_joined_and_the_later_wins() -> None:
    table = web()["web"]
    first = Amendment({"a": table}, [Phase(weights=ONLY)], {"web": 2, "a": 1}, "halt")
    assert NOTHING.joined(first) == first.joined(NOTHING) == first
    assert NOTHING.joined(NOTHING) == NOTHING
    later = Amendment({"b": table}, [Phase(rows=1, weights=ONLY)], {"web": 3}, "renormalize")
    both = Amendment({"a": table, "b": table}, later.phases, {"web": 3, "a": 1}, "renormalize")
    assert first.joined(later) == both
    asked, again = NOTHING._replace(weights=ONLY, asked_at=3), NOTHING._replace(weights={"web": 2})
    for one, other in ((first, asked), (asked, first)):
        assert one.joined(other) == first._replace(weights=ONLY, asked_at=3)
    assert asked.joined(again) == again, "nobody asked for these while it ran"


@examples(max_examples=30)
@given(cases())
def test_amendments_may_be_made_in_any_order(case: Case) -> None:
    if any(change.phases is None for change in case.changes):
        return
    try:
        other = made(case, order=-1)
    except InputError:
        return
    one = made(case)
    assert other.amendments == one.amendments
    assert listed_of(other.segments(np.arange(len(other)))) == listed_of(
        one.segments(np.arange(len(one)))
    )


def test_several_later_amendments_are_made_again_after_an_earlier_one() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    for row in (6, 4, 2):
        run = amended(run, row, NOTHING._replace(on_exhaustion="renormalize"))
    assert [each["row"] for each in run.amendments] == [2, 4, 6]


def test_a_later_amendment_that_no_longer_fits_says_so() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")
    later = amended(run, 6, NOTHING._replace(on_exhaustion="renormalize"))
    with pytest.raises(InputError) as caught:
        amended(later, 2, NOTHING._replace(phases=[Phase(rows=1, weights=ONLY)]))
    assert str(caught.value) == (
        "the amendment at row 6 no longer fits: cannot amend a mixture of 3 rows from row 6 on: "
        "expected 0 to 3. To leave it out, amend the mixture as it was before it"
    )
    again = amended(later, 6, NOTHING._replace(phases=[Phase(rows=4, weights=ONLY)]))
    assert [each["row"] for each in again.amendments] == [6]
    assert (len(again), again.recipe.on_exhaustion) == (10, "renormalize")


def test_a_strict_run_refuses_an_amendment_that_asks_for_too_much() -> None:
    run = mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "refuse")
    with pytest.raises(
        SourceExhausted, match="phase 1, source 'web': demanded 9 rows, available 7"
    ):
        amended(run, 5, NOTHING._replace(phases=[Phase(rows=9, weights=ONLY)]))
    assert len(amended(run, 5, NOTHING._replace(phases=[Phase(rows=7, weights=ONLY)]))) == 12


def test_rows_before_another_packing_stay_counted() -> None:
    run = mixture(web(30), [Phase(rows=20, weights=ONLY)], {}, "halt")
    other = amended(run, 6, NOTHING._replace(tables=web(30, seq_len=3)))
    other = amended(other, 9, NOTHING._replace(weights={"web": 2}))
    for rows in (0, 5, 6, 7, 10, len(other)):
        counts = other.token_counts(rows)["web"]
        assert (counts.rows, counts.slots) == (rows, 6 * min(rows, 6) + 3 * max(rows - 6, 0))
