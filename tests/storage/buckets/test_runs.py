"""A run from a bucket is that from a folder: also when requests fail, and in several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.storage.pages.page_cache import close_caches
from jaxdata.testing import assert_same_batches
from tests.builders import dataset, documents
from tests.conftest import ROOT
from tests.converter.here import run_here
from tests.storage.servers import BucketServer, Faults

SHARDS = 10


def write(server: BucketServer, folder: Path) -> None:
    """The same dataset in the folder and in the bucket, with a side array."""
    tokens = documents(1_000, longest=400)
    side = {"web": {"at": [np.arange(len(each), dtype=np.int16) for each in tokens]}}
    for path in (folder / "ds", server.url("bkt/ds")):
        dataset(path, {"web": tokens}, side=side, shard_documents=1_000 // SHARDS)  # type: ignore[arg-type]
    server.clear()


def loader(path: str | Path, **more: Any) -> jaxdata.Loader:
    docs = jaxdata.open_dataset(path).source("train", "web")
    return jaxdata.Loader(jaxdata.pack(docs, seq_len=256), batch_size=16, shard=(0, 1), **more)


def check(server: BucketServer, folder: Path, batches: int | None = None, **more: Any) -> Any:
    """All batches from both are equal; returns what was fetched for those from the bucket."""
    far, near = loader(server.url("bkt/ds"), **more), loader(folder / "ds", **more)
    assert assert_same_batches(islice(far, batches), islice(near, batches)) > 2
    reads = far.report().reads
    far.close()
    near.close()
    return reads


@pytest.mark.parametrize("fault", ["unavailable", "reset", "cut", "short"])
def test_requests_that_fail_change_no_batch(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Runs with nothing kept of the one before, until three requests went wrong."""
    write(server, tmp_path)
    path = "*.array_record" if fault == "short" else "*"
    for seed in range(300):
        close_caches()
        monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / f"cache-{seed}"))
        server.faults = Faults(**{fault: 0.1}, path=path, seed=seed)  # type: ignore[arg-type]
        check(server, tmp_path, 12)
        if sum(server.counts.faults.values()) >= 3:
            return
    pytest.fail(f"no three of {server.counts.requests} requests failed")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("forbidden", r"array_record cannot be read: .*may not read it"),
        ("vanished", r"array_record is missing"),
    ],
)
def test_what_goes_wrong_in_the_middle_names_the_object(
    server: BucketServer, tmp_path: Path, fault: str, message: str
) -> None:
    write(server, tmp_path)
    rows = loader(server.url("bkt/ds"))
    server.faults = Faults(**{fault: 1.0}, path="*.array_record")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=message):
        list(rows)


def test_processes_of_a_host_fetch_a_page_once_for_all(
    server: BucketServer, tmp_path: Path
) -> None:
    write(server, tmp_path)
    reads = check(server, tmp_path, num_workers=2, extras=("at", "target_at"))
    fetched = [each.object for each in server.requests if each.sent > 20_000]
    shards = [name for name in fetched if name.endswith("-00000.array_record")]
    assert len(shards) == len({*shards}) == SHARDS
    assert reads.pages >= 2 * SHARDS, "those of the side array too"
    assert reads.hits > reads.misses
    server.clear()
    code = (
        "import sys; from tests.storage.buckets.test_runs import *\n"
        "assert_same_batches(loader(sys.argv[1]), loader(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, server.url("bkt/ds"), str(tmp_path / "ds")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | server.env, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    asked = {each.object for each in server.requests}
    assert not any("/c/" in name or name.endswith("record") for name in asked)


def test_a_conversion_into_a_bucket_is_that_into_a_folder_whatever_fails(
    server: BucketServer, tmp_path: Path
) -> None:
    server.faults = Faults(unavailable=0.1, reset=0.05, lost=0.05)
    texts = [json.dumps({"text": f"document {number} " * (number % 50)}) for number in range(900)]
    (tmp_path / "a.jsonl").write_text("\n".join(texts))
    for output in (server.url("bkt/ds"), tmp_path / "ds"):
        assert run_here(tmp_path / "a.jsonl", output).documents == 900
    assert {*server.counts.faults} == {"unavailable", "reset", "lost"}
    check(server, tmp_path)
    shards = list((tmp_path / "ds").rglob("*.array_record"))
    assert shards
    for shard in shards:
        assert server.read(f"bkt/{shard.relative_to(tmp_path)}") == shard.read_bytes()
