"""`jaxdata validate`: where a source runs dry, and whether the trainer's steps fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.look.preview_tables import preview_tables
from tests.look.validate.conftest import planned, run, write_config


def test_a_run_that_cannot_be_fails_and_shows_how_far_it_would_go(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "--config", str(config), "--epochs", "{wiki: 1}")
    assert status == 1
    assert "FAILED  sources   the mixture needs more rows than its sources have:" in out
    assert "source 'wiki': demanded " in out
    assert "none of its" in out or "of the 200 asked for" in out
    status, found = planned(capsys, config, "--epochs", "{wiki: 1}")
    assert (status, found["ok"]) == (1, False)
    assert found["rows"] == found["exhaustions"][0]["row"] < 500


def test_rows_of_a_phase_are_told_from_how_many_it_has() -> None:
    phase = {
        "phase": 1,
        "first_row": 120,
        "rows": 40,
        "rows_asked": 120,
        "tokens": 9,
        "sources": {},
    }
    found = {"phases": [phase, {**phase, "rows": 120}], "exhaustions": [], "sources": {}}
    titles = [str(table.title) for table in preview_tables(found)]
    assert titles[0] == "phase 1: rows 120 to 159, 40 of the 120 asked for, 9 tokens"
    assert titles[1] == "phase 1: rows 120 to 239, 9 tokens"


@pytest.mark.parametrize("way", ["halt", "renormalize"])
def test_exhaustion_is_shown_beforehand(
    config: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    overrides = {"epochs": {"wiki": 1.5}, "on_exhaustion": way}
    arguments = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", way]
    status, found = planned(capsys, config, *arguments)
    assert status == 0
    loader = jaxdata.load(config, loader={"extras": ["source"]}, **overrides)
    dry_row, rows, last = found["exhaustions"][0]["row"], 0, 0
    wiki = loader.source_names.index("wiki")
    try:
        for batch in loader:
            owner = batch["source"][:, 0]
            last = rows + int(np.flatnonzero(owner == wiki).max(initial=last - rows))
            rows += int((owner >= 0).sum())
    except jaxdata.SourceExhausted:
        assert way == "halt"
    assert rows == found["rows"] == (dry_row if way == "halt" else 500)
    assert last < dry_row
    phase = found["phases"][found["exhaustions"][0]["phase"]]
    assert phase["sources"]["wiki"]["dry_at_row"] == dry_row
    out = run(capsys, "--config", str(config), *arguments)[1]
    assert "dry     sources   runs dry, as allowed:" in out
    assert f"source 'wiki' runs dry in phase {phase['phase']} at row {dry_row} ({way})" in out
    assert "dry at row" in out
    assert "intervals of equal shares" in out
    for name, source in found["sources"].items():
        in_phases = [each["sources"][name]["epochs"] for each in found["phases"]]
        assert sum(in_phases) == pytest.approx(source["run"]["epochs"])
    if way == "renormalize":
        after = found["stretches"][-1]
        assert after["first_row"] == dry_row
        assert after["shares_asked"] == pytest.approx({"web": 0.5, "code": 0.5, "wiki": 0})
        assert f"{dry_row:,} to 499" in out


def test_a_phase_that_lasts_until_a_source_is_dry_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curriculum = json.dumps([{"mix": {"web": 0.5, "wiki": 0.5}}])
    status, out, _ = run(capsys, "--config", str(config), "--curriculum", curriculum)
    rows = len(jaxdata.load(config, curriculum=json.loads(curriculum)).rows)
    assert status == 0
    assert f"ok      sources   the last phase ends at row {rows}, where one runs dry" in out


def test_an_amendment_that_allows_it_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    amended = json.dumps([{"at_row": 320, "on_exhaustion": "renormalize", "epochs": {"wiki": 1.3}}])
    status, out, _ = run(capsys, "--config", str(config), "--amendments", amended)
    assert status == 0
    assert re.search(r"source 'wiki' runs dry in phase 1 at row \d+ \(renormalize\)", out)


@pytest.mark.parametrize(
    ("steps", "allowed", "status", "says"),
    [
        (63, False, 0, "63 steps, all of them trained"),
        (
            40,
            False,
            1,
            "train.steps is 40, and there are rows for 63 steps, so the curr",
        ),
        (40, True, 0, "train.steps is 40, and there are rows for 63 steps"),
        (64, True, 1, "train.steps is 64, but there are rows for only 63 steps"),
    ],
)
def test_the_trainers_steps_are_compared_with_the_budget(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    steps: int,
    allowed: bool,
    status: int,
    says: str,
) -> None:
    more = ["--train.steps", str(steps), "--allow_budget_mismatch", str(allowed).lower()]
    ended, out, _ = run(capsys, "--config", str(config), *more)
    assert ended == status
    assert f"{'FAILED ' if status else 'ok     '} budget    {says}" in out


def test_a_run_that_halts_needs_no_other_steps(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", "halt", "--train.steps", "63"]
    status, out, _ = run(capsys, "--config", str(config), *more)
    assert status == 0
    assert re.search(r"^halts   budget    the run halts after \d+ of 63 steps$", out, re.MULTILINE)


def test_without_a_curriculum_fewer_steps_are_fine(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "all.yaml", dataset=str(dataset), train={"steps": 1})
    status, found = planned(capsys, config)
    assert status == 0
    assert set(found["sources"]) == {"code", "web", "wiki"}


def under_way(config: Path, tmp_path: Path, steps: int, **overrides: Any) -> Path:
    """A run's state after some steps."""
    loader = jaxdata.load(config, **overrides)
    for _ in range(steps):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.get_state()))
    return tmp_path / "state.json"


def test_a_run_under_way_is_judged_with_the_batches_it_had(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = under_way(config, tmp_path, 5, **{"loader.batch_size": 20})
    at = ["--config", str(config), "--state", str(state)]
    status, found = planned(capsys, config, "--state", str(state), "--loader.batch_size", "50")
    assert status == 0
    assert found["steps"] == 5 + (500 - 100) // 50
    out = run(capsys, *at, "--loader.batch_size", "50", "--train.steps", "13")[1]
    assert "ok      state     the run is at row 100, after 5 steps; 8 steps are left" in out
    assert "from row 0 on it had batches of 20 rows" in out
    assert "the next batch has 50 rows" in out
    assert "13 steps, all of them trained" in out
    status, out, _ = run(capsys, *at, "--loader.batch_size", "50", "--train.steps", "10")
    assert status == 1
    assert "FAILED  budget    train.steps is 10, and there are rows for 13 steps" in out


def test_another_config_than_that_of_the_run_fails_by_name(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = under_way(config, tmp_path, 2)
    arguments = ["--config", str(config), "--state", str(state), "--seed", "5"]
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert "FAILED  state     this config cannot go on with that run:" in out
    assert "seed" in out


def test_amendments_and_the_lengths_of_their_rows_are_said(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = under_way(config, tmp_path, 5, **{"loader.batch_size": 20})
    longer = "[{at_row: 200, pack: {seq_len: 128}}]"
    out = run(capsys, "--config", str(config), "--state", str(state), "--amendments", longer)[1]
    assert re.search(r"rows of [\d,]+, 128 from row 200 on in [\d,]+ steps", out)
    assert "amended from row 200 on: still to come" in out
