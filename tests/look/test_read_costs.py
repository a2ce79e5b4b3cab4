"""Read costs come near a count of what is fetched; what `preview --hosts` prints and refuses."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.dataset.opening import ConvertedDocuments
from jaxdata.dataset.records import file_offset
from jaxdata.feed.batches import warn_of_downloads
from jaxdata.look.read_costs import read_costs, total
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from tests import builders
from tests.commands import described, run

LANES = {"chunk_bytes": PAGE_BYTES, "block_bytes": 2 * PAGE_BYTES, "lanes": 8}
ORDERS: dict[str, dict[str, Any]] = {"documents": {}, "lanes": LANES}


@pytest.fixture(scope="module")
def data(module_path: Path) -> Path:
    """24 MB of two sources, in shards of several pages, with documents longer than one."""
    lengths = np.random.default_rng(5).lognormal(8.6, 0.6, 1_600).clip(2, 700_000).astype(int)
    sources = {"web": lengths[:1_200].tolist(), "code": lengths[1_200:].tolist()}
    ids = np.arange(700_000, dtype=np.uint16)
    made = {name: [ids[:length] for length in some] for name, some in sources.items()}
    return builders.dataset(module_path / "d", made, shard_documents=300)


def mixed(path: Path, order: str, **options: Any) -> Any:
    opened, given = jaxdata.open_dataset(path), {"seq_len": 2_048, **ORDERS[order]}
    rows = {name: jaxdata.pack(opened.source("train", name), **given) for name in ("web", "code")}
    return jaxdata.mix(rows, **options)


def fetched(rows: Any, hosts: int, batch_size: int) -> tuple[int, int]:
    """Requests and bytes: each host fetches a page, and what spills over its end, once an epoch."""
    loader = jaxdata.Loader(rows, batch_size=batch_size)
    numbers = np.concatenate([loader.batch_rows(step) for step in range(len(loader))])
    found, (_, source, rank) = rows.table.segments(numbers), rows.table.select(numbers)
    epoch = (rank // np.array([*map(len, rows.sources.values())])[source])[found.row]
    host = found.row % batch_size * hosts // batch_size
    readers = np.stack([host, epoch, found.source], axis=1)
    pages, chunks = set[Any](), rows.table.lanes > 1
    for reader in np.unique(readers, axis=0).tolist():
        mine = np.flatnonzero((readers == reader).all(axis=1))
        docs, document = rows.table.documents[reader[2]], found.document[mine]
        left = docs.lengths[document] - found.start[mine]
        wanted = document, found.start[mine], np.minimum(found.slots[mine] + 1, left)
        for file, start, _, page, _ in zip(*docs.page_ranges(*wanted), strict=True):
            pages.add((*reader, int(file), int(page if chunks else start // PAGE_BYTES)))
    size = 0
    for *_, source, file, page in pages:
        left = int(rows.table.documents[source].file_sizes[file]) - page * PAGE_BYTES
        over = spills(rows.table.documents[source]).get((file, page), 0)
        size += min(left, PAGE_BYTES) + chunks * over
    return len(pages), size


@cache
def spills(docs: Any) -> dict[tuple[int, int], int]:
    """By file and page, the bytes of a document that goes on in the next page and ends there."""
    shard, stream = docs.index.locate(np.arange(len(docs)))
    begin, end = file_offset(stream), file_offset(stream + docs.spec.stream_bytes(docs.lengths))
    on = end // PAGE_BYTES > begin // PAGE_BYTES
    places = zip(shard[on].tolist(), (end[on] // PAGE_BYTES - 1).tolist(), strict=True)
    return dict(zip(places, (end[on] % PAGE_BYTES).tolist(), strict=True))


@pytest.mark.parametrize(("order", "hosts"), [("documents", 4), ("lanes", 8)])
def test_they_come_near_what_is_fetched(data: Path, order: str, hosts: int) -> None:
    rows = mixed(data, order, epochs={"web": 1.3, "code": 2})
    found = read_costs(rows.table, hosts, 16)
    gets, size = fetched(rows, hosts, 16)
    every = total(found)
    assert every.bytes == pytest.approx(size, rel=0.1)
    assert every.gets == pytest.approx(gets, rel=0.12)
    assert every.epochs == pytest.approx(len(rows) / sum(map(len, rows.sources.values())), rel=0.02)
    assert every.file_bytes == sum(int(docs.file_sizes.sum()) for docs in rows.table.documents)


LANES_HOSTS_SOURCES: list[Any] = [
    (8, 12, 1),
    (8, 8, 1),
    (8, 8, 2),
    (8, 8, 12),
    (8, 24, 12),
    (0, 8, 1),
    (0, 8, 2),
]


@pytest.mark.parametrize(("lanes", "hosts", "sources"), LANES_HOSTS_SOURCES)
def test_a_loader_warns_of_the_same_factor(
    data: Path, lanes: int, hosts: int, sources: int, monkeypatch: Any, caplog: Any
) -> None:
    """But for what spills over the ends of pages, and for pages that few hosts need."""
    monkeypatch.setattr(ConvertedDocuments, "is_far", True)
    docs = jaxdata.open_dataset(data).source("train", "web")
    order = ORDERS["lanes"] | {"lanes": lanes} if lanes else {}
    packed = {f"s{k}": jaxdata.pack(docs, seq_len=256, seed=k, **order) for k in range(sources)}
    rows = packed["s0"].table if sources == 1 else jaxdata.mix(packed).table
    found = read_costs(rows, hosts, 48)
    warn_of_downloads(rows, hosts, 48)
    (said,) = caplog.messages
    assert total(found).over == pytest.approx(float(said.split(" times ")[0].split()[-1]), rel=0.1)
    held = docs.file_sizes.sum() if not lanes else packed["s0"].table.open_bytes / hosts
    assert found[rows.names[0]].held_bytes == pytest.approx(min(held, docs.file_sizes.sum()))


def test_the_command_prints_them_for_the_lanes_there_are_and_better_ones(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(10**9))  # which wins, and is given back
    sections = {"pack": {"seq_len": 2_048, "lanes": 1}, "loader": {"batch_size": 16}}
    config = builders.run(tmp_path, dataset=str(data), **sections)
    asked = ["preview", config, "--hosts", "4"]
    printed = run(*asked).stdout
    assert max(len(line.rstrip()) for line in printed.split("x data: ")[0].splitlines()) <= 80
    assert "4 hosts that read a bucket" in printed
    assert "dear    reading   code: hosts download 4.0 times its bytes: single documents" in printed
    found = described(*asked)["read_costs"]
    assert found["better"]["pack"] == {"lanes": 4, "chunk_bytes": PAGE_BYTES}
    assert found["better"]["over_dataset"] < found["total"]["over_dataset"] - 0.5
    (line,) = (line.split() for line in printed.splitlines() if line.startswith("  total  "))
    assert f"{found['total']['over_dataset']:.2f}" in line
    assert "GETs" not in run("preview", config).stdout
    said = run("preview", config, "--hosts", "3", status=1).stderr
    assert "a batch of 16 rows cannot be divided among 3 hosts: choose a multiple" in said
    small = run(*asked, "--storage.cache.bytes", "9000", status=1).stdout
    assert "FAILED  reading   code: hosts download" in small
    assert "a cache of 9.0 kB cannot hold the " in small
