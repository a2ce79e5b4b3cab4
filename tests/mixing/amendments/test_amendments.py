"""Another recipe from a row on: what was consumed stays, and what is left of the plan goes on."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxdata
from jaxdata.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.testing import assert_resumes_everywhere, assert_same_batches, assert_same_on_hosts
from tests.mixing.amendments.conftest import packed, run_of_two_phases


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


def test_what_is_left_of_the_plan_goes_on(docs: dict[str, Any]) -> None:
    """Without phases of its own an amendment keeps those there were, in their units."""
    rows = packed(docs, seq_len=32)
    weights = dict.fromkeys(docs, 1)
    phases = [
        jaxdata.Phase(tokens=32 * 40, weights=weights),
        jaxdata.Phase(steps=5, batch_size=4, weights=weights),
    ]
    mixed = jaxdata.mix(rows, phases=phases)
    same = mixed.amend(24, epochs={"web": 2})
    assert (len(same), [interval.phase for interval in same.intervals]) == (60, [0, 0, 1])
    longer = mixed.amend(24, rows=packed(docs, seq_len=64))
    assert len(longer) == 24 + 16 // 2 + 20, "tokens stay tokens, rows stay rows"
    with pytest.raises(InputError, match="no phase is left at row 60; pass the phases to follow"):
        mixed.amend(60, epochs={"web": 2})
    enlarged = mixed.amend(60, phases=[jaxdata.Phase(rows=9, weights={"web": 1})])
    assert len(enlarged) == 69


def test_it_resumes_everywhere_on_any_hosts(docs: dict[str, Any]) -> None:
    mixed = run_of_two_phases(docs).amend(
        63, rows=packed(docs, seq_len=64), phases=[jaxdata.Phase(rows=40, weights="proportional")]
    )
    ramp = [(0, 6), (40, 12), (80, 6)]

    def loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> jaxdata.Loader:
        return jaxdata.Loader(
            mixed, batch_size=ramp, skip_rows=[(20, 27)], shard=shard, num_workers=num_workers
        )

    assert_resumes_everywhere(loader)
    assert_same_on_hosts(loader, [2, 3])
    batches = list(loader())
    assert {batch["inputs"].shape[1] for batch in batches} == {32, 64}
    assert_same_batches(loader(num_workers=2), batches)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for expand in ("host", "device"):
        settings = {"batch_size": ramp, "skip_rows": [(20, 27)], "expand": expand}
        assert_same_batches(jaxdata.Loader(mixed, sharding=sharding, **settings), batches)
    edge = next(k for k, batch in enumerate(batches) if batch["inputs"].shape[1] == 64)
    one = loader()
    one.seek(step=edge)
    assert one.next_row == 63, "the last batch before it was completed"
    assert_same_batches(one, batches[edge:])
    one.seek(row=61)
    assert [len(next(one)["inputs"]), one.next_row] == [12, 63]


def test_transformed_rows_take_another_shape_as_well(docs: dict[str, Any]) -> None:
    mixed = run_of_two_phases(docs)
    mapped = jaxdata.Loader(mixed.map(dict), batch_size=6)
    next(mapped)
    later = mixed.amend(6, rows=packed(docs, seq_len=64))
    one, other = (jaxdata.Loader(rows, batch_size=6) for rows in (later, later.map(dict)))
    other.set_state(mapped.get_state())
    one.seek(row=6)
    assert_same_batches([next(one) for _ in range(4)], [next(other) for _ in range(4)])


def test_what_cannot_be_amended_says_why(docs: dict[str, Any]) -> None:
    mixed = run_of_two_phases(docs)
    end = len(mixed)
    with pytest.raises(InputError, match=f"from row {end + 1} on: expected 0 to {end}"):
        mixed.amend(end + 1, epochs={"web": 2})
    others = packed({"web": docs["books"]}, seq_len=32)
    with pytest.raises(InputError, match="source 'web' has other documents than before"):
        mixed.amend(10, rows=others)
    with pytest.raises(InputError, match=r"must share one seq_len, these have \{'web': 64, 'code'"):
        mixed.amend(10, rows=packed({"web": docs["web"]}, seq_len=64))
    with pytest.raises(InputError, match=r"amend: source 'web' is a .*Map.*, expected the result"):
        mixed.amend(10, rows={"web": packed(docs, seq_len=64)["web"].map(dict)})
    with pytest.raises(SourceExhausted, match="source 'web': demanded 1,000 rows, available"):
        mixed.amend(
            10, phases=[jaxdata.Phase(rows=1000, weights={"web": 1})], on_exhaustion="refuse"
        )
