"""Another recipe from a row on: what was consumed stays, what was not comes once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.feed.saved_state import sealed
from jaxdata.map_datasets import MixedDataset
from jaxdata.testing import (
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_same_batches,
    assert_same_on_hosts,
    distinct_documents,
)


def sources(lengths: dict[str, list[int]], masked: bool = False) -> dict[str, Any]:
    """Documents in which every token is another, over all sources."""
    found, first = {}, 1
    for name, each in lengths.items():
        documents = distinct_documents(each, first)
        first += sum(each)
        masks = [np.arange(len(d)) % 3 > 0 for d in documents] if masked else None
        found[name] = jaxdata.ArrayDocuments(documents, masks, name=f"train/{name}")
    return found


def packed(docs: dict[str, Any], **settings: Any) -> dict[str, Any]:
    small: Any = {} if settings.get("order") == 2 else {"order": 1, "block": 8}
    return {name: jaxdata.pack(each, **{**small, **settings}) for name, each in docs.items()}


@dataclass
class Seen:
    """Targets with loss that were delivered, of all hosts, counted as they come."""

    times: dict[int, int] = field(default_factory=dict)

    def add(self, batch: dict[str, np.ndarray]) -> None:
        for token in batch["targets"][batch["loss_mask"]].tolist():
            self.times[token] = self.times.get(token, 0) + 1

    def of(self, docs: Any) -> list[int]:
        """How often each target of a source came."""
        targets = [
            int(token) for number in range(len(docs)) for token in docs[number]["tokens"][1:]
        ]
        return [self.times.get(token, 0) for token in targets]


def deliver(mixed: Any, batch_size: int, hosts: int, state: Any = None) -> Iterator[Any]:
    """All batches of a run, the parts of all hosts; the state after each."""
    group = [
        jaxdata.Loader(mixed, batch_size=batch_size, shard=(host, hosts), prefetch=0)
        for host in range(hosts)
    ]
    for one in group:
        if state:
            one.set_state(state)
    for parts in zip(*group, strict=True):
        assert len({json.dumps(one.get_state()) for one in group}) == 1
        yield parts, group[0].get_state()


POOLS = {"segment_bytes": 40, "pool_bytes": 120}
PACKS = [
    {"seq_len": 16},
    {"seq_len": 32, "strategy": "concat"},
    {"seq_len": 24, "overlap": 6},
    {"seq_len": 16, "strategy": "pad", "order": 1, "block": 5},
    {"seq_len": 48, "max_segments": 2},
    {"seq_len": 16, "order": 2, "lanes": 8, **POOLS},
]


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]]:
    length = st.one_of(st.integers(1, 12), st.integers(1, 120))
    lengths = {
        name: draw(st.lists(length, min_size=3, max_size=40)) for name in ("web", "code", "wiki")
    }
    change = st.tuples(st.sampled_from(PACKS), st.floats(0, 1))
    return lengths, draw(st.lists(change, min_size=1, max_size=3))


BEGUN: list[dict[str, Any]] = [{}, {"order": 2, "lanes": 4, **POOLS}]


@given(plans(), st.booleans(), st.integers(1, 3), st.sampled_from(BEGUN))
def test_packed_anew_on_the_way_every_token_comes_once(
    plan: tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]],
    masked: bool,
    hosts: int,
    begun: dict[str, Any],
) -> None:
    lengths, changes = plan
    docs = sources(lengths, masked)
    rows = packed(docs, seq_len=20, **begun)
    if not all(len(each) for each in rows.values()):
        return
    mixed = jaxdata.mix(rows, weights="proportional", on_exhaustion="renormalize")
    row = 0
    for pack, where in changes:
        row += round((len(mixed) - row) * where)
        if row < len(mixed):
            mixed = mixed.amend(row, rows=packed(docs, **pack))
    batches = [part for parts, _ in deliver(mixed, 3 * hosts, hosts) for part in parts]
    assert_exactly_once(batches, list(docs.values()))


def test_two_epochs_with_a_change_in_the_middle_of_each() -> None:
    lengths = {
        name: np.random.default_rng(seed).integers(2, 90, 60).tolist()
        for seed, name in enumerate(("web", "code"))
    }
    docs = sources(lengths)
    mixed = jaxdata.mix(packed(docs, seq_len=32), epochs={"web": 2, "code": 2})
    first, second = round(len(mixed) * 0.3), round(len(mixed) * 0.7)
    mixed = mixed.amend(first, rows=packed(docs, seq_len=16, overlap=4))
    mixed = mixed.amend(first + (second - first) * 2, rows=packed(docs, seq_len=64))
    assert mixed.epochs() == {"web": 2.0, "code": 2.0}
    batches = [part for parts, _ in deliver(mixed, 4, 1) for part in parts]
    assert {batch["inputs"].shape for batch in batches} == {(4, 32), (4, 16), (4, 64)}
    assert_exactly_once(batches, list(docs.values()), epochs=2)


@pytest.mark.parametrize(("times", "most"), [(0.5, 1), (0.25, 1), (1.5, 2)])
def test_a_part_of_an_epoch_stays_a_part_when_packed_anew(times: float, most: int) -> None:
    docs = sources({"web": np.random.default_rng(3).integers(2, 60, 400).tolist()})
    mixed = jaxdata.mix(packed(docs, seq_len=32), weights={"web": 1}, epochs={"web": times})
    mixed = mixed.amend(len(mixed) // 2, rows=packed(docs, seq_len=16))
    assert mixed.epochs()["web"] == pytest.approx(times, abs=0.01)
    seen = Seen()
    for batch in jaxdata.Loader(mixed, batch_size=8):
        seen.add(batch)
    counted = seen.of(docs["web"])
    assert max(counted) == most
    assert np.mean(counted) == pytest.approx(times, abs=0.02)


def run_of_two_phases(docs: dict[str, Any]) -> MixedDataset:
    """Two phases of which the second asks for more than there is."""
    named = {name: docs[name] for name in ("web", "code")}
    phases = [
        jaxdata.Phase(rows=60, weights={"web": 0.7, "code": 0.3}),
        jaxdata.Phase(rows=400, weights={"web": 0.5, "code": 0.5}),
    ]
    return jaxdata.mix(packed(named, seq_len=32), phases=phases, on_exhaustion="halt")


@pytest.fixture(scope="module")
def docs() -> dict[str, Any]:
    random = np.random.default_rng(7)
    counts = {"web": 260, "code": 120, "books": 40}
    return sources({name: random.integers(2, 110, n).tolist() for name, n in counts.items()})


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
