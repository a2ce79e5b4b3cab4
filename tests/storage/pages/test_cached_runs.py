"""Batches from a bucket through the page cache of a host: the same rows, few requests, few bytes.

The bucket is in this process (memory://); `storage/buckets` has the servers.
"""

import time
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.storage import open_store
from jaxdata.storage.pages.page_cache import PageCache, close_caches
from jaxdata.storage.pages.paged_files import PagedFiles, PageRanges
from jaxdata.storage.pages.read_counts import READS
from jaxdata.testing import assert_same_batches
from tests.builders import dataset

Patch = pytest.MonkeyPatch
PAGE = 2**16
SEGMENTS: dict[str, Any] = {"chunk_bytes": PAGE, "block_bytes": 2 * PAGE, "lanes": 4}
LENGTHS = np.clip(np.random.default_rng(7).lognormal(5.5, 1.2, 1_500), 5, 40_000).astype(int)
_numbers = count()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: Patch) -> None:
    """Pages of a block, so that small data has many."""
    for module in ("dataset.index", "dataset.opening", "storage.pages.paged_files"):
        monkeypatch.setattr(f"jaxdata.{module}.PAGE_BYTES", PAGE)


@pytest.fixture
def _in_time(monkeypatch: Patch) -> None:
    """However busy the machine: a page that was worth fetching is there when it is needed."""
    gather = PagedFiles.gather

    def waiting(self: PagedFiles, ranges: PageRanges) -> Any:
        while not self.prefetch_pages(self.pages_of(ranges)).all():
            time.sleep(0.001)
        return gather(self, ranges)

    monkeypatch.setattr(PagedFiles, "gather", waiting)
    monkeypatch.setattr(PageCache, "is_behind", False)


class Bucket:
    """The same dataset in a folder and in a bucket."""

    def __init__(self, folder: Path, **options: Any) -> None:
        chance = np.random.default_rng(7)
        tokens = [chance.integers(1, 50_000, n).astype(np.uint16) for n in LENGTHS]
        options.setdefault("masks", {"web": [chance.integers(0, 2, n) for n in LENGTHS]})
        self.folder, self.url = folder / "ds", f"memory://pages-{next(_numbers)}/ds"
        for path in (self.folder, self.url):
            dataset(path, {"web": tokens}, shard_documents=500, **options)  # type: ignore[arg-type]
        sizes = [path.stat().st_size for path in self.folder.rglob("*.array_record")]
        self.size, self.pages = sum(sizes), sum(-(-size // PAGE) for size in sizes)

    def same(self, batches: int | None = None, **settings: Any) -> Any:
        """Compare batches; returns what was fetched for those from the bucket."""
        far, near = loader(self.url, **settings), loader(self.folder, **settings)
        assert_same_batches(islice(far, batches), islice(near, batches))
        found = far.report().reads
        far.close()
        return found


def loader(path: Any, **settings: Any) -> jaxdata.Loader:
    rows = jaxdata.pack(jaxdata.open_dataset(path).source("train", "web"), seq_len=256, **settings)
    return jaxdata.Loader(rows, batch_size=16, shard=(0, 1))


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("settings", [{}, {"strategy": "concat"}, SEGMENTS])
def test_every_row_is_the_one_on_disk_and_each_page_is_fetched_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    bucket = Bucket(tmp_path)
    reads = bucket.same(**settings)
    assert bucket.pages - 3 <= reads.pages <= bucket.pages, "a footer may lie alone in its page"
    assert reads.damaged_pages == 0
    assert reads.hits >= max(len(LENGTHS), reads.misses)
    assert reads.used_bytes <= bucket.size < reads.bytes + 3 * PAGE
    again = bucket.same(**settings)
    assert (again.pages, again.misses) == (0, 0), "all is here"


def test_a_cache_too_small_is_said_and_ranges_are_exact(
    tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = Bucket(tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(bucket.size // 8))
    reads = bucket.same()
    assert (reads.pages, reads.hits) == (0, 0)
    (said,) = [text for text in caplog.messages if "train/web" in text]
    assert "its rows are read from" in said
    assert "JAXDATA_CACHE_BYTES sets the size of the cache" in said


def test_balance_has_no_page_fetched_for_rows_of_other_hosts_lanes(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    bucket = Bucket(tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(bucket.size * 7 // 8))
    asked: list[int] = []
    prefetch_pages = PagedFiles.prefetch_pages

    def recorded(self: PagedFiles, numbers: Any) -> Any:
        asked.extend(numbers.tolist())
        return prefetch_pages(self, numbers)

    monkeypatch.setattr(PagedFiles, "prefetch_pages", recorded)
    seen, moved = {}, 0
    rows = loader(bucket.url, **SEGMENTS).rows
    for balance in (None, "attention"):
        one = jaxdata.Loader(rows, batch_size=16, shard=(0, 2), balance=balance, prefetch=0)
        moved = len(one.maker().share.own_and_moved(list(one.schedule.spans()))[1])
        asked.clear()
        for _ in one:
            pass
        one.close()
        close_caches()
        monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
        seen[balance] = set(asked)
    assert moved > 10
    assert seen["attention"] <= seen[None]
    assert len(seen[None]) < 0.9 * bucket.pages


def test_an_object_that_is_overwritten_under_a_run_is_refused_by_name(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    docs = jaxdata.open_dataset(bucket.url).source("train", "web")

    def read(document: int) -> bytes:
        one = (np.array([number]) for number in (document, 0, 2))
        return docs.tokens(*one).views.join()  # type: ignore[attr-defined,no-any-return]

    assert read(500)
    shard = "train/web/00001-00000.array_record"
    open_store(bucket.url).write(shard, (bucket.folder / shard).read_bytes()[:-1] + b"x")
    with pytest.raises(DatasetError, match=r"00001-00000.array_record changed while it was"):
        read(950)


def test_of_a_long_index_only_parts_are_fetched(tmp_path: Path, monkeypatch: Patch) -> None:
    bucket = Bucket(tmp_path)
    next(loader(bucket.url, **SEGMENTS))  # keeps the plan
    close_caches()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("jaxdata.storage.remote._MOST_COPIED", 0)
    monkeypatch.setattr("jaxdata.storage.pages.paged_files.SPAN", 16)
    monkeypatch.setattr("jaxdata.storage.ranges.GAP_BYTES", 0)
    before = READS.read().bytes
    far = loader(bucket.url, **SEGMENTS)
    assert READS.read().bytes - before < len(LENGTHS) * 4, "not even the column of lengths"
    assert_same_batches(islice(far, 1), islice(loader(bucket.folder, **SEGMENTS), 1))
    far.close()
    bucket.same(**SEGMENTS)
