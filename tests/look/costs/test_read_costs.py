"""Read costs are those that a slow count of every batch finds; sampled ones come near."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.errors import InputError
from jaxdata.look.read_costs import Cluster, read_costs
from jaxdata.look.read_costs.fetches import Fetches, most_held
from jaxdata.look.read_costs.scattered import scattered_pages
from jaxdata.rows.map_datasets import evaluation_rows
from tests.builders import dataset
from tests.look.costs.slow_count import SlowCount

SEGMENT, GAP = 4_096, 64
ORDERS: dict[str, dict[str, Any]] = {
    "documents": {},
    "lanes": {"chunk_bytes": SEGMENT, "block_bytes": 2 * SEGMENT, "lanes": 8},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of several shards, with documents longer than a segment."""
    chance = np.random.default_rng(5)
    lengths = chance.lognormal(4, 1.2, 700).clip(2, 6_000).astype(int).tolist()
    sources = {"web": lengths[:500], "code": lengths[500:]}
    folder = tmp_path_factory.mktemp("costs") / "d"
    return dataset(folder, sources, shard_documents=200, record_tokens=1_500)


def rows_of(path: Path, **pack: Any) -> dict[str, Any]:
    opened = jaxdata.open_dataset(path)
    return {name: jaxdata.pack(opened.source("train", name), **pack) for name in ("web", "code")}


def mixed(path: Path, pack: dict[str, Any], **options: Any) -> Any:
    return jaxdata.mix(rows_of(path, seq_len=64, **pack), **options)


