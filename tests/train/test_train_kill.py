"""A training run on two processes, killed again and again, in the middle of checkpoints too.

`JAXDATA_TEST_KILLS` says how often; 25 take minutes.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxdata.demo.runs import last_logged_step
from jaxdata.testing import write_dataset
from jaxdata.train.log import read_log
from tests.feed.pod import end
from tests.train.test_train import command, environment, facts, steps_of

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("JAXDATA_TEST_KILLS", "3"))
STEPS = 12 + 6 * KILLS
EVERY = 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    numbers = np.random.default_rng(7)
    documents = [
        np.append(numbers.integers(97, 105, length), 256)
        for length in numbers.integers(5, 60, 8 * STEPS)
    ]
    half = len(documents) // 2
    write_dataset(folder / "data", {"train/a": documents[:half], "train/b": documents[half:]})
    rows = STEPS * 2
    fields = {
        "dataset": str(folder / "data"),
        "pack": {"seq_len": 32},
        "curriculum": [
            {"rows": rows, "mix": {"a": 0.7, "b": 0.3}},
            {"rows": rows, "mix": {"a": 0.3, "b": 0.7}},
        ],
        "loader": {"batch_size": 4},
        "train": {
            "model": {"layers": 1, "width": 8, "heads": 2},
            "log_every": 1,
            "checkpoint_every": EVERY,
            "keep": 2,
        },
    }
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


@contextmanager
def two_processes(config: Path, output: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    cluster = ["--coordinator", address, "--num-processes", "2", "--process-id"]
    hosts = []
    for host in range(2):
        with said(output, host).open("wb") as file:
            arguments = command(config, output, *cluster, str(host))
            hosts.append(subprocess.Popen(arguments, env=environment(1), stdout=file, stderr=file))
    try:
        yield hosts
    finally:
        end(hosts)


def said(output: Path, host: int) -> Path:
    return output.with_name(f"{output.name}-{host}.txt")


def complete(output: Path) -> int:
    """Step of the newest complete checkpoint."""
    steps = [int(path.name) for path in (output / "checkpoints").glob("*") if path.name.isdigit()]
    return max(steps, default=0)


def being_written(output: Path) -> bool:
    return any("tmp" in path.name for path in (output / "checkpoints").glob("*"))


def wait_until(
    reached: Callable[[], bool], hosts: list[subprocess.Popen[bytes]], output: Path
) -> None:
    while not reached():
        ended = [number for number, host in enumerate(hosts) if host.poll() is not None]
        assert not ended, said(output, ended[0]).read_text()
        time.sleep(0.001)


@pytest.mark.exhaustive
def test_every_kill_is_survived_to_the_bit(config: Path, tmp_path: Path) -> None:
    moments = random.Random(11)
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    with two_processes(config, unbroken) as hosts:
        assert [host.wait() for host in hosts] == [0, 0]
    torn, expected_starts = 0, [0]
    for number in range(KILLS):
        begun = complete(killed)
        with two_processes(config, killed) as hosts:
            # Some way on from where it began; at every other kill until a checkpoint is written.
            way = begun + moments.randint(EVERY, EVERY + 2)
            wait_until(lambda: last_logged_step(killed / "log.jsonl") >= way, hosts, killed)  # noqa: B023
            if number % 2:
                wait_until(lambda: being_written(killed), hosts, killed)
            time.sleep(moments.uniform(0, 0.03))
        torn += being_written(killed)
        expected_starts.append(complete(killed))
    with two_processes(config, killed) as hosts:
        assert [host.wait() for host in hosts] == [0, 0]
    expected = {record["step"]: facts(record) for record in steps_of(unbroken)}
    assert list(expected) == list(range(STEPS))
    seen = steps_of(killed)
    wrong = [record["step"] for record in seen if facts(record) != expected[record["step"]]]
    assert not wrong
    assert {record["step"] for record in seen} == set(range(STEPS))
    starts = [r["step"] for r in read_log(killed / "log.jsonl") if r.get("event") == "start"]
    assert starts == expected_starts, "each start is from the newest complete checkpoint"
    print(f"{KILLS} kills, {torn} in the middle of a checkpoint, {len(seen) - STEPS} steps again")
