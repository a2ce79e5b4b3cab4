"""Read costs come near a slow count of batches; what `preview --hosts` prints and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.errors import InputError
from jaxdata.look.read_costs import (
    Cluster,
    Costs,
    ReadCosts,
    Way,
    _Pool,
    dear,
    hosts_of,
    read_costs,
    too_small,
)
from jaxdata.rows.lanes import downloads
from tests import builders
from tests.commands import run
from tests.look.slow_count import SlowCount

CHUNK, GAP = 4_096, 64
ORDERS: dict[str, dict[str, Any]] = {
    "documents": {},
    "lanes": {"chunk_bytes": CHUNK, "block_bytes": 2 * CHUNK, "lanes": 8},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of several shards, with documents longer than a chunk."""
    chance = np.random.default_rng(5)
    lengths = chance.lognormal(4, 1.2, 700).clip(2, 6_000).astype(int).tolist()
    sources = {"web": lengths[:500], "code": lengths[500:]}
    folder = tmp_path_factory.mktemp("costs") / "d"
    return builders.dataset(folder, sources, shard_documents=200, record_tokens=1_500)


def mixed(path: Path, order: str, **options: Any) -> Any:
    opened, pack = jaxdata.open_dataset(path), ORDERS[order]
    rows = {n: jaxdata.pack(opened.source("train", n), seq_len=64, **pack) for n in ("web", "code")}
    return jaxdata.mix(rows, **options)


@pytest.mark.parametrize("hosts", [1, 4, 8])
@pytest.mark.parametrize(
    ("order", "page"), [("documents", 2_048), ("lanes", 2_048), ("lanes", CHUNK)]
)
def test_they_come_near_a_slow_count(data: Path, order: str, page: int, hosts: int) -> None:
    """Within a tenth, of blocks of two chunks; where they are larger, chance matters less."""
    options = {"epochs": {"web": 1.3, "code": 2}}
    rows = mixed(data, order, **options)
    found = read_costs(rows.table, Cluster(hosts, 16, page_bytes=page))
    chunk = 0 if order == "documents" else CHUNK
    pages, exact = SlowCount(mixed(data, order, **options), hosts, 16, page, chunk).count(GAP)
    assert found.total.pages.bytes == pytest.approx(pages.bytes, rel=0.1)
    assert found.total.pages.gets == pytest.approx(pages.gets, rel=0.12)
    assert 0.45 < found.total.pages.first_batch_bytes / pages.first < 2
    assert 0.6 < found.total.held_pages / pages.held < 1.9
    assert found.total.ranges.bytes == pytest.approx(exact.bytes, rel=0.1)
    assert found.total.ranges.gets == pytest.approx(exact.gets, rel=0.12)
    assert 0.45 < found.total.ranges.first_batch_bytes / exact.first < 2
    assert {name: each.rows for name, each in found.sources.items()} == rows.counts()
    assert sum(each.rows_a_batch for each in found.sources.values()) == len(rows) / found.steps


def test_a_pool_is_what_a_simulation_finds() -> None:
    chance, pages, rows, hosts, parts = np.random.default_rng(1), 20, 400, 8, 3
    missed, held = np.zeros(hosts), np.zeros(hosts)
    reader = np.sort(chance.integers(0, hosts, rows) * chance.integers(0, 2, rows))  # uneven
    of_host = np.bincount(reader, minlength=hosts)
    for _ in range(60):
        when = chance.permutation(rows)
        for page in range(pages):
            having = np.flatnonzero((chance.integers(0, pages, (rows, parts)) == page).any(axis=1))
            for host in range(hosts):
                mine = when[having[reader[having] == host]]
                missed[host] += not len(mine)
                held[host] += np.ptp(mine) if len(mine) else 0
    pool = _Pool(pages, rows, parts, of_host.astype(float), np.full(hosts, float(rows)))
    assert pool.missed == pytest.approx(missed / 60 / pages, abs=0.02)
    assert pool.held == pytest.approx(held / 60, rel=0.15)


@pytest.mark.parametrize("order", ORDERS)
def test_hosts_are_those_of_a_loader(data: Path, order: str) -> None:
    rows = mixed(data, order)
    loader = jaxdata.Loader(rows, batch_size=16, prefetch=0)
    numbers = np.arange(len(rows))[len(rows) % 7 :: 3]
    step, host = hosts_of(rows.table, numbers, Cluster(4, 16))
    for row, s, h in zip(numbers.tolist(), step.tolist(), host.tolist(), strict=True):
        assert loader.batch_rows(s).tolist().index(row) // 4 == h


