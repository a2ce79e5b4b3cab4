"""A run of two phases from a config, amended twice and halted once, as it was really emitted."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, SourceExhausted, StateMismatch
from jaxdata.config import load_config
from jaxdata.look.trace import Tracer
from jaxdata.rows.mixing.preview import planned_intervals
from jaxdata.testing import write_dataset
from tests.builders import run
from tests.look.trace.conftest import TEXTS, Place, asked, emitted, told

FIRST = {
    "at_step": 8,
    "curriculum": [
        {"rows": 150, "mix": {"web": 0.2, "code": 0.3, "wiki": 0.5}},
        {"rows": 3000, "mix": "size**0.5"},
    ],
    "epochs": {"wiki": 5},
}
SECOND = {"at_row": 384, "pack": {"seq_len": 64, "multiple": 4, "strategy": "concat", "overlap": 0}}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("amended")
    sources = {f"train/{name}": documents for name, documents in TEXTS.items()}
    write_dataset(folder / "d", sources, shard_documents=64, record_tokens=50)
    return run(
        folder,
        dataset=str(folder / "d"),
        pack={"seq_len": 32, "block_bytes": 5000, "overlap": 5, "reshuffle": "documents"},
        curriculum=[
            {"rows": 100, "mix": {"web": 0.6, "code": 0.4}},
            {"tokens": 32 * 500, "mix": {"web": 0.3, "code": 0.7}},
        ],
        epochs={"web": 1.5, "code": 2},
        on_exhaustion="halt",
        loader={"batch_size": 24},
    )


class Emitted:
    """What was delivered, told from the tokens alone, which are all different."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], list[Place]] = defaultdict(list)
        self.targets: Counter[int] = Counter()

    def leg(self, config: Path, hosts: int, state: Any, steps: int | None, **more: Any) -> Any:
        """Some steps on so many hosts; the state after them, and why they ended."""
        group = [jaxdata.load(config, shard=(host, hosts), **more) for host in range(hosts)]
        for one in group:
            if state:
                one.set_state(state)
        while steps is None or steps > 0:
            step = group[0].step
            ends = []
            parts = []
            for one in group:
                try:
                    parts.append(next(one))
                except (StopIteration, SourceExhausted) as error:
                    ends.append(str(error))
            if ends:
                assert len(ends) == hosts, "all hosts end at the same step"
                assert len(set(ends)) == 1
                return group[0].get_state(), ends[0]
            batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            for whose, place in emitted(batch, step):
                self.places[whose].append(place)
            self.targets.update(batch["targets"][batch["loss_mask"]].tolist())
            steps = None if steps is None else steps - 1
        states = {json.dumps(one.get_state()) for one in group}
        assert len(states) == 1
        return json.loads(states.pop()), ""


def test_a_run_amended_twice_and_halted_once(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, hosts = Emitted(), 3
    state, _ = seen.leg(config, hosts, None, 8)
    assert state["next_row"] == 192
    state, _ = seen.leg(config, hosts, state, 8, amendments=[FIRST])
    assert state["next_row"] == 384
    state, said = seen.leg(config, hosts, state, None, amendments=[FIRST, SECOND])
    assert "runs dry in phase 3 at row" in said
    assert "the run halts there" in said
    third = {"at_row": state["next_row"], "on_exhaustion": "renormalize"}
    everything = {"amendments": [FIRST, SECOND, third]}
    state, said = seen.leg(config, hosts, state, None, **everything)
    assert [each["row"] for each in state["amendments"]] == [192, 384, third["at_row"]]

    mixed = jaxdata.load(config, **everything).rows
    assert state["next_row"] == len(mixed)
    intervals = planned_intervals(mixed.table)
    assert seen.targets.total() == sum(
        token_counts.trained_tokens
        for each in intervals
        for token_counts in each.token_counts.values()
    ), "the plan knew how many tokens it would be"
    most = {"web": 1.5, "code": 2, "wiki": 5}
    read = mixed.epochs()
    for name, documents in TEXTS.items():
        times = [seen.targets[int(token)] for document in documents for token in document[1:]]
        assert max(times) <= np.ceil(most[name])
        assert read[name] <= most[name] + 0.01, "epochs are rounded up to whole rows"
        assert np.mean(times) == pytest.approx(read[name], abs=0.02)
        if read[name] == int(read[name]):
            assert set(times) == {int(read[name])}
    assert any(read[name] == most[name] == int(most[name]) for name in most)

    ended = jaxdata.load(config, **everything)
    ended.set_state(state)  # it knows that the step at which the run halted was not full
    report = ended.report()
    assert report.tokens == seen.targets.total()
    owner = {int(t): name for name, each in TEXTS.items() for document in each for t in document}
    tokens = Counter(dict.fromkeys(TEXTS, 0))
    for token, times in seen.targets.items():
        tokens[owner[token]] += times
    assert {name: each.tokens for name, each in report.sources.items()} == tokens
    tracer = Tracer(ended, None)
    for name, documents in TEXTS.items():
        for number in range(len(documents)):
            pieces = [asdict(piece) for piece in tracer.pieces(name, number)]
            assert told(pieces) == seen.places[name, number], (name, number)
    saved, amendments = tmp_path / "state.json", json.dumps(everything["amendments"])
    saved.write_text(json.dumps(state))
    ways = ["--config", config, "--amendments", amendments, "--state", saved]
    found = asked(capsys, *ways, "--document", "code:7")["documents"][0]
    assert told(found["pieces"]) == seen.places["code", 7]


def test_the_config_names_what_is_wrong(config: Path) -> None:
    def refusal(*amendments: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            jaxdata.load(config, amendments=list(amendments))
        return str(refused.value)

    assert "amendments.1: cannot amend a mixture of 342 rows from row 999 on" in refusal(
        {"at_row": 192, "curriculum": [{"rows": 150, "mix": {"web": 1}}]}, {**SECOND, "at_row": 999}
    )
    assert "amendments.0.curriculum.0.mix names the source 'x'" in refusal(
        {"at_row": 4, "curriculum": {"rows": 1, "mix": {"x": 1}}}
    )
    assert "amendments.0.epochs names the source 'x'" in refusal({"at_row": 4, "epochs": {"x": 1}})
    assert "amendments.0: cannot seek to step 9999: the steps are 0 to" in refusal(
        FIRST | {"at_step": 9999}
    )
    misspelled = refusal({"at_row": 4, "pack": {"seqlen": 4}})
    assert "'amendments.0.pack.seqlen'; did you mean 'amendments.pack.seq_len'?" in misspelled
    state = jaxdata.load(config)
    state.seek(row=240)
    with pytest.raises(StateMismatch, match="this run has an amendment at row 192"):
        jaxdata.load(config, amendments=[FIRST]).set_state(state.get_state())
    assert load_config(config, {"amendments": [FIRST]}).amendments[0].at_step == 8
