"""A run that halted where a source ran dry goes on: amended, renormalized, with more epochs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import SourceExhausted, StateMismatch
from jaxdata.feed.saved_state import sealed
from tests.mixing.amendments.conftest import Seen, deliver, packed, run_of_two_phases


def planned(mixed: Any, docs: dict[str, Any]) -> dict[int, int]:
    """How often each target is to come, by the plan: from lengths and document numbers alone."""
    table, times = mixed.table, dict[int, int]()
    found = table.origins(table.segments(np.arange(len(mixed))))
    fields = (found.source, found.document, found.start, found.slots, found.context)
    for source, document, start, slots, context in zip(*(f.tolist() for f in fields), strict=True):
        tokens = docs[table.names[source]][document]["tokens"]
        for token in tokens[start + context + 1 : start + slots + 1].tolist():
            times[token] = times.get(token, 0) + 1
    return times


@pytest.mark.parametrize("hosts", [1, 3])
def test_amended_twice_and_halted_once(docs: dict[str, Any], hosts: int) -> None:
    """From checkpoint to checkpoint, as a user would: a leg goes on from the last one's state."""
    seen = Seen()

    def leg(mixed: Any, state: Any, steps: int | None = None) -> tuple[Any, str]:
        try:
            for number, (parts, after) in enumerate(deliver(mixed, 6, hosts, state), 1):
                for part in parts:
                    seen.add(part)
                state = after
                if number == steps:
                    break
        except SourceExhausted as error:
            return state, str(error)
        return state, ""

    first = run_of_two_phases(docs)
    state, _ = leg(first, None, 14)
    assert state["next_row"] == 84
    phases = [
        jaxdata.Phase(rows=60, weights={"web": 0.4, "code": 0.3, "books": 0.3}),
        jaxdata.Phase(rows=900, weights={"web": 0.5, "code": 0.5}),
    ]
    second = first.amend(84, rows=packed({"books": docs["books"]}, seq_len=32), phases=phases)
    state, _ = leg(second, state, 12)
    assert state["next_row"] == 156
    third = second.amend(156, rows=packed(docs, seq_len=64, overlap=16))
    state, said = leg(third, state)
    dry = third.table.halted
    assert dry is not None
    assert str(dry) in said, "it halted, and said where"
    assert state["next_row"] == dry.row == len(third)
    last = third.amend(dry.row, on_exhaustion="renormalize", epochs={dry.source: 1.5})
    state, _ = leg(last, state)

    assert state["next_row"] == len(last)
    assert [each["row"] for each in state["amendments"]] == [84, 156, dry.row]
    assert len(json.dumps(state)) < 1024
    assert seen.times == planned(last, docs), "exactly the planned ones"
    most = {"web": 1, "code": 1, "books": 1, dry.source: 2}
    for name, each in docs.items():
        assert max(seen.of(each)) <= most[name]
    spent = [name for name, epochs in last.epochs().items() if epochs == 1]
    assert spent, "some source was read to its end"
    for name in spent:
        assert set(seen.of(docs[name])) == {1}
    counts = last.counts()
    assert last.epochs()[dry.source] == 1.5
    assert counts["books"] > 0


def test_a_halted_run_resumed_with_renormalize_remembers_it(docs: dict[str, Any]) -> None:
    def run(on_exhaustion: str) -> jaxdata.Loader:
        phase = jaxdata.Phase(rows=700, weights={"web": 0.7, "code": 0.3})
        named = {name: docs[name] for name in ("web", "code")}
        rows = packed(named, seq_len=32)
        return jaxdata.Loader(
            jaxdata.mix(rows, phases=[phase], on_exhaustion=on_exhaustion), batch_size=8
        )

    halting, going_on = run("halt"), run("renormalize")
    seen = Seen()
    for _ in range(len(halting)):
        seen.add(next(halting))
    with pytest.raises(SourceExhausted, match="runs dry in phase 0 at row"):
        next(halting)
    state = json.loads(json.dumps(halting.get_state()))
    row = state["next_row"]
    assert row == going_on.rows.exhaustions[0].row
    going_on.set_state(state)
    for batch in going_on:
        seen.add(batch)
    assert set(seen.times.values()) == {1}, "nothing is repeated"
    after = going_on.get_state()
    noted = [{"row": row, "on_exhaustion": "renormalize", "was": "halt"}]
    assert after["amendments"] == noted
    again = run("renormalize")
    again.set_state(json.loads(json.dumps(after)))
    assert again.get_state() == after
    with pytest.raises(StateMismatch, match=f"next_row {after['next_row']}: expected 0 to {row}"):
        run("halt").set_state(after)


def test_a_halted_run_goes_on_with_more_epochs(docs: dict[str, Any]) -> None:
    def run(times: float, on_exhaustion: str = "halt") -> jaxdata.Loader:
        phase = jaxdata.Phase(rows=700, weights={"web": 0.7, "code": 0.3})
        rows = packed({name: docs[name] for name in ("web", "code")}, seq_len=32)
        mixed = jaxdata.mix(
            rows, phases=[phase], epochs={"web": times}, on_exhaustion=on_exhaustion
        )
        return jaxdata.Loader(mixed, batch_size=8)

    halting, longer = run(0.5), run(0.75)
    batches = [next(halting) for _ in range(len(halting))]
    state = halting.get_state()
    longer.set_state(state)
    assert longer.get_state()["amendments"] == [
        {"row": state["next_row"], "epochs": {"web": 0.75}, "was": {"web": 0.5}}
    ]
    seen = Seen()
    for batch in [*batches, *(next(longer) for _ in range(len(longer) - longer.step))]:
        seen.add(batch)
    assert set(seen.times.values()) == {1}
    assert longer.rows.epochs()["web"] == pytest.approx(0.75, abs=0.01)
    beyond = longer.get_state()
    with pytest.raises(StateMismatch, match=r"epochs\[web\] was 0.75, is 0.5: set epochs"):
        run(0.5).set_state(beyond)
    dry = sealed(run(0.5, "renormalize").get_state() | {"next_row": 600})
    with pytest.raises(StateMismatch, match="epochs"):  # its rows after web ran dry would differ
        run(0.75, "renormalize").set_state(dry)
