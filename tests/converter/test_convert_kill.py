"""Conversions whose processes are killed at any moment."""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base import processes
from jaxdata.base.errors import WorkerDied
from jaxdata.converter.engines import Attempt
from tests.converter.here import ThisProcess, convert_here, receipts, records, run, write_lines
from tests.dataset.trees import tree

pytestmark = pytest.mark.slow
UNIT_BYTES = 20_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 33 units of work in three files."""
    folder, chance = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        words = ("".join(chance.choices("abcdefg \n", k=chance.randrange(400))) for _ in range(999))
        write_lines(folder / name, [*records(*words), b"bad"])
    packed = folder / "b.jsonl"
    packed.with_suffix(".jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a conversion writes that nobody kills and nobody is beside."""
    output = tmp_path_factory.mktemp("expected") / "out"
    run(corpus, output, unit_bytes=UNIT_BYTES, minhash=True)
    return tree(output)


OPTIONS = ["--source", "web", "--tokenizer", "bytes", "--minhash", "--unit-bytes", str(UNIT_BYTES)]


def command(corpus: Path, output: Path) -> list[str]:
    words = ["convert", str(corpus), "--output", str(output), *OPTIONS, "--workers", "2"]
    return [sys.executable, "-m", "jaxdata", *words]


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
    while len(receipts(output)) < units and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(how)
    _, errors = process.communicate()
    return process.returncode, errors


def test_a_stopped_conversion_is_finished_by_the_same_command_and_no_unit_done_twice(
    corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    output = tmp_path / "out"
    words = command(corpus, output)
    code, _ = stop_after(words, output, 3, signal.SIGKILL)
    assert code == -signal.SIGKILL
    code, errors = stop_after(words, output, 12, signal.SIGINT)
    assert code == 130
    assert errors == "interrupted. Finished work is kept: the same command resumes\n"
    assert not (output / "dataset.json").exists()
    done = {path.stem for path in receipts(output)}
    shards = {path: path.stat().st_mtime_ns for path in output.glob("train/web/*.array_record")}
    subprocess.run(words, check=True, capture_output=True)
    assert tree(output) == expected
    kept = {path.stem for path, at in shards.items() if path.stat().st_mtime_ns == at}
    assert kept == done


@pytest.mark.parametrize("deaths", [3, 4])
def test_a_unit_is_given_to_another_worker_until_four_have_died_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, deaths: int
) -> None:
    class Dying(ThisProcess):
        def start(self, task: Any, key: Attempt) -> None:
            if task.name == "00000-00001" and key.number <= deaths:
                raise WorkerDied("the worker is gone")
            super().start(task, key)

    source = write_lines(tmp_path / "a.jsonl", records(*map(str, range(9))))
    options = {"source": "web", "tokenizer": "bytes", "unit_bytes": 40, "output": tmp_path / "out"}
    with mock.patch("tests.converter.here.ThisProcess", Dying):
        if deaths < 4:
            assert convert_here(source, **options).documents == 9
        else:
            with pytest.raises(WorkerDied) as error:
                convert_here(source, **options)
            assert str(error.value) == (
                "the worker is gone; 4 workers have died on the unit 00000-00001 (from "
                f"{source}). If memory is short, use fewer --workers. Finished work is kept: the "
                "same command resumes"
            )
    says = f"the worker is gone; the unit 00000-00001 (from {source}) is retried"
    assert caplog.messages == [says] * 3
    assert run(source, tmp_path / "out", unit_bytes=40).documents == 9


@pytest.mark.exhaustive
def test_killed_workers_are_replaced(
    corpus: Path,
    tmp_path: Path,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers: list[processes.Worker] = []
    killed: list[int] = []
    calls, start = count(), processes.Worker

    def kill(_done: int, _total: int) -> None:
        if next(calls) in (2, 9, 20, 21):
            killed.append(next(one.pid for one in workers if one.pid not in killed))
            os.kill(killed[-1], signal.SIGKILL)

    patched = lambda *given: workers.append(start(*given)) or workers[-1]  # noqa: E731
    monkeypatch.setattr(processes, "Worker", patched)
    options = {"unit_bytes": UNIT_BYTES, "minhash": True, "workers": 2}
    run(corpus, tmp_path / "out", progress=kill, **options)
    assert tree(tmp_path / "out") == expected
    assert re.search(
        rf"the worker process {killed[0]} \(jaxdata\.converter\.engines:serve\) ended early: "
        r"SIGKILL.*; the unit 0000\d-000\d\d \(from .*\) is retried",
        caplog.text,
    )
