"""Pods of real processes that are killed, shrink and grow; the rows never notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import assert_exactly_once
from tests.builders import dataset
from tests.feed.pod import SEQ_LEN, SOURCES, kill_pod, mixed, put_together, run_pod

pytestmark = pytest.mark.slow

BATCH = 24
PACKED = ["best_fit", "one block", "lanes 8"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(4).integers(1, 130, 330).tolist()
    given = {"web": lengths[:150], "code": lengths[150:260], "wiki": lengths[260:]}
    return dataset(tmp_path_factory.mktemp("pod") / "d", given)


def uninterrupted(data: Path, pack: str) -> dict[str, np.ndarray]:
    """All rows of one run in one process, in their order."""
    rows = mixed(data, pack)
    loader = jaxdata.Loader(rows, batch_size=BATCH)
    numbers = np.concatenate([loader.batch_rows(step) for step in range(len(loader))])
    batches, order = list(loader), np.argsort(numbers)
    return {key: np.concatenate([b[key] for b in batches])[order] for key in batches[0]}


def assert_same_rows(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes(), name


def test_killed_and_moved_to_other_numbers_of_hosts(data: Path, tmp_path: Path) -> None:
    job = {
        "task": "stream",
        "packs": PACKED,
        "dataset": str(data),
        "output": str(tmp_path / "seen"),
        "checkpoints": str(tmp_path / "checkpoints"),
        "batch_size": BATCH,
        "save_every": 3,
    }
    kill_pod(job, processes=3, devices=2, row=10 * BATCH)
    job["batch_size"] = 2 * BATCH
    kill_pod(job, processes=2, devices=4, row=20 * BATCH)
    run_pod(job, processes=1, devices=4)
    opened = jaxdata.open_dataset(data)
    for pack in PACKED:
        expected = uninterrupted(data, pack)
        found = put_together(tmp_path / "seen", pack, len(expected["inputs"]))
        assert_same_rows(found, expected)
        sources = [opened.source("train", name) for name in SOURCES]
        assert assert_exactly_once([found], sources, epochs=2) > 30_000
    legs = {path.stem.split("-", 1)[1] for path in (tmp_path / "seen").glob("*@*.npz")}
    assert legs == {f"{n}-{i}" for n in (1, 2, 3) for i in range(n)}


MESHES: dict[str, Any] = {
    "data": ([4], ["x"]),
    "data x model": ([2, 2], ["x"]),
    "model": ([1, 4], ["x"]),
    "batch x sequence": ([2, 2], ["x", "y"]),
}
STEPS = 3
# Of 4 processes, how many parts the rows and the columns that one holds are of.
PARTS = {
    "data": {1: (1, 1), 2: (2, 1), 4: (4, 1)},
    "data x model": {1: (1, 1), 2: (2, 1), 4: (2, 1)},
    "model": {1: (1, 1), 2: (1, 1), 4: (1, 1)},
    "batch x sequence": {1: (1, 1), 2: (2, 1), 4: (2, 2)},
}
BYTES_A_SLOT = 4 * 4 + 1


@pytest.mark.exhaustive
def test_every_mesh_sees_the_same_batch_and_reads_its_share(data: Path, tmp_path: Path) -> None:
    job = {
        "task": "meshes",
        "dataset": str(data),
        "output": str(tmp_path / "seen"),
        "batch_size": BATCH,
        "meshes": MESHES,
        "steps": STEPS,
    }
    expected = uninterrupted(data, "best_fit")
    first = {name: array[: STEPS * BATCH] for name, array in expected.items()}
    for processes in (2, 1, 4):
        run_pod(job, processes, devices=4 // processes)
        counts = [
            json.loads((tmp_path / "seen" / f"counts-{processes}-{process}.json").read_text())
            for process in range(processes)
        ]
        for name in MESHES:
            found = put_together(tmp_path / "seen", f"{name} {processes}", STEPS * BATCH)
            assert_same_rows(found, first)
            rows, columns = PARTS[name][processes]
            slots = STEPS * BATCH * SEQ_LEN // rows // columns
            share = [STEPS * BATCH // rows, slots * BYTES_A_SLOT]
            assert [count[name] for count in counts] == [share] * processes, name
