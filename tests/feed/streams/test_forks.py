"""A forked copy of a process goes on by itself where it was; its original notices nothing.

The forking is done in a process of its own: pytest's has the threads of JAX.
"""

from __future__ import annotations

import json
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
from jaxdata.base.errors import InputError
from jaxdata.testing import assert_same_batches
from tests.conftest import ROOT
from tests.feed.test_loader import REFERENCE, ROWS, loader


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


@pytest.mark.slow
def test_both_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{k} " * 20}) + "\n" for k in range(300)))
    in_a_process(everything, str(path))


def everything(path: str) -> None:
    both_go_on(partial(loader, num_workers=1), REFERENCE)
    given = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "buffer": 40}
    stream = partial(jaxdata.stream_text, path, **given, num_workers=0)
    both_go_on(stream, list(stream()))
    fork_while_another_reads()
    devices_are_refused()


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


def devices_are_refused() -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    one = loader(sharding=SingleDeviceSharding(jax.devices()[0]))
    next(one)

    def refused() -> None:
        for call in (lambda: next(one), one.start_prefetch):
            with pytest.raises(InputError, match=r"JAX cannot be used in a forked process, .*'sp"):
                call()
        assert one.next_row == 24

    assert_done(forked(refused))
    assert_same_batches(one, REFERENCE[1:])
