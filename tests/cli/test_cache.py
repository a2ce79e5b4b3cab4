"""`jaxdata cache`: what a host keeps, and what is removed."""

import gc
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.storage.pages.own_folder import place_of
from jaxdata.storage.pages.page_cache import PageCache, Wanted, close_caches
from jaxdata.testing import write_dataset
from tests import builders, commands
from tests.storage.buckets.conftest import use
from tests.storage.servers import BucketServer, bucket_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    """A bucket with 10 MB of two sources, and `run.yaml`, which trains on them."""
    (tmp_path / "bkt").mkdir()
    chance = np.random.default_rng(3)
    tokens = [chance.integers(1, 50_000, n).astype(np.uint16) for n in [5_000] * 1_000]
    sources = {"train/web": tokens[:800], "train/code": tokens[800:]}
    write_dataset(tmp_path / "bkt/ds", sources, shard_documents=200)
    gc.collect()  # an open store of this bucket would lead to the server before
    with bucket_server("gs", folder=tmp_path) as served:
        use(served, monkeypatch)
        pack = {"seq_len": 512, "lanes": 2, "chunk_bytes": 2**20}
        where = {"dataset": served.url("bkt/ds")}
        builders.run(tmp_path, **where, pack=pack, loader={"batch_size": 16})
        yield served


def run(*words: str | Path, status: int = 0) -> str:
    """What the command prints; this process lets go of its cache, as one that ends does."""
    done = commands.run("cache", *words, status=status)
    close_caches()
    return done.stdout or done.stderr


def keep_plan(size: int) -> Path:
    path = Path(os.environ["JAXDATA_CACHE"]) / f"plans/{'0123abcd' * 4}.npy"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def test_what_is_there_is_listed_and_cleared(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run("ls").splitlines()
    assert lines[0] == f"folder   {os.environ['JAXDATA_CACHE']} (JAXDATA_CACHE)"
    assert lines[2] == "pages    0 pages of 0 shards, 0.0 MB"
    for batch in jaxdata.load(tmp_path / "run.yaml"):
        del batch
    close_caches()
    kept = keep_plan(3_000_000)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "50000000")
    printed = run("ls")
    assert "limit    50.0 MB, of which 10." in printed
    assert "pages    10 pages of 5 shards, 10." in printed
    assert "kept     1 file of plans, 3.0 MB" in printed
    table = {tuple(line.split()[:2]): line.split()[2:] for line in printed.splitlines()}
    assert table[server.url("bkt/ds"), "train/web"][:2] == ["4", "8"]
    assert table[server.url("bkt/ds"), "train/code"][:2] == ["1", "2"]
    assert sum(each["bytes"] for each in json.loads(run("ls", "--json"))["files"]) > 10**7
    assert re.match(r"1\d pages \(.* MB\) removed\n", run("clear"))
    assert kept.exists()
    assert run("clear", "--all") == "0 pages (0.0 MB) and 1 kept file (3.0 MB) removed\n"
    assert not kept.exists()


def test_verify_names_and_removes_damaged_pages(tmp_path: Path) -> None:
    cache = PageCache(place_of(tmp_path / "cache"), 10**6)
    names = [f"{each * 32}/{part}" for each in "ab" for part in ("0-1000", "1000-2000")]
    for name in [*names, f"{'c' * 32}/column"]:
        assert cache.fetch(Wanted(name, 1_000, lambda name=name: [name.ljust(1_000).encode()]))  # type: ignore[misc]
    cache.label("a" * 32, "gs://bkt/ds\ntrain/web/0.array_record")
    cache.label("c" * 32, "gs://bkt/ds\ntrain/web/index/length")
    cache.close()
    assert run("verify") == "5 pages (0.0 MB) compared: all are what was written\n"
    pages = place_of(tmp_path / "cache") / "pages"
    damaged = [pages / names[1], pages / names[2], pages / f"{'c' * 32}/column"]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-40])
    assert run("verify", status=1).splitlines() == [
        f"damaged: gs://bkt/ds/train/web/0.array_record, bytes 1,000 to 2,000 ({damaged[0]})",
        f"damaged: a file {'b' * 32}, bytes 0 to 1,000 ({damaged[1]})",
        f"damaged: gs://bkt/ds/train/web/index/length ({damaged[2]})",
        "5 pages (0.0 MB) compared: 3 damaged and removed; runs fetch them again where they need "
        "them. Look after the disk",
    ]
    assert not any(path.exists() for path in damaged)
    assert run("verify").startswith("2 pages ")
