"""Training runs, as processes that are killed, interrupted, moved and changed; and the demo."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import jaxdata
from jaxdata.base.errors import InputError, JaxdataError
from jaxdata.config import load, load_config
from jaxdata.look.report.curves import LoggedRun
from jaxdata.train import demo
from jaxdata.train.devices import batch_digest
from jaxdata.train.trainer import Interrupts, amendments_of, read_log
from tests import builders, commands
from tests.commands import python
from tests.conftest import ROOT, xla_flags
from tests.converter.here import convert_here

STEPS = 36
ENVIRONMENT = {**os.environ, "XLA_FLAGS": xla_flags(1)}


@pytest.fixture(scope="module")
def dataset(module_path: Path) -> Path:
    """Two sources and a validation split, in bytes, of this project's own files."""
    parts = {"jaxdata": ("train", "code"), "tests": ("train", "tests"), "tools": ("val", "code")}
    for part, (split, source) in parts.items():
        lines = [{"text": path.read_text()} for path in sorted((ROOT / part).rglob("*.py"))]
        file = module_path / f"{part}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        given = {"source": source, "split": split, "tokenizer": "bytes"}
        convert_here(str(file), output=module_path / "data", **given)
    return module_path / "data"


@pytest.fixture(scope="module")
def config(dataset: Path) -> Path:
    phases = [{"rows": STEPS * 2, "mix": {"code": 0.7, "tests": 0.3}}]
    phases += [{"rows": STEPS * 2, "mix": {"code": 0.4, "tests": 0.6}}]
    train: Any = {"model": {"layers": 1, "width": 16, "heads": 2}}
    train |= {"optimizer": {"warmup_steps": 5, "learning_rate": 0.01}}
    train |= {"log_every": 1, "checkpoint_every": 8}
    given = {"dataset": str(dataset), "curriculum": phases, "pack": {"seq_len": 32}, "train": train}
    return builders.run(dataset.parent, **given, loader={"batch_size": 4}, eval_tokens=512)


def command(config: Path, output: Path, *more: str) -> list[str]:
    return [str(ROOT / "tools/train.py"), str(config), "--train.output", str(output), *more]


def run(arguments: Sequence[str], *, status: int = 0) -> str:
    done = python(*arguments, status=status, env=ENVIRONMENT)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def run_and_end(
    arguments: Sequence[str], output: Path, after_step: int, by: signal.Signals = signal.SIGKILL
) -> tuple[int, str]:
    """The status of a process that gets a signal after a step, and what it still says."""
    given: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, *arguments], env=ENVIRONMENT, **given)
    for _ in process.stdout or ():
        if demo.last_logged_step(output / "log.jsonl") >= after_step:
            break
    process.send_signal(by)
    rest, _ = process.communicate()
    return process.returncode, rest


def steps_of(output: Path) -> list[dict[str, Any]]:
    return [record for record in read_log(output / "log.jsonl") if "loss" in record]


def scores_of(output: Path) -> list[float]:
    return [r["bits_per_byte"] for r in read_log(output / "log.jsonl") if "bits_per_byte" in r]