def test_one_host_of_a_long_epoch_reads_each_page_once(data: Path) -> None:
    docs = jaxdata.open_dataset(data).source("train", "web")
    total = read_costs(jaxdata.pack(docs, seq_len=64).table, Cluster(1, 8, page_bytes=1_000)).total
    assert total.file_bytes == docs.file_sizes.sum()
    assert total.over(total.pages) == pytest.approx(1, abs=0.02)


def test_pages_that_two_chunks_share_are_dearer(data: Path) -> None:
    table = mixed(data, "lanes").table
    (whole, shared) = (read_costs(table, Cluster(4, 16, page_bytes=n)).total for n in (2048, 3000))
    assert 1.4 * whole.over(whole.pages) < shared.over(shared.pages) < 2 * whole.over(whole.pages)
    huge = read_costs(table, Cluster(4, 16)).total
    assert huge.over(huge.pages) <= 4


def test_megatrons_order_deals_documents_and_an_amended_run_is_estimated(data: Path) -> None:
    docs = jaxdata.open_dataset(data).source("train", "web")
    rows = jaxdata.rows.megatron.gpt(docs, seq_len=64)
    megatron = read_costs(rows.table, Cluster(2, 8, page_bytes=2_048)).total
    assert megatron.over(megatron.pages) == pytest.approx(2, rel=0.1)
    later = mixed(data, "lanes").amend(
        300, phases=[jaxdata.Phase(rows=200, weights={"web": 1, "code": 1})]
    )
    found = read_costs(later.table, Cluster(2, 8, page_bytes=CHUNK)).total
    assert found.rows == len(later) == 500
    assert 1 < found.over(found.pages) < 3


def test_a_loader_warns_of_the_same_factor(tmp_path: Path) -> None:
    """Where pools have rows of every host, as those of large sources do."""
    lengths = np.random.default_rng(0).integers(20, 120, 6_000).tolist()
    builders.dataset(tmp_path / "d", {"web": lengths})
    docs = jaxdata.open_dataset(tmp_path / "d").source("train", "web")
    for lanes in (0, 4, 8):
        order = {"chunk_bytes": CHUNK, "block_bytes": 2 * CHUNK, "lanes": lanes} if lanes else {}
        table = jaxdata.pack(docs, seq_len=32, **order).table
        for hosts in (1, 2, 3, 4, 8):
            found = read_costs(table, Cluster(hosts, 192, page_bytes=CHUNK)).total
            told = downloads(hosts, table.lanes, CHUNK if lanes else 0)
            assert found.over(found.pages) == pytest.approx(told, rel=0.15)


@pytest.mark.parametrize("order", ORDERS)
def test_a_source_that_is_not_read_costs_nothing(data: Path, order: str) -> None:
    alone = mixed(data, order, phases=[jaxdata.Phase(rows=64, weights={"web": 1, "code": 0})])
    found = read_costs(alone.table, Cluster(2, 8, page_bytes=CHUNK))
    unread = found.sources["code"]
    assert (unread.rows, unread.pages, unread.ranges) == (0, Way(0, 0, 0), Way(0, 0, 0))
    assert (unread.held_pages, found.total.pages) == (0, found.sources["web"].pages)


def test_what_a_cluster_refuses() -> None:
    with pytest.raises(InputError, match=r"a batch of 12 rows cannot be divided among 8 hosts: "):
        Cluster(8, 12)


WAY = Way(gets=4_000, bytes=4_000_000, first_batch_bytes=10)
EXACT = Way(gets=7.04e9, bytes=1_020_000, first_batch_bytes=5)
SOURCE = Costs(
    rows=6_400,
    epochs=1,
    file_bytes=1_000_000,
    pages=WAY,
    ranges=EXACT,
    held_pages=80,
    held_bytes=80 * 2**20,
    rows_a_batch=640,
    lanes=512,
    chunk_bytes=2**20,
)
MESSAGE = "web: hosts download 4.0 times its bytes through pages: "
INSTEAD = "Exact ranges would be 1.02 times in 7.04e9 GETs, pages are 4,000"


