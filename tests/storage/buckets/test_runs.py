"""A run from a bucket is that from a folder, whatever fails; so is what is written there."""

import os
import signal
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import jaxdata
from jaxdata.dataset.deleting import delete_documents
from jaxdata.dataset.verify import verify
from jaxdata.storage import client, open_store, remote
from jaxdata.storage.pages.page_cache import close_caches
from jaxdata.testing import assert_same_batches
from tests.builders import dataset, documents
from tests.commands import in_a_process
from tests.converter.here import copy_tree, records, run_here, write_lines
from tests.dataset.views.made import dropping, masking, write as write_view
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


def compare(*places: str) -> None:
    assert_same_batches(*map(loader, places))


def test_requests_that_fail_change_no_batch(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs with nothing kept of the one before, until each kind of fault was met."""
    monkeypatch.setitem(client._READS, "read_timeout", "100ms")
    write(server, tmp_path)
    kinds = {"unavailable", "reset", "cut", "silent"}
    for seed in range(100):
        close_caches()
        monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / f"cache-{seed}"))
        shards = Faults(short=0.05, path="*.array_record", seed=seed)
        server.faults = [shards, Faults(**dict.fromkeys(kinds, 0.04), seed=seed)]  # type: ignore[arg-type]
        check(server, tmp_path, 12)
        if {*server.counts.faults} == kinds | {"short"}:
            return
    pytest.fail(f"not each kind in {server.counts.requests} requests")


def test_processes_of_a_host_fetch_a_page_once(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    reads = check(server, tmp_path, num_workers=2, extras=("at", "target_at"))
    fetched = [each.object for each in server.requests if each.sent > 20_000]
    shards = [name for name in fetched if name.endswith("-00000.array_record")]
    assert len(shards) == len({*shards}) == SHARDS
    assert reads.pages >= 2 * SHARDS, "those of the side array too"
    assert reads.hits > reads.misses
    server.clear()
    places = server.url("bkt/ds"), str(tmp_path / "ds")
    in_a_process(compare, *places, env=os.environ | server.env)
    asked = {each.object for each in server.requests}
    assert not any("/c/" in name or name.endswith("record") for name in asked)


def test_a_conversion_into_a_bucket_is_that_into_a_folder_whatever_fails(
    server: BucketServer, tmp_path: Path
) -> None:
    server.faults = Faults(unavailable=0.1, reset=0.05, lost=0.05)
    texts = records(*(f"document {number} " * (number % 50) for number in range(900)))
    write_lines(tmp_path / "a.jsonl", texts)
    for output in (server.url("bkt/ds"), tmp_path / "ds"):
        assert run_here(tmp_path / "a.jsonl", output).documents == 900
    assert {*server.counts.faults} == {"unavailable", "reset", "lost"}
    check(server, tmp_path)
    shards = list((tmp_path / "ds").rglob("*.array_record"))
    assert shards
    for shard in shards:
        assert server.read(f"bkt/{shard.relative_to(tmp_path)}") == shard.read_bytes()


def test_a_deletion_and_a_view_in_a_bucket_leave_the_files_of_those_on_a_disk(
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
        write_view(place, dropping(90, 5, masked=masking((7, 0, 2))))
    assert not verify(there).damage
    files = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    names = [name.partition("bucket/d/")[2] for name in server.names()]
    assert set(names) == files
    for name in files - {"history.jsonl"}:
        data = server.read(f"bucket/d/{name}")
        assert data == (here / name).read_bytes(), name
        assert was not in data
    for asked in ({"generation": 0}, {"generation": 2}, {"documents": "d1"}):
        opened = [jaxdata.open_dataset(place) for place in (here, there)]
        docs = [each.source("train", "web", **asked) for each in opened]
        near, far = (jaxdata.pack(each, seq_len=64) for each in docs)
        assert_same_batches(far, near)


def upload_in_parts(server: BucketServer) -> None:
    store = open_store(server.url("bkt/new"))
    with patch.object(client, "MOST_WHOLE", 0), store.create("upload") as path:
        path.write_bytes(bytes(2**20))


def read_batches(server: BucketServer) -> None:
    dataset(server.url("bkt/ds"), {"web": [89] * 90}, shard_documents=10)  # type: ignore[arg-type]
    with closing(loader(server.url("bkt/ds"))) as rows:
        server.faults = Faults(silent=1.0, path="*.array_record")
        next(rows)


@pytest.mark.parametrize("wait", [upload_in_parts, read_batches])
def test_an_interrupt_ends_what_waits_for_a_silent_bucket(
    server: BucketServer, wait: Callable[[BucketServer], None]
) -> None:
    server.faults = Faults(silent=1.0, methods="GET PUT POST HEAD")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wait(server)
    timer.join()
    server.faults = ()
    signal.signal(signal.SIGINT, before)
