"""`jaxdata validate`: a dataset that is not whole fails, and the file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.format.storage import open_store
from tests.look.validate.conftest import planned


def damage_shard(dataset: Path) -> None:
    shard = dataset / "train/web/00001-00000.array_record"
    shard.write_bytes(shard.read_bytes()[:-100])


def remove_shard(dataset: Path) -> None:
    (dataset / "train/code/00000-00000.array_record").unlink()


def exchange_shards(dataset: Path) -> None:
    one, other = (dataset / f"train/web/0000{k}-00000.array_record" for k in (0, 1))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def damage_index(dataset: Path) -> None:
    chunk = dataset / "train/wiki/index/length/c/0"
    data = np.frombuffer(chunk.read_bytes(), "<u4").copy()
    data[5] += 1
    chunk.write_bytes(data.tobytes())


def remove_origins(dataset: Path) -> None:
    (dataset / "train/wiki/index/origin_row/c/0").unlink()


def shorten_origins(dataset: Path) -> None:
    store, name = open_store(dataset), "train/wiki/index/origin_row"
    store.write_array(name, store.read_array(name)[1:])


def damage_manifest(dataset: Path) -> None:
    manifest = dataset / "dataset.json"
    manifest.write_text(manifest.read_text().replace('"inputs": [', '"inputs": ["other", '))


@pytest.mark.parametrize(
    ("damage", "name", "says"),
    [
        (
            remove_origins,
            "index",
            "train/wiki/index/origin_row/c/0 is missing: the dataset is incomplete",
        ),
        (shorten_origins, "index", "train/wiki/index/origin_row has 59 entries, not 60"),
        (damage_manifest, "manifest", "dataset.json differs from its checksum: restore it"),
        (damage_shard, "shards", "00001-00000.array_record"),
        (remove_shard, "shards", "is missing: the dataset is incomplete"),
        (exchange_shards, "shards", "its records do not match the index"),
        (damage_index, "index", "train/wiki/index/length: for train/wiki/00000-00000.array_rec"),
    ],
)
def test_a_dataset_that_is_not_whole_fails(
    config: Path,
    dataset: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Any,
    name: str,
    says: str,
) -> None:
    damage(dataset)
    status, found = planned(capsys, config)
    assert status == 1
    failed = {check["name"]: check["says"] for check in found["checks"] if not check["ok"]}
    assert says in failed[name]
