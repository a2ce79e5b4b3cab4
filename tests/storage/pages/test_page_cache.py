"""Batches from a bucket through the page cache of a host: the same rows, few requests, few bytes.

The bucket is in this process (memory://); `format/buckets` has the servers.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxdata.storage.pages.page_folder import PageFolder

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.storage import open_store
from jaxdata.storage.pages import inventory
from jaxdata.storage.pages.page_cache import PageFetcher, close_caches, page_cache
from jaxdata.storage.pages.paged_files import PagedFiles, PageNumbers, PageRanges
from jaxdata.storage.pages.read_counts import READS
from jaxdata.testing import assert_same_batches
from tests.builders import dataset
from tests.commands import run

PAGE = 2**16
SEGMENTS: dict[str, Any] = {"chunk_bytes": PAGE, "block_bytes": 2 * PAGE, "lanes": 4}
LENGTHS = np.clip(np.random.default_rng(7).lognormal(5.5, 1.2, 1_500), 5, 40_000).astype(int)
SHARD = "train/web/00001-00000.array_record"
_numbers = count()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a block, so that small data has many."""
    for module in ("dataset.shards", "dataset.converted", "storage.pages.paged_files",
                   "storage.pages.page_folder"):  # fmt: skip
        monkeypatch.setattr(f"jaxdata.{module}.PAGE_BYTES", PAGE)


