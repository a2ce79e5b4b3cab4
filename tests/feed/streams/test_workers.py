"""Worker processes and the shared memory of their batches, as a user meets them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import WorkerDied
from jaxdata.testing import assert_same_batches, distinct_documents

DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 2_000))
)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=64)
ME = os.getpid()


def children() -> list[str]:
    return Path(f"/proc/{ME}/task/{ME}/children").read_text().split()


@pytest.mark.slow
def test_an_unguarded_script_runs_once_and_its_workers_import_no_jax(tmp_path: Path) -> None:
    code = """
import os, jaxdata
from pathlib import Path
print("once")
rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 99), seq_len=8)
loader = jaxdata.Loader(rows, batch_size=4, num_workers=1)
next(loader)
me = os.getpid()
child = Path(f"/proc/{me}/task/{me}/children").read_text().split()[0]
maps = Path(f"/proc/{child}/maps").read_text()
print("numpy" in maps, "jaxlib" in maps, "grain" in maps, "tensorstore" in maps)
"""
    (tmp_path / "script.py").write_text(code)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["once", "True", *["False"] * 3], done.stderr


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    others = children()
    loader = jaxdata.Loader(ROWS, batch_size=4, num_workers=2)
    next(loader)
    for pid in set(children()) - set(others):
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"workers:serve\) ended early: SIGKILL"):
        list(loader)
    loader.close()


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_held_batches_do_not_change_but_by_their_owner(on_device: bool) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0]) if on_device else None
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=2, sharding=sharding)
    expected = list(jaxdata.Loader(ROWS, batch_size=8))
    held, parts = list(islice(loader, 40)), [batch["inputs"][3:5] for batch in islice(loader, 40)]
    if not on_device:
        held[0]["inputs"][:] = -1
        assert (held.pop(0)["inputs"] == -1).all(), "one may write to it"
    rest = list(loader)
    gc.collect()
    assert_same_batches([*held, *rest], [*expected[40 - len(held) : 40], *expected[80:]])
    for part, batch in zip(parts, expected[40:], strict=False):
        assert np.array_equal(part, batch["inputs"][3:5]), "one array holds its batch"


@pytest.mark.slow
def test_a_worker_far_ahead_and_its_reader_do_not_wait_for_each_other() -> None:
    """More messages are unread than fit into a socket."""
    loader = jaxdata.Loader(ROWS, batch_size=1, num_workers=1, prefetch=5_000)
    assert assert_same_batches(loader, jaxdata.Loader(ROWS, batch_size=1)) > 1_000
