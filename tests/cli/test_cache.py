"""`jaxdata cache`: what it fetches is what a run then finds, and what it removes nobody needs."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import islice
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


READS = """
import itertools, sys, zlib, jaxdata
loader = jaxdata.load(sys.argv[1], shard=(1, 2))
rows = [batch["inputs"].tobytes() for batch in itertools.islice(loader, 40)]
print(zlib.crc32(b"".join(rows)))
"""


def keep_plan(size: int) -> Path:
    path = Path(os.environ["JAXDATA_CACHE"]) / f"plans/{'0123abcd' * 4}.npy"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def shards(server: BucketServer) -> list[str]:
    return [each.object for each in server.requests if each.object.endswith(".array_record")]


def warm(folder: Path, *words: str, status: int = 0) -> list[str]:
    given = ["--config", folder / "run.yaml", "--hosts", "2", "--host", "1"]
    return run("warm", *given, *words, status=status).splitlines()


def test_a_run_finds_what_was_fetched(server: BucketServer, tmp_path: Path) -> None:
    near = jaxdata.load(tmp_path / "run.yaml", dataset=str(tmp_path / "bkt/ds"), shard=(1, 2))
    rows = [batch["inputs"].tobytes() for batch in islice(near, 40)]
    assert not server.requests
    (line,) = warm(tmp_path, "--steps", "40")
    found = re.fullmatch(
        r"40 batches of host 1 of 2: (\d+) pages \((.*) MB\) are here; (\d+) GETs, (.*) MB "
        r"fetched in [\d.]+ s",
        line,
    )
    assert found, line
    pages, megabytes = int(found[1]), float(found[2])
    assert len(shards(server)) == pages < 11, "a page once, and not all"
    assert pages < int(found[3])
    assert pages <= megabytes <= float(found[4]) < 11
    assert "; 0 GETs, 0.0 MB fetched in" in warm(tmp_path, "--steps", "40")[0]
    server.clear()
    kept = keep_plan(1_000)
    given = [sys.executable, "-c", READS, tmp_path / "run.yaml"]
    assert int(subprocess.check_output(given)) == zlib.crc32(b"".join(rows))
    assert not shards(server)
    assert not [each for each in server.requests if "/c/" in each.object], "index columns"
    assert kept.exists()
    said = run("clear", "--all")
    assert re.match(r"\d+ pages \(.* MB\) and \d+ kept files? \(.* MB\) removed\n", said), said
    assert not kept.exists()
    assert run("clear") == "0 pages (0.0 MB) removed\n"


def test_ls_says_what_is_there(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run("ls").splitlines()
    assert lines[0] == f"folder   {os.environ['JAXDATA_CACHE']} (JAXDATA_CACHE)"
    assert lines[2] == "pages    0 pages of 0 shards, 0.0 MB"
    warm(tmp_path)
    keep_plan(3_000_000)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "50000000")
    printed = run("ls")
    assert "limit    50.0 MB, of which 10." in printed
    assert "pages    10 pages of 5 shards, 10." in printed
    assert "kept     1 file of plans, 3.0 MB" in printed
    table = {tuple(line.split()[:2]): line.split()[2:] for line in printed.splitlines()}
    assert table[server.url("bkt/ds"), "train/web"][:2] == ["4", "8"]
    assert table[server.url("bkt/ds"), "train/code"][:2] == ["1", "2"]
    assert sum(each["bytes"] for each in json.loads(run("ls", "--json"))["files"]) > 10**7


def test_the_cache_is_the_limit(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(8 * 2**20))
    full, _ = warm(tmp_path, "--pack.block_bytes", str(2**20), "--pack.lanes", "1")
    assert re.match(r"the cache is full after [\d,]+ of [\d,]+ batches: JAXDATA_CACHE_BYTES", full)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*-*")) <= 9 * 2**20


def test_what_cannot_be_fetched(tmp_path: Path) -> None:
    builders.run(tmp_path, {"web": 9}, pack={"seq_len": 8}, loader={"batch_size": 4})
    (said,) = warm(tmp_path, "--host", "2", status=1)
    assert said.startswith("error: --host 2 of --hosts 2: expected 0 to 1")
    (said,) = warm(tmp_path, status=1)
    assert said.startswith("error: nothing to fetch: no source of this run lies in a b")


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
