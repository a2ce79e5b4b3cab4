"""A forked copy of a process goes on by itself where it was; its original notices nothing.

Each test forks in a process of its own: pytest's has the threads of JAX.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.errors import InputError
from jaxdata.testing import assert_same_batches
from tests.conftest import ROOT
from tests.feed.test_loader import REFERENCE, ROWS, loader

SETTINGS: list[dict[str, Any]] = [
    {"prefetch": 0},
    {"prefetch": 2},
    {"num_workers": 2},
    {"rows": ROWS.map(dict), "num_workers": 1, "prefetch": 3},
]


def in_a_process(function: Callable[..., None], *args: str) -> None:
    code = f"import {function.__module__} as t; t.{function.__name__}(*{args!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def forked(work: Callable[[], None]) -> int:
    """Do some work in a forked copy, which ends as a process does; returns its process id."""
    if child := os.fork():
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)


def assert_done(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def both_go_on(make: Callable[[], Any], expected: list[Any]) -> None:
    one = make()
    assert_same_batches([next(one), next(one)], expected[:2])

    def go_on() -> None:
        assert_same_batches(one, expected[2:])
        one.reset()
        assert_same_batches(one, expected)

    assert_done(forked(go_on))
    go_on()
    one.close()


def test_both_go_on() -> None:
    in_a_process(loaders_go_on)


def loaders_go_on() -> None:
    for settings in SETTINGS:
        both_go_on(partial(loader, **settings), REFERENCE)


def test_both_go_on_in_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{k} " * 20}) + "\n" for k in range(300)))
    in_a_process(streams_go_on, str(path))


def streams_go_on(path: str) -> None:
    given = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "buffer": 40}
    for workers in (0, 2):
        make = partial(jaxdata.stream_text, path, **given, num_workers=workers)
        both_go_on(make, list(make()))


def test_while_another_thread_waits_for_a_batch() -> None:
    in_a_process(fork_while_another_reads)


def fork_while_another_reads() -> None:
    original, reads, may = os.getpid(), threading.Event(), threading.Event()

    def slow(row: Any) -> Any:
        if os.getpid() == original:
            reads.set()
            may.wait()
        return row

    one, taken = loader(rows=ROWS.map(slow), prefetch=0), list[Any]()
    reader = threading.Thread(target=lambda: taken.append(next(one)))
    reader.start()
    reads.wait()
    assert_done(forked(lambda: assert_same_batches(one, REFERENCE)))
    may.set()
    reader.join()
    assert_same_batches(taken, REFERENCE[:1])
    assert_same_batches(one, REFERENCE[1:])


def test_a_process_of_multiprocessing() -> None:
    in_a_process(passed_to_a_process)


def passed_to_a_process() -> None:
    one = loader(num_workers=1)
    next(one)
    process = multiprocessing.get_context("fork").Process(
        target=assert_same_batches, args=(one, REFERENCE[1:])
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert_same_batches(one, REFERENCE[1:])
    one.close()


def test_devices_are_refused() -> None:
    in_a_process(devices_are_refused)


def devices_are_refused() -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    one = loader(sharding=SingleDeviceSharding(jax.devices()[0]))
    next(one)

    def refused() -> None:
        for call in (lambda: next(one), one.start_prefetch):
            with pytest.raises(
                InputError, match=r"JAX cannot be used in a forked process, .*'spawn'"
            ):
                call()
        assert one.next_row == 24

    assert_done(forked(refused))
    assert_same_batches(one, REFERENCE[1:])
