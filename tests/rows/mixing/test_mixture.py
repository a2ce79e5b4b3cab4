"""Mixtures of small packed sources, amended or not, against taking their rows one after another."""

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
from jaxdata.base.errors import InputError
from jaxdata.rows.mixing.amended_rows import amended
from jaxdata.rows.mixing.mixture import (
    Mixture,
    asked_shares,
    mixture,
    planned_intervals,
    weighed_tokens,
)
from jaxdata.rows.mixing.phases import Amendment, Phase
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import Segments, TokenCounts
from tests.rows.mixing.oracle import Plan, Supply, lay_out, shortfalls

Weights = dict[str, float]
Phases = list[tuple[int | None, Weights]]
SOME = st.integers(1, 3)
SMALL = {"chunk_bytes": 16, "block_bytes": 64}


def table_of(lengths: list[int], name: str, masked: bool = False, **settings: Any) -> PackedRows:
    masks = [[at % 3 == 1 for at in range(n)] for n in lengths] if masked else None
    documents = jaxdata.ArrayDocuments([[1] * n for n in lengths], masks, name=name)
    return jaxdata.pack(documents, **{"seq_len": 6, **settings}).table


def phases_of(given: Phases) -> list[Phase]:
    return [Phase(rows=rows, weights=weights) for rows, weights in given]


def size_of(table: PackedRows, weigh_by: str) -> int:
    """The tokens that weights count, target by target."""
    source, found = table.documents[0], table.segments(np.arange(len(table)))
    columns = (found.document, found.start, found.slots, found.context)
    targets = [
        (document, token)
        for document, start, slots, context in zip(*map(list, columns), strict=True)
        for token in range(start + context + 1, start + slots + 1)
        if token < source.lengths[document]
    ]
    if weigh_by == "tokens" or not source.masked:
        return len(targets)
    return sum(bool(source[number]["loss_mask"][token]) for number, token in targets)


class Change(NamedTuple):
    """An amendment; None for what stays."""

    row: int
    phases: Phases | None = None
    epochs: dict[str, float] | None = None
    mode: str | None = None
    added: bool = False
    """whether it adds a source"""
    weights: Weights | None = None
    """for the rest of the phase under way"""


class Leg(NamedTuple):
    """The rows of one recipe."""

    start: int
    first_phase: int
    phases: Phases
    epochs: dict[str, float]
    mode: str
    tables: dict[str, PackedRows]

    def supplies(self, weigh_by: str, before: Plan) -> list[Supply]:
        found = []
        for number, (name, table) in enumerate(self.tables.items()):
            epochs = Fraction(str(self.epochs.get(name, 1)))
            starts = [table.first_row(epoch) for epoch in range(4)]
            part = epochs % 1 * (starts[int(epochs) + 1] - starts[int(epochs)])
            rows = starts[int(epochs)] + math.ceil(part)
            density = Fraction(size_of(table, weigh_by), max(len(table), 1)) or Fraction(1)
            used = sum(source == number for _, source, _ in before.rows)
            found.append(Supply(name, rows, density, used))
        return found

    def left(self, row: int) -> tuple[int, Phases]:
        """The number and the phases from a row on."""
        begin = self.start
        for number, (budget, weights) in enumerate(self.phases):
            if budget is None or row < begin + budget:
                rest = None if budget is None else begin + budget - row
                return self.first_phase + number, [(rest, weights), *self.phases[number + 1 :]]
            begin += budget
        return self.first_phase + len(self.phases), []

    def amended(self, plan: Plan, change: Change, new: PackedRows) -> Leg:
        first, rest = self.left(change.row)
        rest = rest if change.phases is None else change.phases
        if change.weights is not None:
            rest = [(rest[0][0], change.weights), *rest[1:]]
        if change.phases is not None or change.weights is not None:
            begun = [p for start, _, p, _ in plan.intervals if self.start <= start < change.row]
            first = begun[-1] + 1 if begun else self.first_phase
        return Leg(
            change.row,
            first,
            rest,
            {**self.epochs, **(change.epochs or {})},
            change.mode or self.mode,
            {**self.tables, **({"new": new} if change.added else {})},
        )


