"""Another recipe from a row on: what was consumed stays, and what is left of the plan goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import SourceExhausted, StateMismatch
from jaxdata.feed.state import sealed
from jaxdata.testing import assert_resumes_everywhere, assert_same_batches, assert_same_on_hosts
from tests.rows.mixing.amendments.conftest import packed, run_of_two_phases


def test_the_past_stays_and_cannot_be_edited(docs: dict[str, Any]) -> None:
    first = run_of_two_phases(docs)
    later = first.amend(84, phases=[jaxdata.Phase(rows=60, weights={"web": 1})])
    one = jaxdata.Loader(first, batch_size=6)
    states = [one.get_state() for _ in one]
    at = {state["next_row"]: state for state in states}
    assert_same_batches((later[row] for row in range(84)), (first[row] for row in range(84)))
    other = jaxdata.Loader(later, batch_size=6)
    for row in (78, 84):
        other.set_state(at[row])
        assert other.next_row == row
    with pytest.raises(StateMismatch) as refused:
        other.set_state(at[90])
    assert str(refused.value).splitlines() == [
        "the loader state is at row 90; rows already consumed cannot be changed:",
        "  this run has an amendment at row 84 (phases [[60, {'web': 1}]]), the state has none",
        "amend at row 90 or later, or resume from an earlier state",
    ]
    other.set_state(at[84])
    next(other)
    amended = other.get_state()
    assert amended["amendments"] == [{"row": 84, "phases": [[60, {"web": 1}]]}]
    with pytest.raises(
        StateMismatch, match=r"the state has an amendment at row 84 .* this run has none"
    ):
        one.set_state(amended)
    elsewhere = first.amend(84, phases=[jaxdata.Phase(rows=60, weights={"code": 1})])
    with pytest.raises(StateMismatch, match=r"the amendment at row 84 was phases .* is phases"):
        jaxdata.Loader(elsewhere, batch_size=6).set_state(amended)
    other.seek(row=80)
    one.seek(row=80)
    one.set_state(other.get_state())  # back before it: the future may be another one again
    assert one.next_row == 80


def test_it_resumes_everywhere_on_any_hosts(docs: dict[str, Any]) -> None:
    mixed = run_of_two_phases(docs).amend(
        63, rows=packed(docs, seq_len=64), phases=[jaxdata.Phase(rows=40, weights="proportional")]
    )
    ramp = [(0, 6), (40, 24), (88, 12)]

    def loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        return jaxdata.Loader(
            mixed, batch_size=ramp, skip_rows=[(20, 27)], shard=shard, num_workers=num_workers
        )

    assert_resumes_everywhere(loader, tail=2)
    assert_same_on_hosts(loader, [3])
    batches = list(loader())
    assert {batch["inputs"].shape[1] for batch in batches} == {32, 64}
    assert_same_batches(loader(num_workers=2), batches)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    settings = {"batch_size": ramp, "skip_rows": [(20, 27)], "expand": "device"}
    assert_same_batches(jaxdata.Loader(mixed, sharding=sharding, **settings), batches)
    edge = next(k for k, batch in enumerate(batches) if batch["inputs"].shape[1] == 64)
    one = loader()
    one.seek(step=edge)
    assert one.next_row == 63, "the last batch before it was completed"
    assert_same_batches(one, batches[edge:])
    one.seek(row=61)
    assert [len(next(one)["inputs"]), one.next_row] == [24, 63]


def test_transformed_rows_take_another_shape_as_well(docs: dict[str, Any]) -> None:
    mixed = run_of_two_phases(docs)
    mapped = jaxdata.Loader(mixed.map(dict), batch_size=6)
    next(mapped)
    later = mixed.amend(6, rows=packed(docs, seq_len=64))
    one, other = (jaxdata.Loader(rows, batch_size=6) for rows in (later, later.map(dict)))
    other.set_state(mapped.get_state())
    one.seek(row=6)
    assert_same_batches([next(one) for _ in range(4)], [next(other) for _ in range(4)])


def halting(docs: dict[str, Any], times: float = 1, mode: str = "halt") -> jaxdata.Loader:
    rows = packed({name: docs[name] for name in ("web", "code")}, seq_len=32)
    phase = jaxdata.Phase(rows=710, weights={"web": 0.7, "code": 0.3})
    mixed = jaxdata.mix(rows, phases=[phase], epochs={"web": times}, on_exhaustion=mode)
    return jaxdata.Loader(mixed, batch_size=8)


def targets(batches: Iterable[dict[str, np.ndarray]]) -> list[int]:
    return [token for each in batches for token in each["targets"][each["loss_mask"]].tolist()]


def test_a_halted_run_resumed_with_renormalize_remembers_it(docs: dict[str, Any]) -> None:
    halted, going_on = halting(docs), halting(docs, mode="renormalize")
    seen = targets(next(halted) for _ in range(len(halted)))
    with pytest.raises(SourceExhausted, match="runs dry in phase 0 at row"):
        next(halted)
    state = json.loads(json.dumps(halted.get_state()))
    row = state["next_row"]
    assert row == going_on.rows.exhaustions[0].row
    going_on.set_state(state)
    seen += targets(going_on)
    assert len({*seen}) == len(seen), "nothing is repeated"
    after = going_on.get_state()
    assert after["amendments"] == [{"row": row, "on_exhaustion": "renormalize", "was": "halt"}]
    again = halting(docs, mode="renormalize")
    again.set_state(json.loads(json.dumps(after)))
    assert again.get_state() == after
    with pytest.raises(StateMismatch, match=f"next_row {after['next_row']}: expected 0 to {row}"):
        halting(docs).set_state(after)


def test_a_halted_run_goes_on_with_more_epochs(docs: dict[str, Any]) -> None:
    halted, longer = halting(docs, 0.5), halting(docs, 0.75)
    seen = targets(next(halted) for _ in range(len(halted)))
    state = halted.get_state()
    longer.set_state(state)
    assert longer.get_state()["amendments"] == [
        {"row": state["next_row"], "epochs": {"web": 0.75}, "was": {"web": 0.5}}
    ]
    seen += targets(next(longer) for _ in range(len(longer) - longer.step))
    assert len({*seen}) == len(seen), "nothing is repeated"
    assert longer.rows.epochs()["web"] == pytest.approx(0.75, abs=0.01)
    with pytest.raises(StateMismatch, match=r"epochs\[web\] was 0.75, is 0.5: set epochs"):
        halting(docs, 0.5).set_state(longer.get_state())
    dry = sealed(halting(docs, 0.5, "renormalize").get_state() | {"next_row": 600})
    with pytest.raises(StateMismatch, match="epochs"):  # its rows after web ran dry would differ
        halting(docs, 0.75, "renormalize").set_state(dry)
