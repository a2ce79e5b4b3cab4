"""Processes, threads and memory of a stream of text: they change nothing, and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.errors import WorkerDied
from jaxdata.base.processes import Worker
from jaxdata.testing import assert_same_batches
from tests.streaming.conftest import stream
from tests.streaming.test_stream_records import dicts

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


@pytest.mark.slow
def test_workers_and_prefetch_change_nothing(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxdata.streaming.iterator._CHUNK_DOCUMENTS", 3)
    for given, workers, prefetch in ((files, 2, 0), (dicts(), 1, 2)):
        expected = list(stream(given, prefetch=0, buffer=200))
        made = stream(given, num_workers=workers, prefetch=prefetch, buffer=200)
        assert_same_batches(expected, made)
        made.close()


@pytest.mark.exhaustive
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    line = json.dumps({"text": "some words " * 500}) + "\n"
    with path.open("w") as file:
        for _ in range(20):
            file.write(line * 500)
    code = f"""if True:
        import resource, sys, jaxdata
        stream = jaxdata.stream_text({str(path)!r}, tokenizer="bytes", seq_len=2048,
                                     batch_size=64, buffer=500, num_workers=0)
        peaks = []
        for batch in stream:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        print(peaks[len(peaks) // 4], peaks[-1], len(peaks))
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    early, late, batches = map(int, done.stdout.split())
    assert batches > 400
    assert late - early < 25


@pytest.mark.slow
def test_a_killed_worker_is_named(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[Worker] = []
    start = Worker.__init__

    def noted(self: Worker, *args: Any) -> None:
        start(self, *args)
        workers.append(self)

    monkeypatch.setattr(Worker, "__init__", noted)
    made = stream(files, num_workers=2, epochs=None)
    next(made)
    os.kill(workers[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"iterator:serve\) ended early: SIGKILL"):
        for _ in made:
            pass
    made.close()


def slow(record: dict[str, Any]) -> dict[str, Any]:
    """A transform that says that it is at work, and takes its time."""
    Path(os.environ["BEGUN"]).touch()
    time.sleep(0.02)
    return record


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_closing_ends_its_threads_also_while_the_first_block_is_made(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    before = threading.active_count()
    made = stream(files, transform=slow, num_workers=workers, buffer=16 * 50)  # 50 in the first
    made.start_prefetch()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    made.close()
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="closed"):
        next(made)
