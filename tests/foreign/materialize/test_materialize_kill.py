"""Rows are written once, and the same, however often the writing was killed or begun again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, WorkerDied
from jaxdata.foreign import materialize as driver
from tests.dataset.trees import tree
from tests.foreign.materialize.conftest import Row


def test_the_same_again_does_nothing_and_another_is_refused(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    jaxdata.materialize(rows, tmp_path, workers=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    jaxdata.materialize(rows, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match=r"record_format was 'plain', is 'tf_example'"):
        jaxdata.materialize(rows, tmp_path, record_format="tf_example")
    with pytest.raises(InputError, match=r"run\[seed\] was 0, is 7"):
        jaxdata.materialize(jaxdata.load(config, seed=7).rows, tmp_path)


def test_of_two_at_once_one_is_told_who_the_other_is(config: str, tmp_path: Path) -> None:
    rows = jaxdata.load(config).rows
    told = []

    def again(_done: int, _total: int) -> None:
        for options in ({}, {"record_format": "tf_example"}):
            with pytest.raises(DatasetError) as error:
                jaxdata.materialize(rows, tmp_path / "out", shard_rows=20, workers=1, **options)
            told.append(str(error.value))

    jaxdata.materialize(rows, tmp_path / "out", shard_rows=20, workers=1, progress=again)
    assert len(told) > 2
    says = f"{tmp_path}/out is being written by another process: process {os.getpid()} on "
    assert all(one.startswith(says) for one in told)
    jaxdata.materialize(rows, tmp_path / "alone", shard_rows=20, workers=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


@pytest.mark.exhaustive
@pytest.mark.parametrize("record_format", ["plain", "tf_example"])
def test_killed_at_any_moment_and_finished_by_the_same_command(
    config: str, tmp_path: Path, record_format: str
) -> None:
    command = [
        *(sys.executable, "-m", "jaxdata", "export", "--config", config),
        *("--shard-rows", "4", "--format", record_format, "--workers", "2"),
    ]
    jaxdata.materialize(
        jaxdata.load(config).rows,
        tmp_path / "expected",
        shard_rows=4,
        record_format=record_format,
        workers=1,
    )
    expected, output = tree(tmp_path / "expected"), tmp_path / "out"
    chance = np.random.default_rng(1)
    for _ in range(int(os.environ.get("JAXDATA_KILLS", "2"))):
        _kill_after(command, output, int(chance.integers(0, len(expected) - 1)))
        if (output / "rows.json").exists():
            assert {k: v for k, v in tree(output).items() if not k.startswith("work")} == expected
            shutil.rmtree(output)
    subprocess.run([*command, "--output", str(output)], check=True, capture_output=True)
    assert tree(output) == expected


def _kill_after(command: list[str], output: Path, receipts: int) -> None:
    process = subprocess.Popen([*command, "--output", str(output)], stdout=subprocess.DEVNULL)
    while len(list(output.glob("work/*.receipt"))) < receipts and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not (output / "rows.json").exists():
        with pytest.raises(DatasetError, match="the same command finishes it"):
            jaxdata.open_rows(output)


def killing_once(batch: Row) -> Row:
    """A layout that kills the first worker process that comes to it."""
    parent, mark = os.environ["JAXDATA_TEST_KILLED"].split(":")
    if os.getpid() != int(parent) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def test_a_killed_worker_is_named_and_its_work_done_again(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = jaxdata.load(config).rows
    monkeypatch.setenv("JAXDATA_TEST_KILLED", f"{os.getpid()}:{tmp_path / 'mark'}")
    settings: Any = {"shard_rows": 4, "layout": killing_once}
    with pytest.raises(WorkerDied, match=r"SIGKILL.*the same command resumes"):
        jaxdata.materialize(rows, tmp_path / "out", workers=2, **settings)
    jaxdata.materialize(rows, tmp_path / "out", workers=1, **settings)
    jaxdata.materialize(rows, tmp_path / "expected", workers=1, **settings)
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


def test_what_was_begun_otherwise_is_refused(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = jaxdata.load(config).rows
    monkeypatch.setattr(driver, "_publish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jaxdata.materialize(rows, tmp_path, shard_rows=30, workers=1)
    with pytest.raises(InputError, match=r"unfinished rows.*shard_rows was 30, is 20"):
        jaxdata.materialize(rows, tmp_path, shard_rows=20)


_FULL = """
mount -t tmpfs -o size=200k none {disk} || exit 99
{command} 2> {disk}/../errors
echo $? > {disk}/../status
find {disk} -type f > {disk}/../left
mount -o remount,size=64m none {disk}
{command} && cp -r {disk}/out {disk}/../finished
"""


@pytest.mark.exhaustive
def test_a_full_disk_is_said_and_what_is_done_is_kept(config: str, tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("a disk to fill needs util-linux's unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-m", "jaxdata", "export", "--config", config]
    command += ["--output", str(disk / "out"), "--shard-rows", "40", "--workers", "1"]
    script = _FULL.format(disk=disk, command=" ".join(command))
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if not (tmp_path / "status").exists():
        pytest.skip(f"this system lets us mount nothing, not even in a namespace: {done.stderr}")
    says = (tmp_path / "errors").read_text()
    assert (tmp_path / "status").read_text() == "1\n", says
    assert says.startswith(f"error: {disk}/out cannot be written: No space left on device")
    left = (tmp_path / "left").read_text()
    assert ".receipt" in left
    assert ".tmp-" not in left
    assert "rows.json" not in left
    assert done.returncode == 0, done.stderr
    jaxdata.materialize(jaxdata.load(config).rows, tmp_path / "whole", shard_rows=40)
    assert tree(tmp_path / "finished") == tree(tmp_path / "whole")
