"""`jaxdata inspect` of a run that went on elsewhere: states of all kinds, skips, other hosts."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxdata
from jaxdata.look.states import read_state
from tests.look.trace.conftest import Place, asked, emitted, run, told


def test_after_a_resume_with_skips_on_three_hosts(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run changes its batch size and its hosts, and rows are left out on the way."""
    seen: dict[tuple[str, int], list[Place]] = defaultdict(list)

    def record(batch: Any, step: int) -> None:
        for whose, place in emitted(batch, step):
            seen[whose].append(place)

    first = jaxdata.load(config, loader={"skip_rows": [[50, 61]]})
    for step in range(9):
        record(next(first), step)
    first.skip(230, 300)
    state = json.loads(json.dumps(first.get_state()))
    hosts = [jaxdata.load(config, shard=(host, 3), loader={"batch_size": 30}) for host in range(3)]
    for host in hosts:
        host.set_state(state)
    step = 9
    for parts in zip(*hosts, strict=True):
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        record(batch, step)
        step += 1
        if step == 14:
            saved = tmp_path / "state.json"
            saved.write_text(json.dumps(hosts[1].get_state()))
    ways = ["--config", config, "--loader.batch_size", 30, "--state", saved]
    for whose in [("web", 3), ("web", 77), ("code", 12), ("wiki", 5), ("wiki", 30)]:
        found = asked(capsys, *ways, "--document", f"{whose[0]}:{whose[1]}")["documents"][0]
        trained = [piece for piece in found["pieces"] if piece["step"] is not None]
        assert told(trained) == seen[whose]
        assert [p["trained"] for p in trained] == [p["step"] < 14 for p in trained]
    lost = {row for a, b in ((50, 61), (230, 300)) for row in range(a, b)}
    assert {p["row"] for p in found["pieces"] if p["step"] is None} <= lost
    assert asked(capsys, *ways)["step"] == 14, "the batch that comes next"
    for at in (2, 8, 9, 13, 20):
        pieces = asked(capsys, *ways, "--step", at)["pieces"]
        expected = {
            (whose, place) for whose, places in seen.items() for place in places if place[0] == at
        }
        owners_told = [(p["source"], p["document"]) for p in pieces]
        assert set(zip(owners_told, told(pieces), strict=True)) == expected
    said = run(capsys, *ways, "--document", "wiki:5")
    assert "was in step" in said
    assert "will be in step" in said


def test_states_of_all_kinds(config: Path, tmp_path: Path) -> None:
    loader = jaxdata.load(config)
    states = []
    with ocp.CheckpointManager((tmp_path / "run/checkpoints").resolve()) as manager:
        for step in (1, 2, 10):
            next(loader)
            states.append(json.loads(json.dumps(loader.get_state())))
            saved = ocp.args.JsonSave(loader.get_state())
            manager.save(step, args=ocp.args.Composite(loader=saved))
        manager.wait_until_finished()
    run_folder = tmp_path / "run"
    for path in (run_folder, run_folder / "checkpoints", run_folder / "checkpoints/10"):
        assert read_state(path) == states[-1]
    assert read_state(run_folder / "checkpoints/2") == states[1]
    assert read_state(run_folder / "checkpoints/2/loader") == states[1]
    (run_folder / "checkpoints/10/loader/metadata").write_bytes(b'{"version"')
    with pytest.raises(jaxdata.InputError, match=r"10/loader/metadata is damaged: it is no JSON"):
        read_state(run_folder)
    with pytest.raises(jaxdata.InputError, match="there is no such file or folder"):
        read_state(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(jaxdata.InputError, match=r"expected the JSON of loader\.get_state\(\)"):
        read_state(tmp_path / "empty")