def costs(**changes: Any) -> ReadCosts:
    cluster = Cluster(64, 640, cache_bytes=changes.pop("cache_bytes", None))
    sources = {"web": replace(SOURCE, **changes)}
    return ReadCosts(cluster, 10, sources, SOURCE)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"rows_a_batch": 10}, "a batch has 10 rows of it, fewer than the 64 hosts"),
        ({"lanes": 8}, "it has 8 lanes, fewer than the 64 hosts"),
        (
            {"rows_a_batch": 10, "lanes": 1},
            "a batch has 10 rows of it, fewer than the 64 hosts; it has 1 lane, fewer than the 64 "
            "hosts",
        ),
        (
            {},
            "its 512 lanes and 640 rows a batch do not fall to the 64 hosts alike in every step",
        ),
        (
            {"chunk_bytes": 3_000},
            "pages of 1 MiB are no whole part of its chunks of 2.93 KiB; set pack.chunk_bytes to a "
            "multiple of 1048576",
        ),
        (
            {"chunk_bytes": 0},
            "it is dealt by single documents, as sources below 2 GiB are, so every host needs "
            "every page: a copy of 977 KiB a host; chunk_bytes deals whole pages",
        ),
    ],
)
def test_the_cause_is_named(changes: dict[str, Any], cause: str) -> None:
    assert dear(costs(**changes)) == [f"{MESSAGE}{cause}. {INSTEAD}"]


def test_nothing_is_said_of_what_is_cheap() -> None:
    assert dear(costs(pages=WAY._replace(bytes=1_500_000))) == []
    assert dear(costs(pages=WAY._replace(bytes=1_500_001))) != []
    assert dear(costs(epochs=4)) == []  # as often as it is trained


def test_a_cache_that_cannot_hold_what_is_open() -> None:
    assert too_small(costs()) is None
    assert too_small(costs(cache_bytes=80 * 2**20)) is None
    assert too_small(costs(cache_bytes=64 * 2**20)) == (
        "a cache of 64 MiB cannot hold the 80 pages (80 MiB) that a host has open at a time: pages "
        "would be fetched again and again. Give it at least 80 MiB, or use more hosts or a smaller "
        "pack.block_bytes"
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(0).integers(2, 200, 900).tolist()
    pack = {"seq_len": 64, "chunk_bytes": 8192, "block_bytes": 16384, "lanes": 4}
    sources = {"web": lengths[:700], "code": lengths[700:]}
    loader = {"batch_size": [[0, 8], [64, 16]]}
    return builders.run(tmp_path_factory.mktemp("plan"), sources, loader=loader, pack=pack)


def test_the_command_prints_costs(config: Path) -> None:
    asked = ["preview", config, "--hosts", "4", "--page-bytes", "8192"]
    found = json.loads(run(*asked, "--json").stdout)["read_costs"]
    assert (found["hosts"], found["batch_size"], found["ok"]) == (4, 16, True)  # the largest
    printed = run(*asked).stdout
    assert max(map(len, printed.split("x data: ")[0].splitlines())) <= 80
    assert "4 hosts, batches of 16; pages of 8 KiB, each fetched once a host" in printed
    assert "900 documents planned; " in printed
    lines = [line.split() for line in printed.splitlines() if line.startswith("  total ")]
    for line, way in zip(lines, ("pages", "ranges"), strict=True):
        assert line[1] == f"{found['total'][way]['gets']:,.0f}"
        assert f"{found['total'][way]['over_dataset']:.2f}" in line
    assert lines[0][5] == f"{found['total']['held_pages']:,.0f}"
    assert "GETs" not in run("preview", config).stdout
    smaller = run("preview", config, "--hosts", "1", "--loader.batch_size", "8").stdout
    assert "1 host, batches of 8" in smaller


def test_the_command_refuses(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(10**9))  # which wins, and is given back
    small = ["--storage.cache.bytes", "9000"]
    asked = ["preview", config, "--hosts", "8", "--page-bytes", "8192", *small]
    printed = run(*asked, status=1).stdout
    assert "FAILED  cache     a cache of 8.79 KiB cannot hold the " in printed
    assert "dear    reading   code: hosts download " in printed
    assert "it has 4 lanes, fewer than the 8 hosts" in printed
    found = json.loads(run(*asked, "--json", status=1).stdout)["read_costs"]
    assert not found["ok"]
    assert found["warnings"][-1].startswith("a cache of 8.79 KiB cannot hold")
    assert run("preview", config, "--hosts", "3", status=1).stderr == (
        "error: a batch of 16 rows cannot be divided among 3 hosts: choose a multiple of the "
        "hosts\n"
    )


def test_names_of_sources_are_safe_for_a_terminal() -> None:
    found = costs(lanes=8)
    unsafe = replace(found, sources={"a\x1b[31m": found.sources["web"]})
    assert dear(unsafe)[0].startswith("a\\x1b[31m: hosts")