class Case(NamedTuple):
    first: Leg
    new: PackedRows
    weigh_by: str
    changes: list[Change]

    def amendment(self, change: Change) -> Amendment:
        phases = None if change.phases is None else phases_of(change.phases)
        tables = {"new": self.new} if change.added else {}
        return Amendment(tables, phases, change.epochs, change.mode, change.weights)

    def made(self, order: int = 1) -> Mixture:
        first = self.first
        phases = phases_of(first.phases)
        found = mixture(first.tables, phases, first.epochs, first.mode, self.weigh_by)
        for change in self.changes[::order]:
            found = amended(found, change.row, self.amendment(change))
        return found

    def expected(self) -> tuple[Plan, Phases, Leg]:
        """Every row; the phases by number, also those that were cut; and the last recipe."""
        plan, phases, leg = Plan(), list[tuple[int | None, Weights]](), self.first
        for change in [None, *self.changes]:
            if change:
                leg = leg.amended(plan, change, self.new)
            row = leg.start
            intervals = [(s, min(n, row - s), p, w) for s, n, p, w in plan.intervals if s < row]
            met = [each for each in plan.exhaustions if each[2] < row]
            before = Plan(plan.rows[:row], intervals, met)
            supplies = leg.supplies(self.weigh_by, before)
            after = lay_out(supplies, leg.phases, leg.mode, row, leg.first_phase)
            plan = Plan(
                before.rows + after.rows,
                before.intervals + after.intervals,
                before.exhaustions + after.exhaustions,
                after.halted,
            )
            phases[leg.first_phase :] = leg.phases
        return plan, phases, leg

    @property
    def tables(self) -> dict[str, PackedRows]:
        return {**self.first.tables, "new": self.new}


@st.composite
def cases(draw: st.DrawFn, most: int = 2) -> Case:
    lengths = st.lists(st.integers(3, 14), min_size=1, max_size=7)
    names, tables = ["web", "code"][: draw(st.integers(1, 2))], {}
    masked = draw(st.booleans())
    for name in [*names, "new"]:
        more: dict[str, Any] = {"lanes": draw(st.sampled_from([1, 1, 2])), **SMALL}
        more["strategy"] = draw(st.sampled_from(["best_fit", "pad", "concat"]))
        more["reshuffle"] = draw(st.sampled_from(["rows", "documents"]))
        tables[name] = table_of(draw(lengths), name, masked and name != "code", **more)
    new, mode = tables.pop("new"), draw(st.sampled_from(["refuse", "halt", "renormalize"]))
    weigh_by = draw(st.sampled_from(["tokens", "loss_tokens"]))
    if not all(size_of(table, weigh_by) for table in [new, *tables.values()]):
        weigh_by = "tokens"

    def weights(of: list[str]) -> Weights:
        found = st.dictionaries(st.sampled_from(of), st.sampled_from([0, 1, 0.3, 4]), min_size=1)
        return draw(found.filter(lambda each: any(each.values())))

    def phases(of: list[str]) -> Phases:
        found: Phases = [(draw(st.integers(1, 9)), weights(of)) for _ in range(draw(SOME))]
        return found if draw(st.booleans()) else [*found[:-1], (None, found[-1][1])]

    def epochs(of: list[str]) -> dict[str, float]:
        return draw(st.dictionaries(st.sampled_from(of), st.sampled_from([0, 0.5, 2, 2.25])))

    first = Leg(0, 0, phases(names), epochs(names), mode, tables)
    if mode == "refuse" and shortfalls(first.supplies(weigh_by, Plan()), first.phases):
        first = first._replace(mode="halt")
    case = Case(first, new, weigh_by, [])
    for _ in range(draw(st.integers(0, most))):
        plan, _, leg = case.expected()
        row = draw(st.integers(leg.start + bool(case.changes), max(len(plan.rows), leg.start + 1)))
        if row > len(plan.rows):
            break
        added = draw(st.booleans()) and "new" not in names
        names = [*names, *["new"] * added]
        given = phases(names) if draw(st.booleans()) or not leg.left(row)[1] else None
        answer = draw(st.sampled_from([None, "halt", "renormalize"]))
        answer = "halt" if leg.mode == "refuse" else answer
        other = weights(names) if draw(st.booleans()) else None
        case.changes.append(
            Change(row, given, draw(st.none() | st.just(epochs(names))), answer, added, other)
        )
    return case


def listed_of(found: Segments) -> list[tuple[int, ...]]:
    return [*zip(*(each.tolist() for each in found.columns), strict=True)]