def facts(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["loss"], record["gradient_norm"], record["targets"], record["rows"]


@pytest.fixture(scope="module")
def unbroken(config: Path) -> Path:
    """A run that nothing disturbed."""
    output = config.parent / "unbroken"
    said = run(command(config, output))
    assert "not compared with their checksums: 3 shards (" in said
    assert f"step {STEPS}/{STEPS}  loss" in said
    return output


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bit(config: Path, unbroken: Path, tmp_path: Path) -> None:
    run_and_end(command(config, tmp_path), tmp_path, 20)
    unfinished = tmp_path / "checkpoints" / "3.orbax-checkpoint-tmp"
    (unfinished / "model").mkdir(parents=True)
    said = run(command(config, tmp_path))
    assert "resumed after step " in said
    assert "not compared with" not in said, "a run says it once, when it begins"
    assert not unfinished.exists(), "a killed process's"
    expected = {record["step"]: facts(record) for record in steps_of(unbroken)}
    assert [*expected] == [*range(STEPS)]
    assert len({rows for *_, rows in expected.values()}) == STEPS
    seen = steps_of(tmp_path)
    for record in seen:  # those that a kill made it train twice as well
        assert facts(record) == expected[record["step"]], f"step {record['step']}"
        assert 0 <= record["wait_share"] <= 1
    assert {record["step"] for record in seen} == set(expected)
    assert seen[-1]["loss"] < seen[0]["loss"] - 0.5
    assert seen[-1]["share/code"] + seen[-1]["share/tests"] == pytest.approx(1)
    assert scores_of(tmp_path) == scores_of(unbroken)
    assert 1 < scores_of(unbroken)[0] < 8
    shown = LoggedRun.of(tmp_path)
    assert [each.loss for each in shown.points] == [expected[step][0] for step in range(STEPS)]
    assert shown.ended == "done"
    reports = [r for r in read_log(unbroken / "log.jsonl") if r.get("event") == "report"]
    assert [report["step"] for report in reports] == [*range(8, STEPS, 8), STEPS]
    for report in reports:
        trained = [targets for _, _, targets, _ in [*expected.values()][: report["step"]]]
        assert report["read"]["tokens"] == sum(trained)


@pytest.mark.slow
def test_what_cannot_go_on_says_why(config: Path, unbroken: Path, tmp_path: Path) -> None:
    said = run(command(config, unbroken, "--train.model.width", "32"), status=1)
    assert "is of another model: model.width was 16, is 32. Set it back, or give another" in said
    said = run(command(config, tmp_path, f"--train.steps={STEPS + 1}"), status=1)
    assert f"is {STEPS + 1}, but the curriculum has rows for only {STEPS} steps" in said


@pytest.mark.slow
def test_a_run_that_follows_a_file_has_the_rows_its_log_says(config: Path, tmp_path: Path) -> None:
    """Killed, and the file changed meanwhile."""
    control = tmp_path / "weights.yaml"
    steered = command(config, tmp_path / "run", "--control", str(control))
    control.write_text("{code: 1, tests: 3}")
    run_and_end(steered, tmp_path / "run", 10)
    records = list(read_log(tmp_path / "run/log.jsonl"))
    [asked] = [record for record in records if record.get("event") == "reweigh"]
    assert asked == asked | {"step": 1, "row": 12, "weights": {"code": 1, "tests": 3}}
    control.write_text("{code: 0.1, tests: 1}")
    said = run(steered)
    resumed = re.search(r"resumed after step (\d+)", said)
    assert resumed, said
    row = 4 * (int(resumed[1]) + 3)
    assert f"mixed from row {row} on by {{'code': 0.1, 'tests': 1}}" in said
    records = list(read_log(tmp_path / "run/log.jsonl"))
    amendments = amendments_of(records)
    assert [each["at_row"] for each in amendments] == [12, row]
    digests = [batch_digest(batch) for batch in jaxdata.load(config, amendments=amendments)]
    for record in steps_of(tmp_path / "run"):
        assert record["rows"] == digests[record["step"]]
        losses = record["losses"].values()
        assert sum(each["targets"] for each in losses) == record["targets"]
        whole = sum(each["loss"] * each["targets"] for each in losses)
        assert whole / record["targets"] == pytest.approx(record["loss"], rel=1e-5)
    assert {record["step"] for record in steps_of(tmp_path / "run")} == {*range(STEPS)}


@pytest.mark.exhaustive
def test_steps_are_saved_and_the_same_command_goes_on(config: Path, tmp_path: Path) -> None:
    given = ("--train.steps", "16", "--train.checkpoint_every", "1000")
    run(command(config, tmp_path / "unbroken", *given))
    broken = command(config, tmp_path / "broken", *given)
    status, rest = run_and_end(broken, tmp_path / "broken", 5, signal.SIGINT)
    assert status == 130, rest
    assert "Traceback" not in rest
    (line,) = [line for line in rest.splitlines() if line.startswith("interrupted. ")]
    saved = int(line.split()[1])
    assert line == (
        f"interrupted. {saved} of 16 steps are saved: the same command goes on from there"
    )
    assert 6 <= saved <= 16
    assert f"resumed after step {saved}" in run(broken)
    both = ([facts(each) for each in steps_of(tmp_path / name)] for name in ("unbroken", "broken"))
    assert next(both) == next(both), "no step was trained twice"


@pytest.mark.parametrize(("times", "done"), [(1, ["begun", "ended"]), (2, ["begun"])])
def test_the_first_interrupt_waits_and_the_second_does_not(times: int, done: list[str]) -> None:
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


def test_the_proof_counts_rows_and_fails_where_one_differs(tmp_path: Path) -> None:
    given: Any = {"loader": {"batch_size": 4}, "train": {"steps": 10}}
    config = load_config(builders.run(tmp_path, {"a": 60}, pack={"seq_len": 32}, **given))
    digests = [batch_digest(batch) for batch in islice(load(config), 10)]
    records = [{"step": step, "loss": 1.0, "rows": rows} for step, rows in enumerate(digests)]

    def proof_of(*more: dict[str, object], hosts: int = 2) -> str:
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(record) + "\n" for record in ({}, *more)))
        return demo.prove_rows(config, log, hosts=hosts)

    says = f"{13 * 4} rows compared: not one differs (3 steps were trained twice)"
    assert all(proof_of(*records[:7], *records[4:], hosts=n) == says for n in (1, 2, 4))
    wrong = {**records[5], "rows": digests[4]}
    for made, says in (
        ([*records, wrong], r"1 have other rows than 2 hosts make .*\[5\]"),
        (records[:9], r"1 are not in the log \(first: \[9\]\)"),
    ):
        with pytest.raises(JaxdataError, match=says):
            proof_of(*made)


def test_the_demo_empties_only_its_own_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("not to be lost")
    with pytest.raises(InputError, match="was not made by a demo: give another folder with"):
        demo.Demo(mine, demo.QUICK, Console(file=io.StringIO())).run()
    assert (mine / "thesis.txt").exists()


@pytest.mark.parametrize("resolves", [True, False])
def test_hosts_on_one_machine_leave_its_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolves: bool
) -> None:
    """Two processes that take the same GPU fail; a GPU is not several devices either."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$JAX_PLATFORMS" "$XLA_FLAGS"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(demo, "_name_resolves", lambda: resolves)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    said: list[str] = []
    demo.train_on_hosts(["demo"], 2, said.append)
    devices = "" if resolves else " --xla_force_host_platform_device_count=2"
    assert said[-1] == f"cpu --mine{devices}"


@pytest.mark.exhaustive
def test_the_whole_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    output.mkdir()
    (output / ".jaxdata-demo").touch()
    (output / "of-an-earlier-demo").touch()
    said = commands.apart("demo", "--quick", "--output", output).stdout
    assert "\x1b" not in said, "plain when piped"
    assert "rows compared: not one differs" in said
    assert "resumed after step 10" in said
    assert "jaxdata convert my.jsonl" in said
    assert not (output / "of-an-earlier-demo").exists()
