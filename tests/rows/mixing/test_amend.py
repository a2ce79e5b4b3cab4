"""Another recipe from a row on: what was consumed stays, and what is left of the plan goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, SourceExhausted, StateMismatch
from jaxdata.feed.state import sealed
from jaxdata.testing import (
    assert_resumes_everywhere,
    assert_same_batches,
    assert_same_on_hosts,
    distinct_documents,
    write_dataset,
)

LENGTHS = np.random.default_rng(7).integers(2, 110, 420).tolist()
DOCUMENTS = distinct_documents(LENGTHS)
DOCS: dict[str, Any] = {
    name: jaxdata.ArrayDocuments(DOCUMENTS[part], name=f"train/{name}")
    for name, part in {
        "web": slice(260),
        "code": slice(260, 380),
        "books": slice(380, 420),
    }.items()
}


def packed(names: Iterable[str] = DOCS, **settings: Any) -> dict[str, Any]:
    small = {"block_bytes": 3_200}
    return {name: jaxdata.pack(DOCS[name], **{**small, **settings}) for name in names}


def run_of_two_phases() -> Any:
    """Two phases of which the second asks for more than there is."""
    phases = [
        jaxdata.Phase(rows=60, weights={"web": 0.7, "code": 0.3}),
        jaxdata.Phase(rows=400, weights={"web": 0.5, "code": 0.5}),
    ]
    return jaxdata.mix(packed(["web", "code"], seq_len=32), phases=phases, on_exhaustion="halt")


def test_the_past_stays_and_cannot_be_edited() -> None:
    first = run_of_two_phases()
    later = first.amend(84, phases=[jaxdata.Phase(rows=60, weights={"web": 1})])
    one = jaxdata.Loader(first, batch_size=6)
    states = [one.get_state() for _ in one]
    at = {state["next_row"]: state for state in states}
    assert_same_batches((later[row] for row in range(84)), (first[row] for row in range(84)))
    other = jaxdata.Loader(later, batch_size=6)
    with pytest.raises(StateMismatch) as refused:
        other.set_state(at[90])
    assert str(refused.value).splitlines() == [
        "the loader state is at row 90; rows already consumed cannot be changed:",
        "  the amendment at row 84 in the state: absent, here: {'phases': [[60, {'web': 1}]]}",
        "amend at row 90 or later, or resume from an earlier state",
    ]
    other.set_state(at[84])
    next(other)
    amended = other.get_state()
    assert amended["amendments"] == [{"row": 84, "phases": [[60, {"web": 1}]]}]
    with pytest.raises(StateMismatch, match=r"row 84 in the state: {'phases.*, here: absent"):
        one.set_state(amended)
    elsewhere = first.amend(84, phases=[jaxdata.Phase(rows=60, weights={"code": 1})])
    with pytest.raises(StateMismatch, match=r"row 84 in the state: .*'web.*, here: .*'code"):
        jaxdata.Loader(elsewhere, batch_size=6).set_state(amended)
    other.seek(row=80)
    one.set_state(other.get_state())  # back before it: the future may be another one again
    assert one.next_row == 80


def test_it_resumes_everywhere_on_any_hosts() -> None:
    mixed = run_of_two_phases().amend(
        63, rows=packed(seq_len=64), phases=[jaxdata.Phase(rows=40, weights="proportional")]
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
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    settings = {"batch_size": ramp, "skip_rows": [(20, 27)], "expand": "device"}
    assert_same_batches(jaxdata.Loader(mixed, sharding=sharding, **settings), batches)
    edge = next(k for k, batch in enumerate(batches) if batch["inputs"].shape[1] == 64)
    one = loader()
    one.seek(step=edge)
    assert one.next_row == 63, "the last batch before it was completed"
    assert_same_batches(one, batches[edge:])
    mapped = jaxdata.Loader(mixed.map(dict), batch_size=ramp, skip_rows=[(20, 27)])
    assert_same_batches(mapped, batches)


def halting(times: float = 1, mode: str = "halt") -> jaxdata.Loader:
    phase = jaxdata.Phase(rows=680, weights={"web": 0.7, "code": 0.3})
    rows = packed(["web", "code"], seq_len=32)
    mixed = jaxdata.mix(rows, phases=[phase], epochs={"web": times}, on_exhaustion=mode)
    return jaxdata.Loader(mixed, batch_size=8)


def targets(batches: Iterable[dict[str, np.ndarray]]) -> list[int]:
    return [token for each in batches for token in each["targets"][each["loss_mask"]].tolist()]


def test_a_halted_run_resumed_with_renormalize_remembers_it() -> None:
    halted, going_on = halting(), halting(mode="renormalize")
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
    again = halting(mode="renormalize")
    again.set_state(json.loads(json.dumps(after)))
    assert again.get_state() == after
    with pytest.raises(StateMismatch, match=f"next_row {after['next_row']}: expected 0 to {row}"):
        halting().set_state(after)


def test_a_halted_run_goes_on_with_more_epochs() -> None:
    halted, longer = halting(0.5), halting(0.75)
    seen = targets(next(halted) for _ in range(len(halted)))
    state = halted.get_state()
    longer.set_state(state)
    assert longer.get_state()["amendments"] == [
        {"row": state["next_row"], "epochs": {"web": 0.75}, "was": {"web": 0.5}}
    ]
    seen += targets(next(longer) for _ in range(len(longer) - longer.step))
    assert len({*seen}) == len(seen), "nothing is repeated"
    with pytest.raises(StateMismatch, match=r"epochs\[web\] was 0.75, is 0.5: set epochs"):
        halting(0.5).set_state(longer.get_state())
    dry = sealed(halting(0.5, "renormalize").get_state() | {"next_row": 600})
    with pytest.raises(StateMismatch, match="epochs"):  # its rows after web ran dry would differ
        halting(0.75, "renormalize").set_state(dry)


NARROW, WIDE = {"seq_len": 256}, {"seq_len": 512}
ALL_WEB = [{"rows": 7, "mix": {"web": 1.0}}]
BOTH = [{"rows": 9, "mix": {"web": 1.0, "code": 2.0}}]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(5).integers(40, 900, 200).tolist()
    documents = [np.arange(1, length + 1) for length in lengths]
    folder = tmp_path_factory.mktemp("together")
    write_dataset(folder, {"train/web": documents, "train/code": documents[:90]})
    return folder


def opened(dataset: Path, *amendments: dict[str, Any]) -> jaxdata.Loader:
    config = {
        "dataset": str(dataset),
        "pack": NARROW,
        "curriculum": [{"rows": 80, "mix": {"web": 0.6, "code": 0.4}}],
        "loader": {"batch_size": 8, "prefetch": 0},
        "amendments": list(amendments),
    }
    return jaxdata.load(config)


def test_amendments_of_a_config_at_one_row_are_one(dataset: Path) -> None:
    both = opened(dataset, {"at_row": 16, "pack": WIDE, "curriculum": BOTH})
    expected = list(both)
    assert [batch["inputs"].shape[1] for batch in expected] == [256] * 2 + [512] * 2
    (noted,) = both.get_state()["amendments"]
    assert noted.keys() == {"row", "phases", "seq_len", "sources"}
    pack, curriculum = {"at_row": 16, "pack": WIDE}, {"at_step": 2, "curriculum": BOTH}
    for order in permutations([pack, curriculum]):
        one = opened(dataset, *order)
        assert_same_batches(list(one), expected)
        assert one.get_state() == both.get_state()
    more = {"at_row": 16, "curriculum": [{"rows": 600, "mix": {"web": 1.0, "code": 1.0}}]}
    with pytest.raises(SourceExhausted, match="source 'code': demanded 300 rows"):
        opened(dataset, more)
    epochs = {"at_row": 16, "epochs": {"web": 9, "code": 9}}
    assert len(opened(dataset, more, epochs).rows) == len(opened(dataset, epochs, more).rows) == 616


AT_4 = {"at_row": 4}
REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    (
        [{"at_row": 32, "pack": WIDE}, {"at_row": 16, "curriculum": ALL_WEB}],
        r"^amendments\.0: cannot amend a mixture of 23 rows",
    ),
    ([{"at_step": 11, "pack": WIDE}], r"^amendments\.0: cannot seek to step 11: the steps are"),
    (
        [AT_4 | {"epochs": {"web": 2}}, AT_4 | {"pack": {"strategy": "concat", "overlap": 8}}],
        r"^amendments\.0, amendments\.1: overlap=8 with strat",
    ),
    (
        [AT_4 | {"curriculum": {"rows": 1, "mix": {"x": 1}}}],
        r"amendments\.0\.curriculum\.0\.mix names the source 'x'",
    ),
    ([AT_4 | {"epochs": {"x": 1}}], r"amendments\.0\.epochs names the source 'x'"),
    (
        [AT_4 | {"pack": {"seqlen": 4}}],
        r"unknown field 'amendments\.0\.pack\.seqlen'; did you mean 'seq_len'",
    ),
]


@pytest.mark.parametrize(("amendments", "message"), REFUSED)
def test_a_config_is_told_which_amendment_is_wrong(
    dataset: Path, amendments: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(dataset, *amendments)


@pytest.mark.parametrize("mode", ["refuse", "halt", "renormalize"])
def test_fewer_epochs_than_were_read_of_a_source_that_is_weighed_no_more(mode: str) -> None:
    """It is dry already, which ends nothing: no later phase asks for it."""
    docs = distinct_documents([9] * 200)
    rows = {name: jaxdata.pack(jaxdata.ArrayDocuments(docs, name=name), seq_len=8) for name in "ab"}
    phases = [
        jaxdata.Phase(rows=60, weights={"a": 1, "b": 1}),
        jaxdata.Phase(rows=40, weights={"b": 1}),
    ]
    run = jaxdata.mix(rows, phases=phases, on_exhaustion=mode)
    amended = run.amend(60, epochs={"a": 0.1})
    assert amended.counts(len(amended)) == run.counts(len(run)) == {"a": 30, "b": 70}
    assert not amended.exhaustions
