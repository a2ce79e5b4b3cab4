"""Batches from a bucket through the page cache: the same rows, few requests, few bytes."""

from __future__ import annotations

import errno
import logging
import os
import time
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError
from jaxdata.format.manifest import Manifest, update_manifest
from jaxdata.format.storage import PageRanges, open_store
from jaxdata.format.storage.pages.page_cache import close_caches
from jaxdata.format.storage.pages.page_fetcher import PageFetcher
from jaxdata.format.storage.pages.page_numbers import PageNumbers
from jaxdata.format.storage.pages.paged_files import PagedFiles
from jaxdata.testing import assert_same_batches, write_dataset
from jaxdata.testing.buckets import BucketServer, Faults

SEGMENTS: dict[str, Any] = {"segment_bytes": 2**16, "pool_bytes": 2**18, "lanes": 4}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a block, so that small data has many."""
    monkeypatch.setattr("jaxdata.format.page_checksums.PAGE_BYTES", 2**16)
    for module in ("pages.paged_files", "pages.page_folder", "pages.page_numbers"):
        monkeypatch.setattr(f"jaxdata.format.storage.{module}.PAGE_BYTES", 2**16)
    monkeypatch.setattr("jaxdata.documents.converted.PAGE_BYTES", 2**16)


@pytest.fixture
def _in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine: a page that was worth fetching is there when it is needed."""
    gather = PagedFiles.gather

    def waiting(self: PagedFiles, ranges: PageRanges) -> Any:
        while self._want(self.pages_of(ranges)).any():
            time.sleep(0.005)
        return gather(self, ranges)

    monkeypatch.setattr(PagedFiles, "gather", waiting)
    monkeypatch.setattr(PageFetcher, "is_behind", False)


@cache
def documents(count: int = 4_000, masked: bool = False) -> tuple[list[Any], list[Any] | None]:
    chance = np.random.default_rng(7)
    lengths = np.clip(chance.lognormal(5.5, 1.2, count), 5, 60_000).astype(int)
    tokens = [chance.integers(1, 50_000, n).astype(np.uint16) for n in lengths]
    return tokens, [chance.integers(0, 2, n) for n in lengths] if masked else None


def write(server: BucketServer, folder: Path, masked: bool = False) -> int:
    """The same dataset in the folder and in the bucket; returns the bytes of its shards."""
    tokens, masks = documents(masked=masked)
    for path in (folder / "ds", server.url("bkt/ds")):
        write_dataset(
            path,
            {"train/web": tokens},
            {"train/web": masks} if masks else None,
            shard_documents=500,
        )
    server.clear()
    return sum(path.stat().st_size for path in (folder / "ds").rglob("*.array_record"))


def loader(path: str | Path, workers: int = 0, **settings: Any) -> jaxdata.Loader:
    rows = jaxdata.pack(jaxdata.open_dataset(path).source("train", "web"), seq_len=256, **settings)
    return jaxdata.Loader(rows, batch_size=16, num_workers=workers, shard=(0, 1))


def same(server: BucketServer, folder: Path, batches: int | None = None, **given: Any) -> Any:
    """Compare batches; returns the report of those from the bucket."""
    far, near = loader(server.url("bkt/ds"), **given), loader(folder / "ds", **given)
    count = len(near) if batches is None else batches
    assert_same_batches(islice(far, count), islice(near, count))
    report = far.report()
    far.close()
    near.close()
    return report


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("settings", [{"order": 1}, {}, {"strategy": "concat"}, SEGMENTS])
def test_every_row_is_the_one_on_disk(
    server: BucketServer, tmp_path: Path, settings: dict[str, Any], masked: bool
) -> None:
    size = write(server, tmp_path, masked)
    reads = same(server, tmp_path, **settings).reads
    assert reads.used_bytes <= size
    shards = [each for each in server.requests if each.object.endswith(".array_record")]
    assert sum(each.sent for each in shards) <= 1.1 * size


@pytest.mark.usefixtures("_in_time")
def test_with_segments_a_page_is_fetched_once(server: BucketServer, tmp_path: Path) -> None:
    size = write(server, tmp_path)
    reads = same(server, tmp_path, **SEGMENTS).reads
    assert reads.bytes <= 1.1 * size
    batches = len(loader(tmp_path / "ds", **SEGMENTS))
    assert reads.gets <= 2 * batches


