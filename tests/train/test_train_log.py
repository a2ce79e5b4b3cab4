"""Logs and digests: what two runs are compared by."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdata.train.devices import FIELDS, batch_digest, row_digests
from jaxdata.train.log import RunLog, read_log


def random_batch(rows: int = 8, length: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 2, (rows, length)).astype(dtype) for name, dtype in FIELDS.items()
    }


def test_the_log_keeps_floats_to_the_bit_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run" / "log.jsonl"
    loss = float(np.float32(0.1)) / 3
    log = RunLog(path)
    log.write({"step": 0, "loss": loss}, {"step": 1, "loss": 2.0})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')  # killed here
    assert [record["step"] for record in read_log(path)] == [0, 1]
    log = RunLog(path)
    log.write({"step": 2, "loss": 3.0})
    assert read_log(path) == [
        {"step": 0, "loss": loss},
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 3.0},
    ]
    log.close()


def test_a_digest_sees_every_value_and_not_where_rows_lie() -> None:
    batch = random_batch()
    expected = batch_digest(batch)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    placed = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    assert batch_digest(placed) == expected
    for name in FIELDS:
        changed = {**batch, name: batch[name].copy()}
        changed[name][3, 2] ^= True
        assert batch_digest(changed) != expected
        differing = (row_digests(changed) != row_digests(batch)).any(axis=1)
        assert np.flatnonzero(differing).tolist() == [3]
    assert batch_digest({name: array[::-1] for name, array in batch.items()}) != expected
