"""Pods of real processes that are killed, shrink and grow; the rows never notice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import assert_exactly_once, assert_same_batches
from tests.builders import dataset
from tests.feed.pod import SOURCES, kill_pod, mixed, put_together, run_pod

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
    loader = jaxdata.Loader(mixed(data, pack), batch_size=BATCH)
    numbers = np.concatenate([loader.batch_rows(step) for step in range(len(loader))])
    batches, order = list(loader), np.argsort(numbers)
    return {key: np.concatenate([b[key] for b in batches])[order] for key in batches[0]}


def test_killed_and_moved_to_other_numbers_of_hosts(data: Path, tmp_path: Path) -> None:
    job: dict[str, Any] = {"task": "stream", "packs": PACKED, "dataset": str(data)}
    job |= {"output": str(tmp_path / "seen"), "checkpoints": str(tmp_path / "checkpoints")}
    job |= {"batch_size": BATCH, "save_every": 3}
    kill_pod(job, processes=3, devices=2, row=10 * BATCH)
    job |= {"batch_size": 2 * BATCH, "columns": 2}  # rows over 4 devices, slots over 2
    kill_pod(job, processes=2, devices=4, row=20 * BATCH)
    run_pod(job, processes=1, devices=4)
    opened = jaxdata.open_dataset(data)
    for pack in PACKED:
        expected = uninterrupted(data, pack)
        found = put_together(tmp_path / "seen", pack, len(expected["inputs"]))
        assert_same_batches([found], [expected])
        sources = [opened.source("train", name) for name in SOURCES]
        assert assert_exactly_once([found], sources, epochs=2) > 30_000
    legs = {path.stem.split("-", 1)[1] for path in (tmp_path / "seen").glob("*@*.npz")}
    assert legs == {f"{n}-{i}" for n in (1, 2, 3) for i in range(n)}