def test_a_cache_too_small_is_said_and_ranges_are_exact(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    size = write(server, tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(size // 4))
    with caplog.at_level(logging.WARNING, "jaxdata"):
        reads = same(server, tmp_path, order=1).reads
    assert reads.pages == 0
    (said,) = [text for text in caplog.messages if "train/web" in text]
    assert "its rows are read from" in said
    assert "JAXDATA_CACHE_BYTES sets the size of the cache" in said


def test_pages_that_go_before_they_were_used_are_given_up(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where nothing tells beforehand that the cache is too small: it is seen, and said."""
    size = write(server, tmp_path)
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(size // 8))
    monkeypatch.setattr("jaxdata.feed.batches.choose_pages", lambda *_: None)
    with caplog.at_level(logging.WARNING, "jaxdata"):
        same(server, tmp_path, order=1)
    assert any("before they had to go" in text for text in caplog.messages)


def test_without_a_cache_rows_come_by_ranges(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(server, tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "jaxdata"):
        assert same(server, tmp_path, batches=5).reads.pages == 0
    assert any("no pages are cached in" in text for text in caplog.messages)


def test_an_object_that_is_overwritten_under_a_run_is_refused_by_name(
    server: BucketServer, tmp_path: Path
) -> None:
    write(server, tmp_path)
    docs = jaxdata.open_dataset(server.url("bkt/ds")).source("train", "web")

    def read(document: int) -> bytes:
        one = (np.array([number]) for number in (document, 0, 2))
        return docs.tokens(*one).views.join()

    assert read(0)
    name = "bkt/ds/train/web/00000-00000.array_record"
    server.write(name, server.read(name)[:-1] + b"?")
    with pytest.raises(DatasetError, match=r"00000-00000.array_record was overwritten while"):
        read(450)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"forbidden": 1.0}, r"array_record cannot be read: .*may not read it"),
        ({"vanished": 1.0}, r"array_record is missing"),
    ],
)
def test_what_goes_wrong_in_the_middle_names_the_object(
    server: BucketServer, tmp_path: Path, fault: dict[str, float], message: str
) -> None:
    write(server, tmp_path)
    rows = loader(server.url("bkt/ds"))
    server.faults = Faults(**fault, path="*.array_record")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=message):
        list(rows)


def test_a_damaged_column_is_refused(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    name = "bkt/ds/train/web/index/length/c/0"
    server.write(name, bytes(len(server.read(name))))
    with pytest.raises(DatasetError, match=r"index/length is not what was written: its checksum"):
        loader(server.url("bkt/ds"))


@pytest.mark.parametrize("settings", [{}, SEGMENTS])
def test_of_a_long_index_only_parts_are_fetched(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    write(server, tmp_path)
    list(zip(loader(server.url("bkt/ds"), **settings), range(1), strict=False))  # keeps the plan
    close_caches()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("jaxdata.format.storage.remote._MOST_COPIED", 0)
    monkeypatch.setattr("jaxdata.format.storage.pages.far_column.SPAN", 16)
    monkeypatch.setattr("jaxdata.format.storage.merged.GAP_BYTES", 0)
    server.clear()
    far = loader(server.url("bkt/ds"), **settings)
    asked = [each.object for each in server.requests]
    assert not any("/length/c/" in name or "/anchor/c/" in name for name in asked)
    assert_same_batches(islice(far, 1), islice(loader(tmp_path / "ds", **settings), 1))
    far.close()
    same(server, tmp_path, **settings)


def test_a_damaged_page_is_refused(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    name = "bkt/ds/train/web/00001-00000.array_record"
    data = bytearray(server.read(name))
    data[70_000] ^= 1
    server.write(name, bytes(data))
    with pytest.raises(DatasetError) as caught:
        list(loader(server.url("bkt/ds")))
    assert "00001-00000.array_record: bytes 65,536 to 131,072 are not what was written" in str(
        caught.value
    )


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("damaged", [False, True])
def test_files_without_checksums_of_pages_are_compared_when_they_are_whole(
    server: BucketServer, tmp_path: Path, damaged: bool
) -> None:
    write(server, tmp_path)
    as_written_earlier(server.url("bkt/ds"))
    if damaged:
        name = "bkt/ds/train/web/00001-00000.array_record"
        data = bytearray(server.read(name))
        data[70_000] ^= 1
        server.write(name, bytes(data))
    far, refused = loader(server.url("bkt/ds")), ""
    for _ in range(4):  # once to have all pages, once more to compare them
        far.reset()
        try:
            list(far)
        except DatasetError as error:
            refused = str(error)
            break
    far.close()
    assert ("00001-00000.array_record: its bytes, of which some were read" in refused) == damaged


def as_written_earlier(path: str) -> None:
    """Take the checksums of pages from a dataset."""

    def without(manifest: Manifest | None) -> Manifest:
        assert manifest
        entry = manifest.sources["train/web"]
        checksums = {name: value for name, value in entry.checksums.items() if name != "page"}
        older = entry.model_copy(update={"checksums": checksums})
        return manifest.model_copy(update={"sources": {"train/web": older}})

    update_manifest(open_store(path), without)


def test_a_page_damaged_on_the_way_is_fetched_again(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(server, tmp_path)
    seen = set[int]()
    is_whole = PageNumbers.is_whole

    def damaged_once(self: PageNumbers, number: int, data: bytes) -> bool:
        first, _ = number not in seen, seen.add(number)
        return not first and is_whole(self, number, data)

    monkeypatch.setattr(PageNumbers, "is_whole", damaged_once)
    same(server, tmp_path)


def test_a_run_goes_on_where_it_was(server: BucketServer, tmp_path: Path) -> None:
    write(server, tmp_path)
    far = loader(server.url("bkt/ds"), **SEGMENTS)
    for _ in range(7):
        next(far)
    state = far.get_state()
    far.close()
    close_caches()
    again, near = loader(server.url("bkt/ds"), **SEGMENTS), loader(tmp_path / "ds", **SEGMENTS)
    again.set_state(state)
    near.set_state(state)
    assert_same_batches(islice(again, 20), islice(near, 20))
    again.close()


@pytest.mark.usefixtures("_in_time")
def test_a_cache_removed_under_a_run_is_made_again(server: BucketServer, tmp_path: Path) -> None:
    size = write(server, tmp_path)
    far, near = loader(server.url("bkt/ds"), **SEGMENTS), loader(tmp_path / "ds", **SEGMENTS)
    assert_same_batches(islice(far, 5), islice(near, 5))
    (tmp_path / "cache").rename(tmp_path / "gone")
    server.clear()
    assert_same_batches(far, near)
    assert server.counts.sent <= 1.1 * size
    assert pages_of(tmp_path)
    far.close()


def test_a_cache_that_cannot_be_written_is_said_and_ranges_are_exact(
    server: BucketServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(server, tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    same(server, tmp_path, **SEGMENTS)
    without_cache = server.counts.sent
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    server.clear()
    assert same(server, tmp_path, **SEGMENTS).reads.pages == 0
    assert server.counts.sent < 1.1 * without_cache
    (said,) = [text for text in caplog.messages if "no pages can be kept in" in text]
    assert "(No space left on device): free space there, or let JAXDATA_CACHE name" in said


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("column", [False, True])
def test_cached_pages_that_were_damaged_are_fetched_again(
    server: BucketServer, tmp_path: Path, column: bool
) -> None:
    write(server, tmp_path)
    assert same(server, tmp_path).reads.damaged_pages == 0
    close_caches()
    chosen = [page for page in pages_of(tmp_path) if (page.name == "column") == column]
    for number, page in enumerate(chosen[:4]):
        data = page.read_bytes()
        page.write_bytes(data[: len(data) // 2] + (b"?" * 9 if number % 2 else b""))
    server.clear()
    far = loader(server.url("bkt/ds"))
    assert_same_batches(far, loader(tmp_path / "ds"))
    found = far.reads
    assert found is not None
    if not column:  # which are read before anything is counted
        assert found.damaged_pages == 4
        assert str(found).endswith(", 4 damaged pages of the cache fetched again")
    fetched = {(each.object, each.range) for each in server.requests if each.sent > 10_000}
    assert column or len(fetched) == 4
    far.close()


def pages_of(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("pages-*/pages/*/*"))
