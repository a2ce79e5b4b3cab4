"""Ctrl-C while a bucket is silent: it ends what waits at once, and nothing holds up the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from threading import Timer

import pytest

from tests.storage.buckets.conftest import use
from tests.storage.buckets.interrupted import WAITS, prepare
from tests.storage.servers import BucketServer, bucket_process, bucket_server

TIMES = 200


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with bucket_server("gs", folder=tmp_path) as server:
        use(server, monkeypatch)
        prepare(server, tmp_path)
        yield server
        server.faults = ()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", WAITS)
def test_nothing_waits_on_after_an_interrupt(bucket: BucketServer, name: str) -> None:
    timer = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        WAITS[name](bucket)
    timer.join()


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
def test_processes_end_soon_after_an_interrupt_at_any_moment(tmp_path: Path) -> None:
    """A client that waits on would do so for minutes."""
    chance = random.Random(27)
    with bucket_process("gs", folder=tmp_path) as server:
        prepare(server, tmp_path)
        for number, name in zip(range(TIMES), cycle(WAITS), strict=False):
            server.faults = ()
            words = [sys.executable, "-m", "tests.storage.buckets.interrupted", name]
            with subprocess.Popen(
                [*words, server.scheme, server.address], env=os.environ | server.env,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            ) as process:  # fmt: skip
                assert process.stdout
                assert process.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0, 1.5))
                process.send_signal(signal.SIGINT)
                try:
                    _, said = process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    pytest.fail(f"{name} did not end, the interrupt being number {number}")
            assert process.returncode == 130, (number, name, said)
            assert "Traceback" not in said, (number, name, said)
