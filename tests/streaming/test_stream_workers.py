"""Processes, threads and memory of a stream of text: they change nothing, and end."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

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
    before = {*threading.enumerate()}
    made = stream(files, transform=slow, num_workers=workers, buffer=16 * 50)  # 50 in the first
    made.start_prefetch()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    made.close()
    for thread in {*threading.enumerate()} - before:
        thread.join()  # a worker's is on its way; one that stays hangs here
    with pytest.raises(ValueError, match="closed"):
        next(made)
