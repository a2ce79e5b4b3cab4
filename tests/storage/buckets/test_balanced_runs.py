"""Balanced hosts that read a bucket: rows of other hosts' lanes come by exact ranges."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import write_dataset
from jaxdata.testing.resuming import joined
from tests.storage.servers import BucketServer


def test_rows_from_other_lanes_are_fetched_by_ranges_and_said(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path))
    lengths = np.random.default_rng(1).integers(2, 66, 800)
    documents = [np.full(n, 1 + n) for n in lengths.tolist()]
    write_dataset(server.url("bkt/d"), {"train/web": documents})
    caplog.set_level(logging.INFO, "jaxdata")
    rows = jaxdata.pack(
        jaxdata.open_dataset(server.url("bkt/d")).source("train", "web"),
        seq_len=64,
        strategy="pad",
        chunk_bytes=1024,
        block_bytes=4096,
        lanes=8,
    )
    make = partial(jaxdata.Loader, rows, batch_size=16)
    group = [make(shard=(host, 2), balance="attention") for host in range(2)]
    for step, (ours, plain) in enumerate(zip(joined(group), make(), strict=True)):
        assert sorted(map(bytes, ours["inputs"])) == sorted(map(bytes, plain["inputs"])), step
    said = [each.getMessage() for each in caplog.records]
    assert any("of this host's 8 rows of a batch here from lanes" in each for each in said)
    for one in group:
        one.close()