@pytest.mark.parametrize(
    ("order", "page"), [("documents", 2_048), ("lanes", 2_048), ("lanes", SEGMENT)]
)
def test_they_are_those_of_a_slow_count(data: Path, order: str, page: int) -> None:
    options = {"epochs": {"web": 1.3, "code": 2}}
    rows = mixed(data, ORDERS[order], **options)
    found = read_costs(rows.table, Cluster(4, 16, page_bytes=page, gap_bytes=GAP))
    segment = 0 if order == "documents" else SEGMENT
    counted = SlowCount(mixed(data, ORDERS[order], **options), 4, 16, page, segment).count(GAP)
    for way, slow in zip((found.total.pages, found.total.ranges), counted, strict=True):
        assert (way.gets, way.bytes) == (slow.gets, slow.bytes)
        assert way.first_batch_bytes == slow.first
    assert found.total.held_pages == counted[0].held
    assert found.exact
    assert found.says == "every row was followed"
    assert sum(each.pages.gets for each in found.sources.values()) == counted[0].gets
    assert {name: each.rows for name, each in found.sources.items()} == rows.counts()
    assert found.steps == -(-len(rows) // 16)


def test_following_every_segment_is_following_every_row(data: Path) -> None:
    """Where a block is one segment, a sample of all blocks is everything."""
    pack = ORDERS["lanes"] | {"block_bytes": SEGMENT}
    cluster = Cluster(4, 16, page_bytes=SEGMENT)
    table = mixed(data, pack).table
    whole, sampled = read_costs(table, cluster), read_costs(table, cluster, pieces=1)
    assert not sampled.exact
    assert "segments, chosen at random, were followed through every row" in sampled.says
    assert sampled.total.pages.gets == pytest.approx(whole.total.pages.gets, rel=1e-9)
    assert sampled.total.pages.bytes == pytest.approx(whole.total.pages.bytes, rel=1e-9)
    # Ranges of two segments may be merged where they meet.
    assert sampled.total.ranges.gets == pytest.approx(whole.total.ranges.gets, rel=0.01)
    assert 0.7 * whole.total.held_pages < sampled.total.held_pages < 2 * whole.total.held_pages


def test_single_documents_are_estimated(data: Path) -> None:
    cluster = Cluster(4, 16, page_bytes=2_048)
    table = mixed(data, ORDERS["documents"]).table
    whole, guessed = read_costs(table, cluster).total, read_costs(table, cluster, pieces=1).total
    assert guessed.pages.gets == pytest.approx(whole.pages.gets, rel=0.15)
    assert guessed.held_pages == pytest.approx(whole.held_pages, rel=0.3)


def test_one_host_of_a_long_epoch_reads_each_page_once(data: Path) -> None:
    docs = jaxdata.open_dataset(data).source("train", "web")
    found = read_costs(jaxdata.pack(docs, seq_len=64).table, Cluster(1, 8, page_bytes=1_000))
    total = found.total
    assert total.pages.bytes == total.file_bytes == docs.file_sizes.sum()
    assert total.pages.gets == (-(-docs.file_sizes // 1_000)).sum()
    assert total.over(total.pages) == 1
    assert found.rows_a_batch("train/web") == pytest.approx(8, rel=0.05)


def test_a_run_that_is_amended_is_followed(data: Path) -> None:
    rows = mixed(data, ORDERS["lanes"])
    later = rows.amend(300, rows=rows_of(data, seq_len=128))
    found = read_costs(later.table, Cluster(2, 8, page_bytes=SEGMENT))
    assert found.total.rows == len(later)
    assert found.total.pages.bytes >= found.total.file_bytes * 0.9
    part = read_costs(later.table, Cluster(2, 8, page_bytes=SEGMENT), pieces=1)
    assert part.says == (
        f"only the first 8 of {len(later):,} rows were followed, as if the run ended there"
    )
    assert part.total.rows == 8


def test_what_a_cluster_refuses() -> None:
    with pytest.raises(InputError, match=r"hosts=0: expected a whole number of at least 1"):
        Cluster(0, 8)
    with pytest.raises(InputError, match=r"a batch of 12 rows cannot be divided among 8 hosts: "):
        Cluster(8, 12)


@given(st.data())
@settings(max_examples=60)
def test_most_held_is_that_of_counting(data: st.DataObject) -> None:
    times = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
    each = data.draw(st.lists(st.tuples(st.integers(0, 2), times, st.integers(1, 5)), max_size=12))
    columns = [(host, 0, size, first, last) for host, (first, last), size in each]
    fetches = Fetches(*np.array(columns, np.int64).reshape(-1, 5).T)
    slow = [
        sum(s for h, _, s, a, b in columns if h == host and a <= step <= b)
        for host in range(3)
        for step in range(10)
    ]
    assert most_held(fetches, fetches.size) == max(slow)


@pytest.mark.parametrize(("touches", "hosts"), [(3, 4), (20, 4), (60, 64), (5, 1)])
def test_scattered_pages_are_those_of_a_simulation(touches: float, hosts: int) -> None:
    chance, pages, fetched, held = np.random.default_rng(1), 5_000, 0, 0
    for times in chance.poisson(touches, pages):
        host, when = chance.integers(0, hosts, times), chance.random(times)
        for one in np.unique(host):
            fetched += 1
            mine = when[host == one]
            held += mine.min() < 0.5 < mine.max()
    found = scattered_pages(pages, touches, hosts, epochs=2)
    assert found.fetched == pytest.approx(2 * fetched, rel=0.06)
    assert found.held == pytest.approx(held / hosts, rel=0.06)


def test_part_of_an_epoch_touches_fewer_pages() -> None:
    whole, part = (scattered_pages(100, 8, 4, epochs=epochs) for epochs in (2, 0.25))
    assert scattered_pages(100, 2, 4, epochs=1) == part
    both = scattered_pages(100, 8, 4, epochs=2.25)
    assert both.fetched == pytest.approx(whole.fetched + part.fetched)
    assert both.held == whole.held > part.held > 0
    assert scattered_pages(100, 8, 4, epochs=0) == (0, 0)


def test_rows_in_the_order_of_the_dataset_and_of_megatron(data: Path) -> None:
    """They have no lanes; the first are never sampled."""
    opened = jaxdata.open_dataset(data)
    table = evaluation_rows(opened, "train", seq_len=64).table
    found = read_costs(table, Cluster(2, 8, page_bytes=2_048))
    assert found.total.over(found.total.pages) == pytest.approx(2, rel=0.1)
    assert {*found.sources} == {*table.names}
    part = read_costs(table, Cluster(2, 8, page_bytes=2_048), pieces=1)
    assert part.says.startswith("only the first 8 of ")
    rows = jaxdata.rows.megatron.gpt(opened.source("train", "web"), seq_len=64)
    megatron = read_costs(rows.table, Cluster(2, 8, page_bytes=2_048)).total
    assert megatron.rows == len(rows)
    assert megatron.over(megatron.pages) == pytest.approx(2, rel=0.1)  # its order deals documents
    assert megatron.over(megatron.ranges) == pytest.approx(1, rel=0.2)
