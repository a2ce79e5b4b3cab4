"""Conversions in processes that are killed at any moment, or write to one source at once.

Leases of buckets are tested where they are.
"""

from __future__ import annotations

import gzip
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import WorkerDied
from jaxdata.converter.engines import Attempt
from jaxdata.dataset.verify import verify
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


_MAIN = f"""
import sys
from jaxdata.cli import main
from jaxdata.converter import parameters
from jaxdata.dataset import lease
lease.SECONDS = float(sys.argv.pop(1))
parameters.unit_bytes_for = lambda _: {UNIT_BYTES}
main()
"""
OPTIONS = ["--source", "web", "--tokenizer", "bytes", "--minhash"]


def command(corpus: Path, output: Path, lease: float = 60) -> list[str]:
    """The command, with small units and leases of so many seconds."""
    words = ["convert", str(corpus), "--output", str(output), *OPTIONS, "--workers", "2"]
    return [sys.executable, "-c", _MAIN, str(lease), *words]


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
        if process.returncode != 0:
            shutil.rmtree(before, ignore_errors=True)
            return process.returncode, errors
        shutil.rmtree(output)
        if before.exists():
            shutil.copytree(before, output)
    raise AssertionError("five times the conversion was done before it could be stopped")


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


def start(corpus: Path, output: Path, lease: float = 60) -> subprocess.Popen[str]:
    words = command(corpus, output, lease)
    return subprocess.Popen(words, stdout=-3, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a process ended, and what it said of it."""
    _, errors = process.communicate()
    return process.returncode, errors


def test_of_two_that_start_together_one_is_told_who_the_other_is(
    corpus: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    both = [start(corpus, tmp_path / "out") for _ in range(2)]
    found = [ended(process) for process in both]
    assert sorted(code for code, _ in found) == [0, 1]
    loser = int(found[1][0] == 1)
    says = (
        rf"error: \S+/train/web is being written by another process: process {both[1 - loser].pid} "
        "on .*convert .*Wait until it ends or stop it, then run the same"
    )
    assert re.match(says, found[loser][1]), found
    assert tree(tmp_path / "out") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("units", [1, 10, 10**6])
def test_one_that_was_stopped_and_wakes_does_no_damage(
    corpus: Path, tmp_path: Path, expected: dict[str, str], units: int
) -> None:
    """Stopped on the way, or (with more receipts than there will be) while it publishes."""
    output = tmp_path / "out"
    first = start(corpus, output, lease=1)
    while len(receipts(output)) < units and not (output / "train/web/index").exists():
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    code, errors = ended(start(corpus, output, lease=1))
    assert code == 0, errors
    if errors:  # if the first one had not released it
        assert re.match(r"\S+/train/web is held by another process: process \d+ on", errors)
    first.send_signal(signal.SIGCONT)
    code, errors = ended(first)
    assert code == 0 or "/train/web was taken over by another process" in errors, errors
    assert verify(output).whole
    assert tree(output) == expected
