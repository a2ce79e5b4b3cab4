"""Ctrl-C in a run: what was trained is saved, and the same command goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdata.train.demo import last_logged_step
from jaxdata.train.trainer import Interrupts, Trainer
from tests.train.test_train import command, config, dataset, environment, facts, run, steps_of

__all__ = ["config", "dataset"]


@pytest.mark.exhaustive
def test_steps_are_saved_and_the_same_command_goes_on(config: Path, tmp_path: Path) -> None:
    given = ("--train.steps", "16", "--train.checkpoint_every", "1000")
    run(command(config, tmp_path / "unbroken", *given))
    process = subprocess.Popen(
        command(config, tmp_path / "broken", *given),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for _ in process.stdout or ():
        if last_logged_step(tmp_path / "broken/log.jsonl") >= 5:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    (line,) = [line for line in rest.splitlines() if line.startswith("interrupted. ")]
    saved = int(line.split()[1])
    assert line == (
        f"interrupted. {saved} of 16 steps are saved: the same command goes on from there"
    )
    assert 6 <= saved <= 16
    said = run(command(config, tmp_path / "broken", *given))
    assert f"resumed after step {saved}" in said
    both = ([facts(each) for each in steps_of(tmp_path / name)] for name in ("unbroken", "broken"))
    assert next(both) == next(both), "no step was trained twice"


def test_a_second_ctrl_c_leaves_what_is_sent_to_a_bucket() -> None:
    said: list[str] = []

    def send() -> None:
        raise KeyboardInterrupt

    trainer: Any = SimpleNamespace(
        _checkpoints=SimpleNamespace(latest=4),
        _folder=SimpleNamespace(send=send),
        _say=said.append,
        settings=SimpleNamespace(output="gs://runs/mine"),
        step=4,
        steps=9,
    )
    assert Trainer._save_interrupted(trainer) == (
        "step 4 is not in gs://runs/mine: a run goes on from the last that is"
    )
    assert said == ["sending what is saved to gs://runs/mine; Ctrl-C again ends without it"]


@pytest.mark.parametrize(("times", "done"), [(1, ["begun", "ended"]), (2, ["begun"])])
def test_the_first_one_waits_and_the_second_does_not(times: int, done: list[str]) -> None:
    seen = []

    def step() -> None:
        with Interrupts() as interrupts, interrupts.delayed():
            seen.append("begun")
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            seen.append("ended")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert seen == done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
