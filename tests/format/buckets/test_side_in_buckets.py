"""Side arrays of a dataset in a bucket are those of the folder, read through pages of their own."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset
from jaxdata.testing.buckets import BucketServer

BATCHES = 8


def loader(path: str | Path, extras: Any, **more: Any) -> jaxdata.Loader:
    docs = jaxdata.open_dataset(path).source("train", "web")
    rows = jaxdata.pack(docs, seq_len=128)
    return jaxdata.Loader(rows, batch_size=8, extras=extras, **more)


@pytest.mark.parametrize("pages", [True, False])
def test_batches_are_those_of_the_folder(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: bool
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    if not pages:
        monkeypatch.setenv("JAXDATA_CACHE_BYTES", "0")
    tokens = distinct_documents(np.random.default_rng(0).integers(20, 400, 300))
    values = {
        "weight": [each.astype(np.float32) for each in tokens],
        "at": [np.arange(len(each), dtype=np.int16) for each in tokens],
    }
    for path in (server.url("bkt/ds"), tmp_path / "ds"):
        write_dataset(path, {"train/web": tokens}, side={"train/web": values}, shard_documents=100)
    extras = ("weight", "target_weight", "at")
    near = list(islice(loader(tmp_path / "ds", extras), BATCHES))
    for workers in (0, 1):
        far = loader(server.url("bkt/ds"), extras, num_workers=workers)
        assert assert_same_batches(islice(far, BATCHES), near) == BATCHES
        far.close()
    inside = near[0]["segment_ids"] > 0
    np.testing.assert_array_equal(near[0]["weight"][inside], near[0]["inputs"][inside])
