"""A run that is watched: the bar of `train`, and `jaxdata train --watch` beside it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxdata.look.top import LogReader, RunView
from jaxdata.train.log import RunLog
from tests.commands import run
from tests.look.terminals import on_a_terminal
from tests.train.test_train import command, config, dataset, environment

__all__ = ["config", "dataset"]
START = {"event": "start", "step": 0, "steps": 100}


def step(number: int, loss: float = 2.0) -> dict[str, Any]:
    shares = {"web": {"share": 0.71, "planned": 0.7, "epochs": 0.25}}
    rates = {"tokens_per_second": 500.0, "wait_share": 0.125, "shares": shares}
    return {"step": number, "loss": loss, "targets": 1000, **rates}


def page(*records: dict[str, Any], folder: Path) -> str:
    log = RunLog(folder / "log.jsonl")
    log.write(*records)
    log.close()
    return " ".join(run("train", "--watch", folder, "--once").stdout.split())


def test_a_page_says_where_a_run_is(tmp_path: Path) -> None:
    score = {"step": 0, "bits_per_byte": 3.25}
    saved = {"event": "checkpoint", "step": 40}
    said = page(START, score, step(39), step(40), saved, step(49, 1.5), folder=tmp_path)
    # 50 steps of 1,000 targets are left, at 500 a second
    assert "step 50 of 100 (50.0 %), 0:01:40 left" in said
    assert "loss 1.5000 ██▁" in said
    assert "tokens/s 500" in said
    assert "waited for data 12.5 %" in said
    assert "validation 3.2500 bits per byte, after step 0" in said
    assert "newest checkpoint step 40" in said
    assert "web 71.000 70.000 0.250" in said
    end = {"event": "end", "step": 100, "status": "halted", "reason": "web runs dry"}
    said = page(step(99), end, folder=tmp_path)
    assert "halted after step 100 of 100 (100.0 %) web runs dry" in said


def test_a_run_that_only_began_and_a_folder_that_is_none(tmp_path: Path) -> None:
    assert "step 0 of 100 (0.0 %)" in page(START, folder=tmp_path)
    said = run("train", "--watch", tmp_path / "nowhere", status=1).stderr
    assert "expected its folder (train.output of its config)" in said


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    line = json.dumps(step(3)) + "\n"
    (tmp_path / "log.jsonl").write_text(line + line[:20])
    log = LogReader(tmp_path)
    assert log.new() == [step(3)]
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(line[20:])
    assert log.new() == [step(3)]
    assert log.new() == []


def test_a_resumed_run_goes_on_in_the_same_page() -> None:
    view = RunView("run")
    for record in (START, step(9), {"event": "end", "step": 10, "status": "done"}):
        view.add(record)
    assert view.ended
    view.add({"event": "start", "step": 10, "steps": 200})
    assert (view.done, view.steps, view.ended) == (10, 200, None)


@pytest.mark.exhaustive
def test_whoever_watches_train_sees_a_bar_and_who_does_not_sees_lines(
    config: Path, tmp_path: Path
) -> None:
    given = command(config, tmp_path / "run", "--train.steps", "3")
    status, seen = on_a_terminal(given, environment())
    assert status == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"training .* 3/3 ", shown)
    assert "step 3/3  loss" in shown
    assert re.search(r"scoring [\d,]+ tokens", shown)
    given = command(config, tmp_path / "other", "--train.steps", "3")
    done = subprocess.run(given, env=environment(), capture_output=True, check=True)
    assert b"\x1b" not in done.stdout
    assert b"training " not in done.stdout + done.stderr
