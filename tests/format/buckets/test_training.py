"""What is trained from a bucket is what is trained from a folder, also when requests fail."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError
from jaxdata.format.storage import close_caches, kvstores, open_store
from jaxdata.testing import assert_same_batches, write_dataset
from jaxdata.testing.buckets import BucketServer, Faults

BATCHES, BATCH, SEQ_LEN = 12, 8, 128


def documents() -> list[np.ndarray]:
    chance = np.random.default_rng(5)
    return [chance.integers(1, 50_000, n) for n in chance.integers(20, 400, 600)]


def loader(path: str | Path) -> jaxdata.Loader:
    docs = jaxdata.open_dataset(path).source("train", "web")
    rows = jaxdata.pack(docs, seq_len=SEQ_LEN)
    return jaxdata.Loader(rows, batch_size=BATCH, shard=(0, 1))


def check(server: BucketServer, local: Path, batches: int = BATCHES) -> None:
    """The first batches from both are equal."""
    remote, near = loader(server.url("bkt/ds")), loader(local)
    assert_same_batches(islice(remote, batches), islice(near, batches))
    remote.close()
    near.close()


@pytest.mark.parametrize("fault", ["", "unavailable", "reset", "lost"])
def test_a_conversion_into_a_bucket_is_that_into_a_folder(
    server: BucketServer, tmp_path: Path, fault: str
) -> None:
    if fault:
        server.faults = Faults(**{fault: 0.1})  # type: ignore[arg-type]
    texts = [json.dumps({"text": f"document {number} " * (number % 50)}) for number in range(900)]
    (tmp_path / "a.jsonl").write_text("\n".join(texts))
    for output in (server.url("bkt/ds"), tmp_path / "ds"):
        made = jaxdata.convert(
            tmp_path / "a.jsonl", output=output, source="web", tokenizer="bytes", workers=1
        )
        assert made.documents == 900
    assert bool(fault) == bool(server.counts.faults)
    check(server, tmp_path / "ds")
    files = [file.relative_to(tmp_path) for file in (tmp_path / "ds").rglob("*") if file.is_file()]
    shards = [str(file) for file in files if file.suffix == ".array_record"]
    assert shards
    for shard in shards:
        assert server.read(f"bkt/{shard}") == (tmp_path / shard).read_bytes()


def runs(
    server: BucketServer, folder: Path, monkeypatch: pytest.MonkeyPatch, faults: Faults
) -> Iterator[None]:
    """Runs with nothing kept of the one before, until three requests went wrong."""
    for path in (server.url("bkt/ds"), folder / "ds"):
        write_dataset(path, {"train/web": documents()}, shard_documents=100)
    server.clear()
    for seed in range(300):
        close_caches()
        monkeypatch.setenv("JAXDATA_CACHE", str(folder / f"cache-{seed}"))
        server.faults = replace(faults, seed=seed)
        yield
        if sum(server.counts.faults.values()) >= 3:
            return
    pytest.fail(f"no three of {server.counts.requests} requests failed")


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("fault", ["unavailable", "reset", "cut"])
def test_requests_that_fail_change_no_batch(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    share: float,
) -> None:
    faults = Faults(**{fault: share})  # type: ignore[arg-type]
    for _ in runs(server, tmp_path, monkeypatch, faults):
        check(server, tmp_path / "ds")


def test_short_bodies_never_make_other_rows(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(short=0.1, path="*.array_record")
    said = []
    for _ in runs(server, tmp_path, monkeypatch, faults):
        try:
            check(server, tmp_path / "ds")
        except DatasetError as error:
            said.append(str(error))
    assert all(".array_record ends before byte" in error for error in said)
    close_caches()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    server.faults = replace(faults, short=1.0)
    with pytest.raises(DatasetError, match=r"array_record ends before byte \d+: the file is trunc"):
        check(server, tmp_path / "ds")


def test_a_shard_that_vanishes_is_named(server: BucketServer) -> None:
    write_dataset(server.url("bkt/ds"), {"train/web": documents()}, shard_documents=100)
    batches = loader(server.url("bkt/ds"))
    server.delete("bkt/ds/train/web/00002-00000.array_record")
    with pytest.raises(DatasetError, match=r"00002-00000\.array_record is missing"):
        list(batches)


def test_tests_wait_no_second_for_another_try(server: BucketServer) -> None:
    """What `conftest` sets, the store uses."""
    context = kvstores.process_context()
    assert kvstores._contexts == {os.getpid(): context}
    for scheme in ("gcs", "s3"):
        said = context[f"{scheme}_request_retries"].to_json()
        assert said["initial_delay"] == "1ms"


def test_an_outage_of_seconds_ends_no_writing(server: BucketServer) -> None:
    server.faults = Faults(unavailable=1.0)
    over = threading.Timer(2.5, lambda: setattr(server, "faults", ()))
    over.start()
    open_store(server.url("bkt/ds")).write("a", b"content")
    over.join()
    assert server.read("bkt/ds/a") == b"content"
