"""Worker processes and the shared memory of their batches, as a user meets them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError, WorkerDied
from jaxdata.base.processes import Worker
from jaxdata.testing import assert_same_batches, distinct_documents
from tests.dataset.documents.few_descriptors import with_few_descriptors

DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 2_000))
)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=64)
ME = os.getpid()


@pytest.fixture
def loader() -> Iterator[jaxdata.Loader]:
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=2)
    yield loader
    loader.close()


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


@pytest.mark.slow
def test_how_a_worker_ended_is_said() -> None:
    worker = Worker("operator:truediv", 0)  # a connection divided by 0
    with pytest.raises(TypeError, match="unsupported operand"):
        worker.receive()
    worker.close()
    worker.close()
    worker = Worker(f"{__name__}:leave")
    with pytest.raises(WorkerDied, match=r"test_workers:leave\) ended early: exit code 3"):
        worker.receive()
    worker.close()


def leave(_: object) -> None:
    os._exit(3)


@pytest.mark.slow
def test_held_batches_do_not_change_but_by_their_owner(loader: jaxdata.Loader) -> None:
    expected = list(jaxdata.Loader(ROWS, batch_size=8))
    assert len(expected) > 100
    held, parts = list(islice(loader, 40)), [batch["inputs"][3:5] for batch in islice(loader, 40)]
    held[0]["inputs"][:] = -1
    rest = list(loader)
    gc.collect()
    assert (held[0].pop("inputs") == -1).all(), "one may write to it"
    assert_same_batches([{}, *held[1:], *rest], [{}, *expected[1:40], *expected[80:]])
    for part, batch in zip(parts, expected[40:], strict=False):
        assert np.array_equal(part, batch["inputs"][3:5]), "one array holds its batch"


@pytest.mark.slow
def test_more_batches_are_held_than_files_may_be_open() -> None:
    code = """
import json, numpy as np
import jaxdata
documents = jaxdata.ArrayDocuments([np.arange(k, k + 15) for k in range(400)])
rows = jaxdata.pack(documents, seq_len=14)
held = list(jaxdata.Loader(rows, batch_size=1, num_workers=2))
same = [np.array_equal(batch["inputs"][0], rows[k]["inputs"]) for k, batch in enumerate(held)]
print(json.dumps([len(same), all(same)]))
"""
    assert with_few_descriptors(code) == [400, True]


@pytest.mark.slow
def test_what_jax_refers_to_is_held() -> None:
    sharding = SingleDeviceSharding(jax.devices()[0])
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=1, sharding=sharding)
    held = [batch["inputs"] for batch in loader]
    gc.collect()
    for found, batch in zip(held, jaxdata.Loader(ROWS, batch_size=8), strict=True):
        assert np.array_equal(found, batch["inputs"])


@pytest.mark.slow
def test_memory_is_used_again(loader: jaxdata.Loader) -> None:
    def buffers() -> int:
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in children()]
        return sum(text.count("jaxdata") for text in maps)

    for _ in islice(loader, 20):
        pass
    early = buffers()
    for _ in islice(loader, 80):
        pass
    assert 2 <= buffers() <= max(early, 14)


@pytest.mark.slow
def test_a_worker_far_ahead_and_its_reader_do_not_wait_for_each_other() -> None:
    """More messages are unread than fit into a socket."""
    loader = jaxdata.Loader(ROWS, batch_size=1, num_workers=1, prefetch=5_000)
    assert assert_same_batches(loader, jaxdata.Loader(ROWS, batch_size=1)) > 1_000


@pytest.mark.slow
def test_arrays_of_ever_other_shapes_or_none_at_all() -> None:
    def ragged(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kinds = int(batch["inputs"][0, 0]) % 200  # more layouts than are remembered, some again
        more = {"inputs": batch["inputs"], "more": np.full((kinds, 3), kinds, np.int16)}
        return more if kinds else {}

    expected = list(jaxdata.Loader(ROWS, batch_size=2, layout=ragged))
    shapes = [batch["more"].shape for batch in expected if batch]
    assert len(expected) > len(shapes) > len(set(shapes)) > 150
    assert_same_batches(jaxdata.Loader(ROWS, batch_size=2, layout=ragged, num_workers=1), expected)


@pytest.mark.slow
def test_python_objects_are_refused_by_name() -> None:
    rows = ROWS.map(lambda row: {**row, "words": np.array(["a", None], object)})
    with pytest.raises(InputError, match=r"'words' holds Python objects.* num_workers=0"):
        next(jaxdata.Loader(rows, batch_size=2, num_workers=1))