@examples(max_examples=60)
@given(cases())
def test_rows_are_those_of_their_sources_one_after_another(case: Case) -> None:
    rows, (plan, phases, leg) = case.made(), case.expected()
    names, tables = [*leg.tables], [*leg.tables.values()]
    assert (len(rows), rows.names) == (len(plan.rows), names)
    assert [*rows.sources.items()] == [*leg.tables.items()]
    every = np.arange(len(rows))
    for chosen in (every, every[::-2]):
        picked = [plan.rows[row] for row in chosen]
        assert [*zip(*(each.tolist() for each in rows.select(chosen)), strict=True)] == picked
        found = rows.segments(chosen)
        assert listed_of(rows.origins(found)) == [
            (at, source, *more)
            for at, (_, source, rank) in enumerate(picked)
            for _, _, *more in listed_of(tables[source].segments(np.array([rank])))
        ]
        work = [tables[n].row_work(np.array([rank]), 3).tolist()[0] for _, n, rank in picked]
        assert rows.row_work(chosen, 3).tolist() == work
    assert [(i.start, i.rows, i.phase, i.shares) for i in rows.intervals] == plan.intervals
    assert [(e.source, e.phase, e.row) for e in rows.exhaustions] == plan.exhaustions
    halted = rows.timeline.halted
    assert (halted and (halted.source, halted.phase, halted.row)) == plan.halted
    assert (rows.end() is None) == (halted is None)
    assert rows.timeline.asked == [[budget, weights] for budget, weights in phases]
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"out of range for a mixture of {len(rows)} rows$"):
            rows.segments(np.array([outside]))
    for source in range(len(names)):
        mine = [row for row, (_, number, _) in enumerate(plan.rows) if number == source]
        ranks = np.arange(len(mine) + 2)[::-1]
        assert rows.rows_of(source, ranks).tolist() == [-1, -1, *mine[::-1]]
    found = rows.origins(rows.segments(every))
    for number, name in enumerate(names):
        for document in range(len(tables[number].documents[0])):
            mine = (found.source == number) & (found.document == document)
            holding = sorted({*found.row[mine].tolist()})
            assert rows.rows_with(name, document) == holding
            some = len(rows) // 2
            assert rows.rows_with(name, document, some) == [r for r in holding if r < some]
    assert rows.rows_with("absent", 0) == []


@examples(max_examples=40)
@given(cases())
def test_every_prefix_is_counted_row_by_row(case: Case) -> None:
    rows, (plan, _, leg) = case.made(), case.expected()
    tables, legs = leg.tables, [(0, case.first.tables)]
    for change in case.changes:
        new = {"new": case.new} if change.added else {}
        legs.append((change.row, legs[-1][1] | new))
    most = [(start, max(table.lanes for table in each.values())) for start, each in legs]
    taken, totals = dict.fromkeys(tables, 0), dict.fromkeys(tables, TokenCounts())
    for row, picked in enumerate([*plan.rows, None]):
        assert rows.counts(row) == taken
        assert rows.token_counts(row) == totals
        assert rows.epochs(row) == {n: tables[n].epochs(taken[n])[n] for n in tables}
        if picked:
            name, rank = [*tables][picked[1]], picked[2]
            taken[name] += 1
            totals[name] += tables[name].total(rank + 1) - tables[name].total(rank)
            lanes = [n for start, n in most if start <= row][-1]
            [key] = tables[name].batch_key(np.array([rank])).tolist()
            sorts = lanes > 1 or not case.changes
            assert rows.batch_key(np.array([row])).tolist() == [key if sorts else 0]
    assert rows.counts(len(rows) + 5) == taken
    assert rows.lanes == max(lanes for _, lanes in most)


@examples(max_examples=30)
@given(cases())
def test_amendments_are_told_with_what_they_change_in_any_order(case: Case) -> None:
    rows = case.made()
    assert rows.identity() == case._replace(changes=[]).made().identity()
    assert [each["row"] for each in rows.amendments] == [change.row for change in case.changes]
    epochs = dict(case.first.epochs)
    for told, change in zip(rows.amendments, case.changes, strict=True):
        epochs |= change.epochs or {}
        assert ("phases" in told) == (change.phases is not None)
        assert told.get("on_exhaustion") == change.mode
        assert told.get("weights") == change.weights
        assert told.get("epochs") == (None if change.epochs is None else epochs)
        assert ("sources" in told) == ("seq_len" in told) == change.added
    if all(change.phases is not None for change in case.changes):
        try:
            other = case.made(order=-1)
        except InputError:
            return
        assert other.amendments == rows.amendments
        every = np.arange(len(rows))
        assert listed_of(other.segments(every)) == listed_of(rows.segments(every))


