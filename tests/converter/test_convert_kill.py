"""Conversions that are killed at any moment, and finished by the same command."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from jaxdata import processes
from jaxdata.converter import convert
from jaxdata.errors import WorkerDied
from jaxdata.processes import Worker
from tests.format.trees import tree

pytestmark = pytest.mark.slow
UNIT_BYTES = 20_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 units of work in three files."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), 3_000)


def write_corpus(folder: Path, records: int) -> Path:
    chance = random.Random(1)
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl"):
        words = (
            "".join(chance.choices("abcdefg \n", k=chance.randrange(400))) for _ in range(records)
        )
        data = b"".join(json.dumps({"text": word}).encode() + b"\n" for word in words) + b"bad\n"
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a conversion that nobody kills writes."""
    output = tmp_path_factory.mktemp("expected") / "out"
    made = {"source": "web", "tokenizer": "bytes", "minhash": True}
    convert(corpus, output=output, unit_bytes=UNIT_BYTES, workers=1, **made)
    return tree(output)


def command(corpus: Path, output: Path) -> list[str]:
    options = ["--source", "web", "--tokenizer", "bytes", "--minhash", "--workers", "2"]
    return [
        *(sys.executable, "-m", "jaxdata", "convert", str(corpus), "--output", str(output)),
        *options,
        *("--unit-bytes", str(UNIT_BYTES)),
    ]


def receipts(output: Path) -> int:
    return len(list(output.glob("train/web/work/*.receipt")))


def stop_after(
    command: list[str], output: Path, units: int, how: signal.Signals
) -> tuple[int, str]:
    """Run a command until so many units have receipts, then send it a signal.

    On a busy machine it may be done before it is looked at: then it is run anew.
    """
    before = output.with_name("before")
    if output.exists():
        shutil.copytree(output, before)
    for _ in range(5):
        code, errors = _stop_once(command, output, units, how)
        if code != 0:
            shutil.rmtree(before, ignore_errors=True)
            return code, errors
        shutil.rmtree(output)
        if before.exists():
            shutil.copytree(before, output)
    raise AssertionError("five times the conversion was done before it could be stopped")


def _stop_once(
    command: list[str], output: Path, units: int, how: signal.Signals
) -> tuple[int, str]:
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # Tests that run in the background ignore Ctrl-C, and so would their children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    while receipts(output) < units and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(how)
    _, errors = process.communicate()
    return process.returncode, errors


@pytest.mark.exhaustive
@pytest.mark.parametrize("units", [0, 1, 7, 30, 60])
def test_a_killed_conversion_is_finished_by_the_same_command(
    corpus: Path, tmp_path: Path, expected: dict[str, str], units: int
) -> None:
    output = tmp_path / "out"
    code, _ = stop_after(command(corpus, output), output, units, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (output / "dataset.json").exists()
    kept = receipts(output)
    assert kept >= units
    subprocess.run(command(corpus, output), check=True, capture_output=True)
    assert tree(output) == expected


def test_killed_again_and_again(corpus: Path, tmp_path: Path, expected: dict[str, str]) -> None:
    output = tmp_path / "out"
    for units in (5, 20, 50, 70):
        stop_after(command(corpus, output), output, units, signal.SIGKILL)
    subprocess.run(command(corpus, output), check=True, capture_output=True)
    assert tree(output) == expected


def test_interrupting_says_how_to_go_on(
    corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    output = tmp_path / "out"
    code, errors = stop_after(command(corpus, output), output, 10, signal.SIGINT)
    assert code == 130
    assert errors == ("interrupted. Finished work is kept: the same command resumes\n")
    subprocess.run(command(corpus, output), check=True, capture_output=True)
    assert tree(output) == expected


def run_killing(
    corpus: Path, output: Path, kill: Callable[[list[Worker]], None], patch: pytest.MonkeyPatch
) -> None:
    """Convert; `kill` is called with the workers so far, whenever a unit is done."""
    workers: list[Worker] = []
    start = processes.Worker
    patch.setattr(processes, "Worker", lambda *args: workers.append(start(*args)) or workers[-1])
    convert(
        corpus,
        output=output,
        source="web",
        tokenizer="bytes",
        unit_bytes=UNIT_BYTES,
        minhash=True,
        workers=2,
        progress=lambda done, _: kill(workers) if done else None,
    )


@pytest.mark.exhaustive
def test_killed_workers_are_replaced(
    corpus: Path,
    tmp_path: Path,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = count()
    killed: list[int] = []

    def kill(workers: list[Worker]) -> None:
        if next(calls) in (0, 20, 60, 61):
            living = [worker.pid for worker in workers if worker.pid not in killed]
            killed.append(living[0])  # the one that has been at it for longest
            os.kill(killed[-1], signal.SIGKILL)

    run_killing(corpus, tmp_path / "out", kill, monkeypatch)
    assert len(killed) == 4
    assert tree(tmp_path / "out") == expected
    assert (
        f"the worker process {killed[0]} (jaxdata.converter.worker:serve) ended early"
        in caplog.text
    )
    assert re.search(r"SIGKILL.*; the unit 0000\d-000\d\d \(from .*\) is retried", caplog.text)


@pytest.mark.exhaustive
def test_a_unit_that_kills_every_worker_is_named(
    corpus: Path, tmp_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(workers: list[Worker]) -> None:
        if receipts(tmp_path / "out") >= 5:
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)

    says = r"4 workers have died on the unit 0000.*use fewer --workers.*the same command resumes"
    with pytest.raises(WorkerDied, match=says):
        run_killing(corpus, tmp_path / "out", kill, monkeypatch)
    assert receipts(tmp_path / "out") >= 5
    run_killing(corpus, tmp_path / "out", lambda _: None, monkeypatch)
    assert tree(tmp_path / "out") == expected


@pytest.mark.exhaustive
def test_a_finished_unit_is_not_done_again(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    stop_after(command(corpus, output), output, 30, signal.SIGKILL)
    time.sleep(1)  # for the workers to notice
    shards = {path: path.stat().st_mtime_ns for path in output.glob("train/web/*.array_record")}
    done = {path.stem for path in output.glob("train/web/work/*.receipt")}
    subprocess.run(command(corpus, output), check=True, capture_output=True)
    for path, written in shards.items():
        assert (path.stat().st_mtime_ns == written) == (path.stem in done)
