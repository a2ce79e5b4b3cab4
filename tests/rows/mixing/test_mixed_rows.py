"""Mixtures of small packed sources, against taking their rows one after another."""

from __future__ import annotations

import json
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
from jaxdata.rows.mixing.mixture import MixedRows, everything, mixture
from jaxdata.rows.mixing.phases import Phase
from jaxdata.rows.mixing.preview import asked_shares, planned_intervals, weighed_tokens
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import TokenCounts
from tests.rows.mixing.oracle import Plan, Supply, lay_out, shortfalls

NAMES = ["web", "code", "wiki"]


def table_of(
    lengths: list[int], name: str, masked: bool = False, seq_len: int = 6, **settings: Any
) -> PackedRows:
    masks = [[at % 3 == 1 for at in range(n)] for n in lengths] if masked else None
    documents = jaxdata.ArrayDocuments([[1] * n for n in lengths], masks, name=name)
    return jaxdata.pack(documents, seq_len=seq_len, **settings).table


class Case(NamedTuple):
    tables: dict[str, PackedRows]
    phases: list[tuple[int | None, dict[str, float]]]
    epochs: dict[str, float]
    mode: str
    weigh_by: str

    @property
    def made(self) -> MixedRows:
        phases = [Phase(rows=rows, weights=weights) for rows, weights in self.phases]
        return mixture(self.tables, phases, self.epochs, self.mode, self.weigh_by)

    @property
    def supplies(self) -> list[Supply]:
        found = []
        for name, table in self.tables.items():
            epochs = Fraction(str(self.epochs.get(name, 1)))
            starts = [table.first_row(epoch) for epoch in range(4)]
            part = epochs % 1 * (starts[int(epochs) + 1] - starts[int(epochs)])
            rows = starts[int(epochs)] + math.ceil(part)
            density = Fraction(self.size(name), max(len(table), 1)) or Fraction(1)
            found.append(Supply(name, rows, density))
        return found

    @property
    def plan(self) -> Plan:
        return lay_out(self.supplies, self.phases, self.mode)

    def size(self, name: str) -> int:
        """The tokens that weights count, target by target."""
        table = self.tables[name]
        source, found = table.documents[0], table.segments(np.arange(len(table)))
        columns = (found.document, found.start, found.slots, found.context)
        targets = [
            (document, token)
            for document, start, slots, context in zip(*map(list, columns), strict=True)
            for token in range(start + context + 1, start + slots + 1)
            if token < source.lengths[document]
        ]
        if self.weigh_by == "tokens" or not source.masked:
            return len(targets)
        return sum(bool(source[number]["loss_mask"][token]) for number, token in targets)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = NAMES[: draw(st.integers(1, 3))]
    masked = draw(st.booleans())
    tables = {}
    for name in names:
        lengths = draw(st.lists(st.integers(3, 14), min_size=1, max_size=9))
        strategy = draw(st.sampled_from(["best_fit", "pad", "concat"]))
        lanes = draw(st.sampled_from([1, 1, 2, 4]))
        more = {"strategy": strategy, "lanes": lanes, "chunk_bytes": 16, "block_bytes": 64}
        more["reshuffle"] = draw(st.sampled_from(["rows", "documents"]))
        tables[name] = table_of(lengths, name, masked and name != "code", **more)
    weights = st.dictionaries(st.sampled_from(names), st.sampled_from([0, 1, 0.3, 4]), min_size=1)
    weights = weights.filter(lambda given: any(given.values()))
    phases = draw(st.lists(st.tuples(st.integers(1, 14), weights), min_size=1, max_size=3))
    if draw(st.booleans()):
        phases[-1] = (None, phases[-1][1])
    epochs = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0, 0.5, 2, 2.25])))
    mode = draw(st.sampled_from(["refuse", "halt", "renormalize"]))
    case = Case(tables, phases, epochs, mode, draw(st.sampled_from(["tokens", "loss_tokens"])))
    weighed = [name for name in names if any(given.get(name) for _, given in phases)]
    if not all(map(case.size, weighed)) or (mode == "refuse" and _short(case)):
        return case._replace(mode="halt", weigh_by="tokens")
    return case


def _short(case: Case) -> bool:
    return bool(shortfalls(case.supplies, case.phases))