@pytest.fixture
def _in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine: a page that was worth fetching is there when it is needed."""
    gather = PagedFiles.gather

    def waiting(self: PagedFiles, ranges: PageRanges) -> Any:
        while self.prefetch_pages(self.pages_of(ranges)).any():
            time.sleep(0.001)
        return gather(self, ranges)

    monkeypatch.setattr(PagedFiles, "gather", waiting)
    monkeypatch.setattr(PageFetcher, "is_behind", False)


class Bucket:
    """The same dataset in a folder and in a bucket."""

    def __init__(self, folder: Path, **options: Any) -> None:
        chance = np.random.default_rng(7)
        tokens = [chance.integers(1, 50_000, n).astype(np.uint16) for n in LENGTHS]
        options.setdefault("masks", {"web": [chance.integers(0, 2, n) for n in LENGTHS]})
        self.folder, self.url = folder / "ds", f"memory://pages-{next(_numbers)}/ds"
        for path in (self.folder, self.url):
            dataset(path, {"web": tokens}, shard_documents=500, **options)  # type: ignore[arg-type]
        self.store = open_store(self.url)
        sizes = [path.stat().st_size for path in self.folder.rglob("*.array_record")]
        self.size, self.pages = sum(sizes), sum(-(-size // PAGE) for size in sizes)

    def change(self, name: str, byte: int) -> None:
        """Flip a bit of an object."""
        data = bytearray(self.store.read(name) or b"")
        data[byte] ^= 1
        self.store.write(name, bytes(data))

    def far(self, **settings: Any) -> jaxdata.Loader:
        return loader(self.url, **settings)

    def near(self, **settings: Any) -> jaxdata.Loader:
        return loader(self.folder, **settings)

    def same(self, batches: int | None = None, **settings: Any) -> Any:
        """Compare batches; returns what was fetched for those from the bucket."""
        far, near = self.far(**settings), self.near(**settings)
        assert_same_batches(islice(far, batches), islice(near, batches))
        found = far.report().reads
        far.close()
        return found


def loader(path: Any, extras: Any = (), **settings: Any) -> jaxdata.Loader:
    rows = jaxdata.pack(jaxdata.open_dataset(path).source("train", "web"), seq_len=256, **settings)
    return jaxdata.Loader(rows, batch_size=16, shard=(0, 1), extras=extras)


def pages_of(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("pages-*/pages/*/*"))


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


@pytest.mark.parametrize("room", [0, 1 / 8])
def test_a_cache_too_small_is_said_and_ranges_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: float
) -> None:
    bucket = Bucket(tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(int(bucket.size * room)))
    reads = bucket.same()
    assert (reads.pages, reads.hits) == (0, 0)
    (said,) = [text for text in caplog.messages if "train/web" in text]
    assert "its rows are read from" in said
    assert "JAXDATA_CACHE_BYTES sets the size of the cache" in said


def test_balance_has_no_page_fetched_for_rows_of_other_hosts_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_pages_that_go_before_they_were_used_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing tells beforehand that the cache is too small: it is seen, and said."""
    bucket = Bucket(tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(bucket.size // 8))
    monkeypatch.setattr("jaxdata.feed.batches.choose_pages", lambda *_: None)
    bucket.same()
    assert any("before they had to go" in text for text in caplog.messages)


@pytest.mark.parametrize("full", [False, True])
def test_without_a_cache_that_can_be_written_rows_come_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bucket = Bucket(tmp_path)
    if full:
        monkeypatch.setattr(os, "posix_fallocate", no_room)
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    reads = bucket.same(20, **SEGMENTS)
    assert (reads.pages, reads.hits) == (0, 0)
    said = "no pages can be kept in" if full else f"no pages are cached in {tmp_path}/file ("
    assert sum(said in text for text in caplog.messages) == 1


def test_an_object_that_is_overwritten_under_a_run_is_refused_by_name(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    docs = jaxdata.open_dataset(bucket.url).source("train", "web")

    def read(document: int) -> bytes:
        one = (np.array([number]) for number in (document, 0, 2))
        return docs.tokens(*one).views.join()  # type: ignore[attr-defined,no-any-return]

    assert read(500)
    bucket.change(SHARD, -1)
    with pytest.raises(DatasetError, match=r"00001-00000.array_record was overwritten while"):
        read(950)


@pytest.mark.parametrize(
    ("name", "byte", "said"),
    [
        (SHARD, 70_000, f"{SHARD}: bytes 65,536 to 131,072 are not what was written"),
        ("train/web/index/length/c/0", 9, "index/length is not what was written: its checksum"),
    ],
)
def test_what_is_damaged_in_the_bucket_is_refused(
    tmp_path: Path, name: str, byte: int, said: str
) -> None:
    bucket = Bucket(tmp_path)
    bucket.change(name, byte)
    with pytest.raises(DatasetError, match=said):
        list(bucket.far())


def test_a_page_damaged_on_the_way_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, seen, is_whole = Bucket(tmp_path), set[int](), PageNumbers.is_whole

    def damaged_once(self: PageNumbers, number: int, data: bytes) -> bool:
        first, _ = number not in seen, seen.add(number)
        return not first and is_whole(self, number, data)

    monkeypatch.setattr(PageNumbers, "is_whole", damaged_once)
    bucket.same()
    assert seen


@pytest.mark.parametrize("settings", [{}, SEGMENTS])
def test_of_a_long_index_only_parts_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    bucket = Bucket(tmp_path)
    next(bucket.far(**settings))  # keeps the plan
    close_caches()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("jaxdata.storage.remote._MOST_COPIED", 0)
    monkeypatch.setattr("jaxdata.storage.pages.index_columns.SPAN", 16)
    monkeypatch.setattr("jaxdata.storage.ranges.GAP_BYTES", 0)
    before = READS.read().bytes
    far = bucket.far(**settings)
    assert READS.read().bytes - before < len(LENGTHS) * 4, "not even the column of lengths"
    assert_same_batches(islice(far, 1), islice(bucket.near(**settings), 1))
    far.close()
    bucket.same(**settings)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    first, again = bucket.far(**SEGMENTS), bucket.far(**SEGMENTS)
    list(islice(first, 7))
    again.set_state(first.get_state())
    assert_same_batches(islice(again, 9), islice(bucket.near(**SEGMENTS), 7, 16))
    first.close()
    again.close()


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("column", [False, True])
def test_cached_pages_that_were_damaged_are_fetched_again(tmp_path: Path, column: bool) -> None:
    bucket = Bucket(tmp_path)
    assert bucket.same().damaged_pages == 0
    close_caches()
    chosen = [page for page in pages_of(tmp_path) if (page.name == "column") == column]
    for number, page in enumerate(chosen[:4]):
        data = page.read_bytes()
        page.write_bytes(data[: len(data) // 2] + (b"?" * 9 if number % 2 else b""))
    before = READS.read()
    far = bucket.far()
    assert_same_batches(far, bucket.near())
    fetched = READS.read() - before
    damaged = len(chosen) - 1 if column else 4  # nothing needs the column of checksums of pages
    assert fetched.damaged_pages == damaged >= 2
    assert fetched.pages == (0 if column else 4)
    assert str(fetched).endswith(f", {damaged} damaged pages of the cache fetched again")
    far.close()


@pytest.mark.parametrize("pages", [True, False])
def test_side_arrays_are_read_through_pages_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: bool
) -> None:
    if not pages:
        monkeypatch.setenv("JAXDATA_CACHE_BYTES", "0")
    values = {"at": [np.arange(n, dtype=np.int16) for n in LENGTHS]}
    bucket = Bucket(tmp_path, masks={}, side={"web": values})
    reads = bucket.same(20, extras=("at", "target_at"))
    assert bool(reads.hits) == pages


@pytest.mark.usefixtures("_in_time")
def test_a_cache_is_listed_verified_and_cleared(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    far = bucket.far()
    list(far)
    size = sum(page.stat().st_size for page in pages_of(tmp_path))
    found = inventory.inventory()
    by_name = {file.name: file for file in found.files}
    assert found.runs == 1
    assert sum(file.bytes for file in found.files) == size
    assert {file.dataset for file in found.files} == {bucket.url}
    of_shards = [file for file in found.files if file.name.endswith(".array_record")]
    assert len(of_shards) == 3
    assert not any(file.column for file in of_shards)
    assert by_name["train/web/index/length"].column
    assert sum(file.needed_bytes for file in found.files) == size, "the run is under way"
    assert inventory.clear().pages == 0
    far.close()
    close_caches()
    assert sum(file.needed_pages for file in inventory.inventory().files) == 0
    page = next(page for page in pages_of(tmp_path) if page.name != "column")
    page.write_bytes(b"?" * 99)
    start, _, stop = page.name.partition("-")
    said = run("cache", "verify", status=1)
    assert f"{bucket.url}/train/web/" in said.stderr + said.stdout
    assert f"bytes {int(start):,} to {int(stop):,} ({page})" in said.stderr + said.stdout
    left = len(pages_of(tmp_path))
    assert not page.exists()
    assert inventory.clear().pages == left
    assert not pages_of(tmp_path)


def test_the_counts_of_a_cache_are_those_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "1000000")
    folder, gone = _page_folder(), PageFolder(tmp_path / "gone", 10**6)
    gone.close()
    first, second = "ab" * 16, "cd" * 16
    sizes = {f"{first}/0-10": 10, f"{first}/10-30": 20, f"{second}/column": 7, f"{second}/0-9": 9}
    for name, size in sizes.items():
        assert folder.add(name, size, lambda size=size: [b"?" * size])  # type: ignore[misc]
    folder.label(first * 2, "gs://bkt/ds\ntrain/web/a")
    folder.remove([f"{second}/0-9"])
    other = PageFolder(folder._folder, 10**6)  # needs one page
    other.get([f"{first}/0-10"])
    end = 12
    (tmp_path / "cache/plans").mkdir()
    (tmp_path / f"cache/plans/{first}.npy").write_bytes(b"12345")
    a = inventory.CachedFile(first, "gs://bkt/ds", "train/web/a", False, 2, 30 + 2 * end)
    b = inventory.CachedFile(second, "", "", True, 1, 7 + end)
    a.needed_pages, a.needed_bytes, b.needed_pages, b.needed_bytes = 2, a.bytes, 1, b.bytes
    expected = inventory.Inventory(tmp_path / "cache", 10**6, [a, b], 1, 5, 2, None, 0)
    assert inventory.inventory() == expected
    close_caches()
    a.needed_pages, a.needed_bytes, b.needed_pages, b.needed_bytes = 1, 10 + end, 0, 0
    assert inventory.inventory() == replace(expected, runs=1)
    seen: list[tuple[int, int]] = []
    damaged = folder._pages / second / "column"
    data = damaged.read_bytes()
    damaged.write_bytes(b"x" + data[1:])
    found = inventory.verify(lambda *done: seen.append(done))
    assert found == inventory.Verified(3, 37 + 3 * end, [f"a file {second} ({damaged})"])
    assert seen == [(22, 73), (54, 73), (73, 73)]
    assert not damaged.exists()
    page = folder._pages / first / "10-30"
    page.write_bytes(b"x" + page.read_bytes()[1:])
    assert inventory.verify().damaged == [f"gs://bkt/ds/train/web/a, bytes 10 to 30 ({page})"]
    cleared = inventory.clear()
    assert cleared == inventory.Cleared(0, 0, 0, 0, 1, 10 + end)
    other.close()
    (orphan := folder.runs / "17-0123abcd").mkdir()  # of a process that was killed
    os.link(folder._pages / first / "0-10", orphan / f"{first}-0-10")
    assert inventory.clear(kept=True) == inventory.Cleared(1, 10 + end, 1, 5, 0, 0)
    assert not list((tmp_path / "cache/plans").iterdir())


def _page_folder() -> PageFolder:
    cache = page_cache()
    assert cache
    return cache.folder