@examples(max_examples=30)
@given(cases(most=0))
def test_the_preview_tells_each_interval_to_the_token(case: Case) -> None:
    made, (plan, _, leg) = case.made(), case.expected()
    losses = {
        name: size_of(table, case.weigh_by) / max(size_of(table, "tokens"), 1)
        for name, table in leg.tables.items()
    }
    assert made.loss_shares == (losses if case.weigh_by == "loss_tokens" else {})
    for end in (len(made), 0, len(made) // 3):
        intervals = [each for each in plan.intervals if each[0] < end]
        planned, asked = planned_intervals(made, end), dict.fromkeys(leg.tables, 0.0)
        for told, (start, _, phase, shares) in zip(planned, intervals, strict=True):
            stop = min([end, *(first for first, *_ in intervals if first > start)])
            assert (told.phase, told.start, told.stop) == (phase, start, stop)
            assert told.asked == {name: shares.get(name, 0.0) for name in leg.tables}
            before, after = made.token_counts(start), made.token_counts(stop)
            assert told.token_counts == {name: after[name] - before[name] for name in before}
            # Where a third of the tokens of a source has loss, it has thrice its share of all.
            of_all = {n: each / losses[n] for n, each in told.asked.items() if each}
            trained = sum(each.trained_tokens for each in told.token_counts.values())
            for name, share in of_all.items():
                assert told.asked_of_trained[name] == pytest.approx(share / sum(of_all.values()))
                asked[name] += trained * share / sum(of_all.values())
        whole = sum(asked.values()) or 1
        expected = {name: each / whole for name, each in asked.items()} if planned else {}
        assert asked_shares(planned) == pytest.approx(expected)
    counts = made.token_counts(len(made))
    weighed = {name: each.trained_tokens * losses[name] for name, each in counts.items()}
    assert weighed_tokens(counts, made.loss_shares) == weighed


@pytest.mark.parametrize("mode", ["halt", "renormalize"])
def test_the_end_of_a_halted_mixture_says_how_to_go_on(mode: str) -> None:
    tables = {"web": table_of([7] * 5, "web"), "code": table_of([7] * 2, "code")}
    weights = {"web": 1, "code": 1}
    made = mixture(tables, [Phase(rows=9, weights=weights)], {}, mode)
    last = "code" if mode == "halt" else "web"
    said = {
        "halt": "the run halts there. To continue, set on_exhaustion='renormalize' or allow more "
        "epochs of 'code'",
        "renormalize": "it was the last one, so the run halts there. To continue, allow more "
        "epochs or add sources",
    }
    assert made.timeline.halted
    row = made.timeline.halted.row
    assert str(made.end()) == f"source {last!r} runs dry in phase 0 at row {row}; {said[mode]}"


def web(rows: int = 12, **settings: Any) -> dict[str, PackedRows]:
    return {"web": table_of([7] * rows, "web", **settings)}


ONLY = {"web": 1.0}
NOTHING, SHORT = Amendment({}), Amendment({}, [Phase(rows=3, weights=ONLY)])


def run_of() -> Mixture:
    return mixture(web(), [Phase(rows=8, weights=ONLY)], {}, "halt")


def test_sections_join_recipes_of_one_shape_and_leave_out_those_without_rows() -> None:
    run = run_of()
    same = amended(run, 3, SHORT)
    assert [(row, table.seq_len) for row, table in same.sections()] == [(0, 6)]
    at_once = amended(run, 0, NOTHING._replace(tables=web(seq_len=3, positions="row")))
    assert [(row, t.seq_len, t.positions) for row, t in at_once.sections()] == [(0, 3, "row")]
    assert (at_once.seq_len, at_once.positions) == (3, "row")
    later = amended(run, 4, NOTHING._replace(tables=web(positions="row")))
    back = amended(later, 6, NOTHING._replace(tables=web()))
    sections = [(row, t.positions) for row, t in back.sections()]
    assert sections == [(0, "segment"), (4, "row"), (6, "segment")]
    none = mixture(web(), [Phase(rows=8, weights=ONLY)], {"web": 0}, "halt")
    still = amended(none, 0, NOTHING._replace(on_exhaustion="renormalize"))
    assert (len(still), still.sections()) == (0, [(0, still)])


def strict(weigh_by: str = "tokens", **tables: PackedRows) -> Mixture:
    phases = [Phase(rows=4, weights=dict.fromkeys(tables, 1.0))]
    return mixture(web() | tables, phases, {}, "refuse", weigh_by)


MUTE = jaxdata.ArrayDocuments([[1] * 7], [[0] * 7], name="a")
REFUSED: list[tuple[Any, str]] = [
    (
        lambda: strict(code=table_of([7], "code", seq_len=4)),
        "sources of a mixture must share one seq_len, these have {'web': 6, 'code': 4}",
    ),
    (
        lambda: strict("loss_tokens", a=jaxdata.pack(MUTE, seq_len=6).table),
        "source 'a' has no target with loss, but a phase weighs it",
    ),
    (
        lambda: strict(a=table_of([1, 1], "a")),
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
    (
        lambda: amended(run_of(), 8, NOTHING),
        "no phase is left at row 8; pass the phases to follow",
    ),
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