@examples(max_examples=25)
@given(cases())
def test_rows_are_selected_one_after_another_of_their_sources(case: Case) -> None:
    made, plan = case.made, case.plan
    assert len(made) == len(plan.rows)
    columns = made.select(np.arange(len(made)))
    assert [*zip(*(each.tolist() for each in columns), strict=True)] == plan.rows
    backwards = made.select(np.arange(len(made))[::-2])
    assert [*zip(*(each.tolist() for each in backwards), strict=True)] == plan.rows[::-2]
    assert [(i.start, i.rows, i.phase, i.shares) for i in made.intervals] == plan.intervals
    assert [(e.source, e.phase, e.row) for e in made.exhaustions] == plan.exhaustions
    halted = made.halted
    assert (halted and (halted.source, halted.phase, halted.row)) == plan.halted
    for outside in ([-1], [len(made)], [0, len(made)]):
        with pytest.raises(IndexError) as caught:
            made.select(np.array(outside))
        assert str(caught.value) == f"row index out of range for a mixture of {len(made)} rows"
    for source in range(len(case.tables)):
        rows = [row for row, (_, mine, _) in enumerate(plan.rows) if mine == source]
        ranks = np.arange(len(rows) + 3)
        assert made.rows_of(source, ranks).tolist() == rows + [-1] * 3
        assert made.rows_of(source, ranks[::-1]).tolist() == [-1] * 3 + rows[::-1]


@examples(max_examples=25)
@given(cases())
def test_every_prefix_is_counted_row_by_row(case: Case) -> None:
    made, plan = case.made, case.plan
    rows = dict.fromkeys(case.tables, 0)
    totals = dict.fromkeys(case.tables, TokenCounts())
    for row, picked in enumerate([*plan.rows, None]):
        assert made.counts(row) == made.used(row) == rows
        assert made.token_counts(row) == totals
        read = {name: case.tables[name].epochs(rows[name])[name] for name in rows}
        assert made.epochs(row) == read
        if picked:
            name, rank = [*case.tables][picked[1]], picked[2]
            rows[name] += 1
            table = case.tables[name]
            totals[name] += table.total(rank + 1) - table.total(rank)
    assert made.counts(len(made) + 5) == rows


@examples(max_examples=25)
@given(cases())
def test_segments_and_keys_are_those_of_the_rows_of_the_sources(case: Case) -> None:
    made, plan, tables = case.made, case.plan, [*case.tables.values()]
    expected, keys, cyclic = [], [], []
    for row, (_, source, rank) in enumerate(plan.rows):
        found = tables[source].segments(np.array([rank]))
        listed = zip(*(each.tolist() for each in found.columns), strict=True)
        expected += [(row, source, *more) for _, _, *more in listed]
        keys.append(int(tables[source].batch_key(np.array([rank]))[0]))
        cyclic.append(rank)
    found = made.segments(np.arange(len(made)))
    assert [*zip(*(each.tolist() for each in found.columns), strict=True)] == expected
    assert made.batch_key(np.arange(len(made))).tolist() == keys
    assert made.lanes == max(table.lanes for table in tables)
    assert made.documents == [table.documents[0] for table in tables]
    assert made.names == [*made.sources] == [*case.tables]
    assert [*made.sources.values()] == tables
    assert (made.seq_len, made.positions, made.ends) == (6, "segment", True)
    assert made.recipe_at(3) is made.recipe


@examples(max_examples=20)
@given(cases(), st.data())
def test_the_rows_of_a_document_are_those_that_hold_it(case: Case, data: st.DataObject) -> None:
    made = case.made
    number = data.draw(st.integers(0, len(case.tables) - 1))
    name, table = [*case.tables.items()][number]
    document = data.draw(st.integers(0, len(table.documents[0]) - 1))
    found = made.segments(np.arange(len(made)))
    mine = (found.source == number) & (found.document == document)
    holding = sorted({*found.row[mine].tolist()})
    assert made.rows_with(name, document) == holding
    for rows in range(len(made) + 2):
        assert made.rows_with(name, document, rows) == [row for row in holding if row < rows]
    assert made.rows_with("absent", 0) == []


