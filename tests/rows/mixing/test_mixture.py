"""Mixtures of small packed sources, amended or not, against taking their rows one after another."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings as examples, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.mixing.amended_rows import amended
from jaxdata.rows.mixing.mixture import Mixture, asked_shares, mixture, planned_intervals
from jaxdata.rows.mixing.phases import Amendment, Phase, Recipe
from jaxdata.rows.mixing.remaining import SourceCursor
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import JoinedRows, TokenCounts
from jaxdata.testing import distinct_documents
from tests.rows.mixing.oracle import Plan, Supply, lay_out, shortfalls
from tests.rows.mixing.test_remainders import one_by_one
from tests.rows.packing.test_evaluation import listed, table_of

Phases = list[Phase]
SOME, FEW = st.integers(1, 3), st.integers(1, 9)


class Leg(NamedTuple):
    """The rows of one recipe; those of each source follow `test_remainders.py`."""

    start: int
    first_phase: int
    phases: Phases
    epochs: dict[str, float]
    mode: str
    cursors: dict[str, tuple[SourceCursor, int]]
    """of each source, and the row of the mixture from which on it is read so"""

    def used(self, name: str, rows: list[tuple[int, int, int]]) -> int:
        since, number = self.cursors[name][1], [*self.cursors].index(name)
        return sum(source == number for _, source, _ in rows[since:])

    def supplies(self, before: Plan) -> list[Supply]:
        recipe = Recipe([], self.epochs, self.mode)
        found = []
        for name, (cursor, _) in self.cursors.items():
            budget = cursor.budget(name, recipe, self.used(name, before.rows))
            found.append(Supply(name, budget.available, budget.tokens_per_row, budget.used))
        return found

    def left(self, row: int) -> tuple[int, Phases]:
        """The number and the phases from a row on."""
        begin = self.start
        for number, phase in enumerate(self.phases):
            if phase.rows is not None and row >= begin + phase.rows:
                begin += phase.rows
                continue
            left = phase if phase.rows is None else replace(phase, rows=begin + phase.rows - row)
            return self.first_phase + number, [left, *self.phases[number + 1 :]]
        return self.first_phase + len(self.phases), []

    def amended(self, plan: Plan, row: int, change: Amendment) -> "Leg":
        first, rest = self.left(row)
        rest = rest if change.phases is None else [*change.phases]
        if change.weights is not None:
            rest = [replace(rest[0], weights=change.weights), *rest[1:]]
        if change.phases is not None or change.weights is not None:
            begun = [p for start, _, p, _ in plan.intervals if self.start <= start < row]
            first = begun[-1] + 1 if begun else self.first_phase
        cursors = dict(self.cursors)
        for name, table in change.tables.items():
            if name not in cursors:
                cursors[name] = SourceCursor(table), row
            elif (before := cursors[name][0]).whole.settings != table.settings:
                cursors[name] = before.repacked(self.used(name, plan.rows[:row]), table), row
        epochs = {**self.epochs, **(change.epochs or {})}
        return Leg(row, first, rest, epochs, change.on_exhaustion or self.mode, cursors)


class Case(NamedTuple):
    first: Leg
    changes: list[tuple[int, Amendment]]
    """from which row on, and which"""

    def made(self, order: int = 1) -> Mixture:
        first = self.first
        tables = {name: cursor.whole for name, (cursor, _) in first.cursors.items()}
        found = mixture(tables, first.phases, first.epochs, first.mode)
        for row, change in self.changes[::order]:
            found = amended(found, row, change)
        return found

    def expected(self) -> tuple[Plan, Phases, list[Leg]]:
        """Every row; the phases by number, also those that were cut; and the recipes."""
        plan, phases, legs = Plan(), list[Phase](), list[Leg]()
        for change in [None, *self.changes]:
            leg = legs[-1].amended(plan, *change) if change else self.first
            row = leg.start
            intervals = [(s, min(n, row - s), p, w) for s, n, p, w in plan.intervals if s < row]
            met = [each for each in plan.exhaustions if each[2] < row]
            before = Plan(plan.rows[:row], intervals, met)
            after = lay_out(leg.supplies(before), leg.phases, leg.mode, row, leg.first_phase)
            rows, intervals = plan.rows[:row] + after.rows, intervals + after.intervals
            plan = Plan(rows, intervals, met + after.exhaustions, after.halted)
            phases[leg.first_phase :] = leg.phases
            legs.append(leg)
        return plan, phases, legs


def leg_at(legs: list[Leg], row: int) -> Leg:
    return [leg for leg in legs if leg.start <= row][-1]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = st.lists(st.integers(3, 14), min_size=1, max_size=7)
    names, tables, again = ["web", "code"][: draw(st.integers(1, 2))], {}, {}
    for name in [*names, "new"]:
        more: dict[str, Any] = {"lanes": draw(st.sampled_from([1, 1, 2])), "chunk_bytes": 16}
        more |= {"block_bytes": 64, "reshuffle": draw(st.sampled_from(["rows", "documents"]))}
        one, other = draw(st.permutations(["best_fit", "pad", "concat"]))[:2]
        tables[name] = table_of(draw(lengths), name, strategy=one, **more)
        [docs] = tables[name].documents
        again[name] = jaxdata.pack(docs, seq_len=6, strategy=other, **more).table
    new, mode = tables.pop("new"), draw(st.sampled_from(["refuse", "halt", "renormalize"]))

    def weights(of: list[str]) -> dict[str, float]:
        found = st.dictionaries(st.sampled_from(of), st.sampled_from([0, 1, 0.3, 4]), min_size=1)
        return draw(found.filter(lambda each: any(each.values())))

    def phases(of: list[str]) -> Phases:
        found = [Phase(rows=draw(FEW), weights=weights(of)) for _ in range(draw(SOME))]
        return found if draw(st.booleans()) else [*found[:-1], replace(found[-1], rows=None)]

    def epochs(of: list[str]) -> dict[str, float]:
        return draw(st.dictionaries(st.sampled_from(of), st.sampled_from([0, 0.5, 2, 2.25])))

    cursors = {name: (SourceCursor(table), 0) for name, table in tables.items()}
    first = Leg(0, 0, phases(names), epochs(names), mode, cursors)
    if mode == "refuse" and shortfalls(first.supplies(Plan()), first.phases):
        first = first._replace(mode="halt")
    case = Case(first, [])
    for _ in range(draw(st.integers(0, 3))):
        plan, _, legs = case.expected()
        start = legs[-1].start
        row = draw(st.integers(start + bool(case.changes), max(len(plan.rows), start + 1)))
        if row > len(plan.rows):
            break
        changed = {}
        if draw(st.booleans()):
            changed[name] = again[name] if (name := draw(st.sampled_from(names))) != "new" else new
        if "new" not in names and draw(st.booleans()):
            changed["new"], names = new, [*names, "new"]
        given = phases(names) if draw(st.booleans()) or not legs[-1].left(row)[1] else None
        answer = draw(st.sampled_from([None, "halt", "renormalize"]))
        answer = "halt" if legs[-1].mode == "refuse" else answer
        other = weights(names) if draw(st.booleans()) else None
        more_epochs = draw(st.none() | st.just(epochs(names)))
        case.changes.append((row, Amendment(changed, given, more_epochs, answer, other)))
    return case


@examples(max_examples=60)
@given(cases())
def test_rows_are_those_of_their_sources_one_after_another(case: Case) -> None:
    rows, (plan, phases, legs) = case.made(), case.expected()
    names = [*legs[-1].cursors]
    assert (len(rows), rows.names) == (len(plan.rows), names)
    assert {**rows.sources} == {n: each.whole for n, (each, _) in legs[-1].cursors.items()}

    def one(row: int) -> tuple[PackedRows, Any]:
        _, source, rank = plan.rows[row]
        table, number = one_by_one(leg_at(legs, row).cursors[names[source]][0], rank)
        return table, np.array([number])

    every = np.arange(len(rows))
    for chosen in (every, every[::-2]):
        picked = [plan.rows[row] for row in chosen]
        assert [*zip(*(each.tolist() for each in rows.select(chosen)), strict=True)] == picked
        assert listed(rows.origins(rows.segments(chosen))) == [
            (at, plan.rows[row][1], *more)
            for at, row in enumerate(chosen)
            for table, number in [one(row)]
            for _, _, *more in listed(table.origins(table.segments(number)))
        ]
        work = [table.row_work(number, 3).tolist()[0] for table, number in map(one, chosen)]
        assert rows.row_work(chosen, 3).tolist() == work
    assert [(i.start, i.rows, i.phase, i.shares) for i in rows.intervals] == plan.intervals
    assert [(e.source, e.phase, e.row) for e in rows.exhaustions] == plan.exhaustions
    halted = rows.timeline.halted
    assert (halted and (halted.source, halted.phase, halted.row)) == plan.halted
    assert (rows.end() is None) == (halted is None)
    assert rows.timeline.asked == [[phase.rows, phase.weights] for phase in phases]
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"out of range for a mixture of {len(rows)} rows$"):
            rows.segments(np.array([outside]))
    found, half = rows.origins(rows.segments(every)), len(rows) // 2
    for number, name in enumerate(names):
        for document in range(len(rows.sources[name].documents[0])):
            mine = (found.source == number) & (found.document == document)
            holding = sorted({*found.row[mine].tolist()})
            assert rows.rows_with(name, document) == holding
            assert rows.rows_with(name, document, half) == [r for r in holding if r < half]
    assert rows.rows_with("absent", 0) == []


@examples(max_examples=40)
@given(cases())
def test_every_prefix_is_counted_row_by_row(case: Case) -> None:
    rows, (plan, _, legs) = case.made(), case.expected()
    names = [*legs[-1].cursors]
    most = [
        max(table.lanes for cursor, _ in leg.cursors.values() for table in cursor.tables)
        for leg in legs
    ]
    taken, totals = dict.fromkeys(names, 0), dict.fromkeys(names, TokenCounts())
    for row, picked in enumerate([*plan.rows, None]):
        assert (rows.counts(row), rows.token_counts(row)) == (taken, totals)
        before = leg_at(legs, max(row - 1, 0))
        cursors = before.cursors.items()
        read = {n: each.epochs(before.used(n, plan.rows[:row])) for n, (each, _) in cursors}
        assert rows.epochs(row) == {n: read.get(n, 0) for n in names}
        if picked:
            name, rank, leg = names[picked[1]], picked[2], leg_at(legs, row)
            cursor, _ = leg.cursors[name]
            taken[name] += 1
            totals[name] += cursor.total(rank + 1) - cursor.total(rank)
            table, number = one_by_one(cursor, rank)
            [key] = table.batch_key(np.array([number])).tolist()
            sorts = most[legs.index(leg)] > 1 or not case.changes
            assert rows.batch_key(np.array([row])).tolist() == [key if sorts else 0]
    assert (rows.counts(len(rows) + 5), rows.lanes) == (taken, max(most))


@examples(max_examples=30)
@given(cases())
def test_amendments_are_told_with_what_they_change_in_any_order(case: Case) -> None:
    rows = case.made()
    assert rows.identity() == case._replace(changes=[]).made().identity()
    assert [each["row"] for each in rows.amendments] == [row for row, _ in case.changes]
    epochs = dict(case.first.epochs)
    for told, (_, change) in zip(rows.amendments, case.changes, strict=True):
        epochs |= change.epochs or {}
        assert ("phases" in told) == (change.phases is not None)
        assert told.get("on_exhaustion") == change.on_exhaustion
        assert told.get("weights") == change.weights
        assert told.get("epochs") == (None if change.epochs is None else epochs)
        assert ("sources" in told) == ("seq_len" in told) == bool(change.tables)
    if all(change.phases is not None for _, change in case.changes):
        try:
            other = case.made(order=-1)
        except InputError:
            return
        assert other.amendments == rows.amendments
        every = np.arange(len(rows))
        assert listed(other.segments(every)) == listed(rows.segments(every))


@examples(max_examples=30)
@given(cases())
def test_the_preview_tells_each_interval_to_the_token(case: Case) -> None:
    made, (plan, _, legs) = case.made(), case.expected()
    names = [*legs[-1].cursors]
    for end in (len(made), 0, len(made) // 3):
        intervals = [each for each in plan.intervals if each[0] < end]
        planned, asked = planned_intervals(made, end), dict.fromkeys(names, 0.0)
        for told, (start, _, phase, shares) in zip(planned, intervals, strict=True):
            stop = min([end, *(first for first, *_ in intervals if first > start)])
            assert (told.phase, told.start, told.rows) == (phase, start, stop - start)
            assert told.shares == shares
            before, after = made.token_counts(start), made.token_counts(stop)
            assert told.token_counts == {name: after[name] - before[name] for name in before}
            trained = sum(each.trained_tokens for each in told.token_counts.values())
            for name, share in shares.items():
                asked[name] += trained * share
        whole = sum(asked.values()) or 1
        expected = {name: each / whole for name, each in asked.items()} if planned else {}
        assert asked_shares(planned) == pytest.approx(expected)


def web(rows: int = 12, **settings: Any) -> dict[str, PackedRows]:
    return {"web": table_of([7] * rows, "web", **settings)}


ONLY = {"web": 1.0}
NOTHING, SHORT = Amendment({}), Amendment({}, [Phase(rows=3, weights=ONLY)])


def run_of() -> Mixture:
    return mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")


def test_sections_join_recipes_of_one_shape_and_leave_out_those_without_rows() -> None:
    run = run_of()
    assert [(row, table.seq_len) for row, table in amended(run, 3, SHORT).sections()] == [(0, 6)]
    at_once = amended(run, 0, NOTHING._replace(tables=web(seq_len=3, positions="row")))
    assert [(row, t.seq_len, t.positions) for row, t in at_once.sections()] == [(0, 3, "row")]
    assert (at_once.seq_len, at_once.positions) == (3, "row")
    later = amended(run, 4, NOTHING._replace(tables=web(positions="row")))
    back = amended(later, 6, NOTHING._replace(tables=web()))
    sections = [(row, t.positions) for row, t in back.sections()]
    assert sections == [(0, "segment"), (4, "row"), (6, "segment")]
    assert [back.section_at(row).positions[0] for row in range(8)] == [*"ssssrrss"]
    none = mixture(web(), [Phase(rows=8, weights=ONLY)], {"web": 0}, "halt")
    still = amended(none, 0, NOTHING._replace(on_exhaustion="renormalize"))
    assert (len(still), still.sections()) == (0, [(0, still)])


def test_the_turns_of_sources_with_lanes_are_found_at_once() -> None:
    """Also where an amendment begins with an epoch, whose rows have other numbers."""
    lanes = {"chunk_bytes": 64, "block_bytes": 128, "lanes": 2}
    run = mixture(web(40, **lanes), [Phase(weights=ONLY)], {"web": 3}, "halt")
    epoch = len(run) // 3
    more = NOTHING._replace(tables=web(40, **lanes | {"lanes": 4}))
    for made in (run, amended(run, epoch, more)):
        every = np.arange(len(made))
        assert made.lanes > 1
        assert made._cycles is not None
        assert made.turns(every).tolist() == JoinedRows.turns(made, every).tolist()


def test_phases_weights_or_nothing_are_asked() -> None:
    def packed(name: str, rows: int, first: int = 1) -> Any:
        documents = distinct_documents([9] * rows, first)
        return jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=8)

    rows = {"web": packed("web", 90), "code": packed("code", 10, 10_000)}

    def counts(**recipe: Any) -> dict[str, int]:
        return jaxdata.mix(rows, **recipe).counts()

    root = [Phase(rows=40, weights="size**0.5")]
    assert counts(phases=root, epochs={"code": 2}) == {"web": 30, "code": 10}
    assert counts(phases=[Phase(rows=20, weights="proportional")]) == {"web": 18, "code": 2}
    until_dry = jaxdata.mix(rows, weights={"web": 1, "code": 1})
    assert until_dry.counts() == {"web": 10, "code": 10}
    assert until_dry.table.end() is None, "it was asked for no more"
    to_the_end = counts(weights="proportional", on_exhaustion="renormalize")
    assert to_the_end == counts() == {"web": 90, "code": 10}
    assert counts(epochs={"web": 2}) == {"web": 180, "code": 10}
    last = [Phase(rows=4, weights={"web": 1}), Phase(weights={"code": 1})]
    with pytest.raises(InputError, match=r"mix takes phases=\[…\] or weights=\{…\}, not both"):
        counts(phases=last, weights="proportional")
    for given_rows in ({"a": rows["web"].map(dict)}, {"a": rows["web"].repeat(2)}):
        with pytest.raises(InputError, match=r"transform rows after mixing: mix\(\.\.\.\)\.map"):
            jaxdata.mix(given_rows, phases=last)
    with pytest.raises(InputError, match=r"mix: given a list, expected names and packed sources"):
        jaxdata.mix([rows["web"]], phases=last)  # type: ignore[arg-type]


def of_two(mode: str, phases: list[Phase] | None = None, **more: PackedRows) -> Mixture:
    tables = web(5) | ({"code": table_of([7] * 2, "code")} | more)
    return mixture(tables, phases or [Phase(rows=9, weights=dict.fromkeys(tables, 1))], {}, mode)


def test_the_end_of_a_halted_mixture_says_how_to_go_on() -> None:
    assert str(of_two("halt").end()) == (
        "source 'code' runs dry in phase 0 at row 4; the run halts there. To continue, set "
        "on_exhaustion='renormalize' or allow more epochs of 'code'"
    )
    assert str(of_two("renormalize").end()) == (
        "source 'web' runs dry in phase 0 at row 7; it was the last one, so the run halts there. "
        "To continue, allow more epochs or add sources"
    )


REFUSED: list[tuple[Any, str]] = [
    (
        lambda: of_two("halt", code=table_of([7], "code", seq_len=4)),
        "sources of a mixture must share one seq_len, these have {'web': 6, 'code': 4}",
    ),
    (
        lambda: of_two("halt", a=table_of([1, 1], "a")),
        "source 'a' has no rows to train on, but a phase weighs it",
    ),
    (
        lambda: amended(run_of(), 5, NOTHING._replace(tables=web(9))),
        "source 'web' has other documents than before, so its untrained remainder is unknown; "
        "give the new documents another name",
    ),
    (
        lambda: amended(run_of(), 9, NOTHING),
        "cannot amend a mixture of 8 rows from row 9 on: expected 0 to 8",
    ),
    (lambda: amended(run_of(), 8, NOTHING), "no phase is left at row 8; pass the phases to follow"),
    (
        lambda: amended(amended(run_of(), 6, SHORT), 2, SHORT),
        "the amendment at row 6 no longer fits: cannot amend a mixture of 5 rows from row 6 on: "
        "expected 0 to 5. To leave it out, amend the mixture as it was before it",
    ),
    (
        lambda: amended(run_of(), 2, Amendment({}, weights={"wbe": 1})),
        "the weights name 'wbe', not one of the sources 'web'; did you mean 'web'?",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_mixed_or_amended_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message
