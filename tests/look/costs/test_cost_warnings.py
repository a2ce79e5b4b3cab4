"""What `jaxdata plan --hosts` prints, warns of and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.look.read_costs import Cluster, Costs, ReadCosts, SourceCosts, Way, dear, too_small
from tests import builders
from tests.commands import run

WAY = Way(gets=4_000, bytes=4_000_000, first_batch_bytes=10)
EXACT = Way(gets=7.04e9, bytes=1_020_000, first_batch_bytes=5)
TOTAL = Costs(
    rows=6_400,
    epochs=1,
    file_bytes=1_000_000,
    pages=WAY,
    ranges=EXACT,
    held_pages=80,
    held_bytes=80 * 2**20,
)
SOURCE = SourceCosts(**vars(TOTAL), lanes=512, chunk_bytes=2**20, shares_pages=False)
MESSAGE = "web: hosts download 4.0 times its bytes through pages: "
INSTEAD = "Exact ranges would be 1.02 times in 7.04e9 GETs, pages are 4,000"


def costs(*, steps: int = 10, **changes: Any) -> ReadCosts:
    cluster = Cluster(64, 640, cache_bytes=changes.pop("cache_bytes", None))
    sources = {"web": replace(SOURCE, **changes)}
    return ReadCosts(cluster, steps, sources, TOTAL, exact=True, says="")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"steps": 640}, "a batch has 10 rows of it, fewer than the 64 hosts"),
        ({"lanes": 8}, "it has 8 lanes, fewer than the 64 hosts"),
        (
            {"steps": 640, "lanes": 1},
            "a batch has 10 rows of it, fewer than the 64 hosts; it has 1 lane, fewer than the 64 "
            "hosts",
        ),
        (
            {},
            "its 512 lanes and 640 rows a batch do not fall to the 64 hosts alike in every step",
        ),
        (
            {"chunk_bytes": 3_000, "shares_pages": True},
            "pages of 1 MiB are no whole part of its chunks of 2.93 KiB; use --page-bytes 3000",
        ),
        (
            {"chunk_bytes": 0, "shares_pages": True},
            "it is dealt by single documents, as sources below 2 GiB are, so every host needs "
            "every page: a copy of 977 KiB a host; chunk_bytes deals whole pages",
        ),
    ],
)
def test_the_cause_is_named(changes: dict[str, Any], cause: str) -> None:
    assert dear(costs(**changes)) == [f"{MESSAGE}{cause}. {INSTEAD}"]


def test_nothing_is_said_of_what_is_cheap() -> None:
    assert dear(costs(pages=replace(WAY, bytes=1_500_000))) == []
    assert dear(costs(pages=replace(WAY, bytes=1_500_001))) != []
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
    asked = ["plan", config, "--hosts", "4", "--page-bytes", "8192"]
    found = json.loads(run(*asked, "--json").stdout)["read_costs"]
    assert (found["hosts"], found["batch_size"], found["ok"]) == (4, 16, True)  # the largest
    printed = run(*asked).stdout
    assert max(map(len, printed.split("every row")[0].splitlines()[:-1])) <= 80
    assert "4 hosts, batches of 16; pages of 8 KiB, each fetched once a host" in printed
    assert "900 documents planned in " in printed
    assert "every row was followed" in printed
    lines = [line.split() for line in printed.splitlines() if line.startswith("  total ")]
    for line, way in zip(lines, ("pages", "ranges"), strict=True):
        assert line[1] == f"{found['total'][way]['gets']:,.0f}"
        assert f"{found['total'][way]['over_dataset']:.2f}" in line
    assert lines[0][5] == f"{found['total']['held_pages']:,.0f}"
    assert "GETs" not in run("plan", config).stdout
    assert "1 host, batches of 8" in run("plan", config, "--batch-size", "8").stdout


def test_the_command_refuses(config: Path) -> None:
    asked = ["plan", config, "--hosts", "8", "--page-bytes", "8192", "--cache-bytes", "9000"]
    printed = run(*asked, status=1).stdout
    assert "too small: a cache of 8.79 KiB cannot hold the " in printed
    assert "dear: web: hosts download " in printed
    assert "it has 4 lanes, fewer than the 8 hosts" in printed
    found = json.loads(run(*asked, "--json", status=1).stdout)["read_costs"]
    assert not found["ok"]
    assert found["warnings"][-1].startswith("a cache of 8.79 KiB cannot hold")
    assert run("plan", config, "--hosts", "3", status=1).stderr == (
        "error: a batch of 16 rows cannot be divided among 3 hosts: choose a multiple of the "
        "hosts\n"
    )


def test_names_of_sources_are_safe_for_a_terminal() -> None:
    found = costs(lanes=8)
    unsafe = replace(found, sources={"a\x1b[31m": found.sources["web"]})
    assert dear(unsafe)[0].startswith("a\\x1b[31m: hosts")