@examples(max_examples=25)
@given(cases())
def test_the_preview_tells_each_interval_to_the_token(case: Case) -> None:
    made, plan = case.made, case.plan
    losses = {} if case.weigh_by == "tokens" else made.loss_shares
    for rows in (None, 0, len(made) // 3, len(made)):
        end = len(made) if rows is None else rows
        intervals = [each for each in plan.intervals if each[0] < end]
        planned = planned_intervals(made, rows)
        assert len(planned) == len(intervals)
        for told, (start, _, phase, shares) in zip(planned, intervals, strict=True):
            stop = min([end, *(first for first, *_ in intervals if first > start)])
            assert (told.phase, told.start, told.stop) == (phase, start, stop)
            assert told.asked == {name: shares.get(name, 0.0) for name in case.tables}
            before, after = made.token_counts(start), made.token_counts(stop)
            assert told.token_counts == {name: after[name] - before[name] for name in before}
            assert told.loss_shares == losses
            assert told.asked_of_trained == pytest.approx(_of_trained(told.asked, losses))
        tokens = [sum(c.trained_tokens for c in told.token_counts.values()) for told in planned]
        asked = {
            name: sum(
                count * _of_trained(told.asked, losses)[name]
                for count, told in zip(tokens, planned, strict=True)
            )
            for name in (case.tables if planned else ())
        }
        whole = sum(asked.values()) or 1
        expected = {name: share / whole for name, share in asked.items()}
        assert asked_shares(planned) == pytest.approx(expected)


def _of_trained(asked: dict[str, float], losses: Any) -> dict[str, Any]:
    """Where a third of the tokens of a source has loss, its share of all of them is thrice that."""
    if not losses:
        return asked
    tokens = {name: share / losses[name] if losses[name] else 0 for name, share in asked.items()}
    whole = sum(tokens.values()) or 1
    return {name: each / whole for name, each in tokens.items()}


@examples(max_examples=20)
@given(cases())
def test_loss_shares_are_those_of_an_epoch(case: Case) -> None:
    made = case.made
    if case.weigh_by == "tokens":
        assert made.loss_shares == {}
    else:
        trained = {name: case._replace(weigh_by="tokens").size(name) for name in case.tables}
        losses = {name: case.size(name) / max(trained[name], 1) for name in case.tables}
        assert made.loss_shares == losses
    counts = made.token_counts(len(made))
    assert weighed_tokens(counts, made.loss_shares) == {
        name: each.trained_tokens * made.loss_shares.get(name, 1) for name, each in counts.items()
    }


def test_a_source_without_loss_is_trained_beside_others_and_has_no_share_of_them() -> None:
    lengths = [7] * 6
    tables = {"web": table_of(lengths, "web"), "code": table_of(lengths, "code")}
    silent = jaxdata.ArrayDocuments([[1] * 7] * 6, [[False] * 7] * 6, name="mute")
    tables["mute"] = jaxdata.pack(silent, seq_len=6).table
    made = mixture(
        tables, [Phase(rows=4, weights={"web": 3, "code": 1})], {}, "halt", "loss_tokens"
    )
    assert made.loss_shares == {"web": 1, "code": 1, "mute": 0}
    [told] = planned_intervals(made)
    assert told.asked_of_trained == {"web": 0.75, "code": 0.25, "mute": 0.0}
    with pytest.raises(InputError) as caught:
        mixture(tables, [Phase(rows=4, weights={"mute": 3})], {}, "halt", "loss_tokens")
    assert str(caught.value) == "source 'mute' has no target with loss, but a phase weighs it"
    tables["none"] = table_of([1, 1], "none", strategy="pad")
    with pytest.raises(InputError) as caught:
        mixture(tables, [Phase(rows=4, weights={"web": 1, "none": 3})], {}, "halt")
    assert str(caught.value) == "source 'none' has no rows to train on, but a phase weighs it"


@examples(max_examples=20)
@given(cases())
def test_with_everything_each_source_is_read_to_its_end(case: Case) -> None:
    weighed = {
        name: case.size(name) * case.epochs.get(name, 1) for name in case.tables if case.size(name)
    }
    if len(weighed) != len(case.tables) or not any(weighed.values()):
        return
    [phase] = everything(case.tables, case.epochs, case.weigh_by)
    assert phase == Phase(weights=weighed)
    made = mixture(case.tables, [phase], case.epochs, "renormalize", case.weigh_by)
    rows = {each.name: each.available for each in case.supplies}
    assert made.counts(len(made)) == rows


@pytest.mark.parametrize("mode", ["halt", "renormalize"])
def test_the_end_of_a_halted_mixture_says_how_to_go_on(mode: str) -> None:
    tables = {"web": table_of([7] * 5, "web"), "code": table_of([7] * 2, "code")}
    weights = {"web": 1, "code": 1}
    made = mixture(tables, [Phase(rows=9, weights=weights)], {}, mode)
    last, row = ("code", 4) if mode == "halt" else ("web", 7)
    said = {
        "halt": "the run halts there. To continue, set on_exhaustion='renormalize' or allow more "
        "epochs of 'code'",
        "renormalize": "it was the last one, so the run halts there. To continue, allow more "
        "epochs or add sources",
    }
    error = made.end()
    assert isinstance(error, SourceExhausted)
    assert made.halted
    row = made.halted.row
    assert str(error) == f"source {last!r} runs dry in phase 0 at row {row}; {said[mode]}"
    assert mixture(tables, [Phase(rows=3, weights=weights)], {}, mode).end() is None
    assert mixture(tables, [Phase(weights=weights)], {}, mode).end() is None


def test_the_identity_names_what_is_shared_once_and_the_recipe() -> None:
    tables = {
        "web": table_of([7] * 5, "web"),
        "code": table_of([7] * 4, "code", strategy="pad", masked=True),
    }
    phases = [Phase(rows=3, weights={"web": 1, "code": 2})]
    facts = mixture(tables, phases, {"web": 2}, "halt").identity()
    own = {name: table.identity() for name, table in tables.items()}
    shared = {k: v for k, v in own["web"].items() if own["code"].get(k) == v and k in own["code"]}
    expected = {
        **shared,
        **{
            f"{name}.{key}": value
            for name, each in own.items()
            for key, value in each.items()
            if key not in shared and key not in ("data", "views")
        },
        "data": own["web"]["data"] | own["code"]["data"],
        "phases": [[3, {"web": 1, "code": 2}]],
        "epochs": {"web": 2},
        "on_exhaustion": "halt",
    }
    assert facts == expected
    named = [facts[name] for name in ("web.strategy", "code.strategy", "seq_len")]
    assert named == ["best_fit", "pad", 6]
    loss = mixture(tables, phases, {"web": 2}, "halt", "loss_tokens").identity()
    sizes = {name: table.loss_tokens for name, table in tables.items()}
    assert loss == facts | {"weigh_by": "loss_tokens", "loss_tokens": sizes}
    assert json.loads(json.dumps(loss)) == loss


def test_sources_that_differ_in_shape_are_refused() -> None:
    tables = {"web": table_of([7] * 5, "web"), "code": table_of([7] * 5, "code", seq_len=4)}
    phases = [Phase(rows=3, weights={"web": 1})]
    with pytest.raises(InputError) as caught:
        mixture(tables, phases, {}, "halt")
    expected = "sources of a mixture must share one seq_len, these have {'web': 6, 'code': 4}"
    assert str(caught.value) == expected
    tables["code"] = table_of([7] * 5, "code", positions="row")
    with pytest.raises(InputError, match=r"share one positions, these have .*'code': 'row'"):
        mixture(tables, phases, {}, "halt")


def test_it_shows_itself_in_words_and_in_a_notebook() -> None:
    tables = {"web": table_of([7] * 5, "web"), "code": table_of([7] * 2, "code")}
    phases = [
        Phase(rows=2, weights={"web": 1, "code": 1}),
        Phase(rows=5, weights={"code": 1, "web": 3}),
    ]
    one, two = (mixture(tables, phases[:n], {}, "renormalize") for n in (1, 2))
    assert repr(one) == "MixedRows(2 rows of 6, web, code in 1 phase)"
    assert repr(two) == "MixedRows(7 rows of 6, web, code in 2 phases)"
    shown = two.html("A run")
    assert "A run" in shown
    for interval in two.intervals:
        assert f"{interval.start:,} to {interval.start + interval.rows - 1:,}" in shown
    for exhaustion in two.exhaustions:
        assert exhaustion.source in shown.split("runs dry")[0]
    assert shown.count("runs dry") == len(two.exhaustions)


def test_a_source_of_one_target_that_has_loss_has_all_of_it() -> None:
    tables = {"web": table_of([2], "web", masked=True)}
    made = mixture(tables, [Phase(rows=1, weights={"web": 1})], {}, "halt", "loss_tokens")
    assert made.loss_shares == {"web": 1}
