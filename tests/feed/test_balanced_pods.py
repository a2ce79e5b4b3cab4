"""Rows dealt by real processes, each for itself: together they have those of each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from tests.builders import dataset
from tests.feed.pod import kill_pod, mixed, put_together, run_pod

pytestmark = pytest.mark.exhaustive

BATCH = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(5).integers(2, 40, 200).tolist()
    given = {"web": lengths[:90], "code": lengths[90:150], "wiki": lengths[150:]}
    return dataset(tmp_path_factory.mktemp("balance") / "d", given)


@pytest.mark.parametrize("legs", [[2, 1], [1, 4, 2]])
def test_a_balanced_run_has_the_rows_of_each_step_on_other_numbers_of_processes(
    data: Path, tmp_path: Path, legs: Sequence[int]
) -> None:
    packs = ["best_fit", "lanes 8"]
    job: dict[str, Any] = {
        "task": "stream",
        "packs": packs,
        "dataset": str(data),
        "output": str(tmp_path / "seen"),
        "checkpoints": str(tmp_path / "checkpoints"),
        "batch_size": BATCH,
        "save_every": 2,
        "settings": {"balance": "attention", "drop_remainder": True},
    }
    for leg, processes in enumerate(legs[:-1]):
        kill_pod(job, processes, devices=4 // processes, row=(2 + 2 * leg) * BATCH)
    run_pod(job, legs[-1], devices=4 // legs[-1])
    for pack in packs:
        plain = jaxdata.Loader(mixed(data, pack), batch_size=BATCH, drop_remainder=True)
        numbers = [plain.batch_rows(step) for step in range(len(plain))]
        batches, order = list(plain), np.argsort(np.concatenate(numbers))
        found = put_together(tmp_path / "seen", pack, len(plain) * BATCH)
        for name, array in found.items():
            expected = np.concatenate([batch[name] for batch in batches])[order]
            assert array.tobytes() == expected.tobytes(), name
        # Of a step each process saw the same rows as without: no row is in a file of another step.
        for path in (tmp_path / "seen").glob(f"{pack}@*.npz"):
            step = int(path.stem.split("@")[1].split("-")[0]) // BATCH
            assert sorted(np.load(path)["numbers"]) == sorted(numbers[step])
