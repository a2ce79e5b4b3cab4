"""Documents deleted from a dataset in a bucket: the same files as here, and no byte left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.dataset.deleting import delete_documents
from jaxdata.dataset.verify import verify
from jaxdata.storage import remote
from tests.builders import dataset, documents
from tests.dataset.trees import copy_tree
from tests.storage.servers import BucketServer


def test_a_deletion_in_a_bucket_leaves_the_files_of_one_on_a_disk(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_MOST_COPIED", 100)  # columns are fetched in spans
    tokens = documents(90, longest=70, seed=1)
    side = {"web": {"weight": [each.astype(np.float32) for each in tokens]}}
    here = dataset(tmp_path / "d", {"web": tokens}, side=side, shard_documents=30)
    there = server.url("bucket/d")
    copy_tree(here, there)
    was = jaxdata.open_dataset(there)["train/web"][40]["tokens"].tobytes()
    for place in (here, there):
        for numbers in ([3, 40, 89], [0, 40]):
            delete_documents(place, documents={"web": numbers})
    assert not verify(there).damage
    files = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    names = [name.partition("bucket/d/")[2] for name in server.names()]
    assert set(names) == files
    for name in files - {"history.jsonl"}:
        data = server.read(f"bucket/d/{name}")
        assert data == (here / name).read_bytes(), name
        assert was not in data
    for generation in (0, 1, 2):
        rows = [
            jaxdata.pack(
                jaxdata.open_dataset(place).source("train", "web", generation=generation),
                seq_len=64,
            )
            for place in (here, there)
        ]
        for number in range(len(rows[0])):
            for name, array in rows[0][number].items():
                np.testing.assert_array_equal(array, rows[1][number][name], name)
