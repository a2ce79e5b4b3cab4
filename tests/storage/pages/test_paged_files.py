"""Pages of files next to the files themselves: numbers, ranges, fetching, comparing whole files."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.threads import Stopped, until
from jaxdata.storage.pages import index_columns, page_cache, paged_files
from jaxdata.storage.pages.index_columns import cached_column
from jaxdata.storage.pages.page_cache import PageCache, PageFetcher, Wanted
from jaxdata.storage.pages.page_folder import PageFolder
from jaxdata.storage.pages.paged_files import PagedFiles, PageNumbers, PageRanges, StoredFile
from jaxdata.storage.pages.read_counts import READS

PAGE = 100
SIZES = (250, 0, 100, 1_733)
"""of files: 3, 0, 1 and 18 pages"""
FILES = [bytes(np.random.default_rng(n).integers(0, 256, n, np.uint8)) for n in SIZES]
NUMBERS = [(file, page) for file, size in enumerate(SIZES) for page in range(-(-size // PAGE))]
CHECKSUMS = np.array(
    [zlib.crc32(FILES[f][p * PAGE : (p + 1) * PAGE]) for f, p in NUMBERS], np.uint32
)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("paged_files", "page_folder"):
        monkeypatch.setattr(f"jaxdata.storage.pages.{module}.PAGE_BYTES", PAGE)


def stored() -> list[StoredFile]:
    hashes = [hashlib.sha256(data).hexdigest() for data in FILES]
    return [StoredFile(f"f{n}", SIZES[n], hashes[n]) for n in range(len(FILES))]


class Bucket:
    """A store of `FILES`, and what was asked of it."""

    url = "gs://bkt/ds"

    def __init__(self) -> None:
        self.files = list(FILES)
        self.fetched: list[tuple[int, int, int]] = []
        self.read_ranges: list[tuple[int, int, int]] = []
        self.asked: list[tuple[int, int, int]] = []
        self.kept = -1

    def ranges(self, names: Sequence[str]) -> Any:
        assert names == [f"f{number}" for number in range(len(FILES))]
        return self

    def fetch(self, file: int, start: int, stop: int) -> bytes:
        self.fetched.append((file, start, stop))
        return self.files[file][start:stop]

    def read(self, *columns: NDArray[np.int64]) -> list[bytes]:
        ranges = list(zip(*(column.tolist() for column in columns), strict=True))
        self.read_ranges += ranges
        return [self.files[file][start:stop] for file, start, stop in ranges]

    def ask(self, *columns: NDArray[np.int64]) -> None:
        self.asked += zip(*(column.tolist() for column in columns), strict=True)

    def are_asked(self, *columns: NDArray[np.int64]) -> list[bool]:
        return [False] * len(columns[0])

    def forget(self, most: int) -> None:
        self.kept = most


def by_page(bucket: Bucket, checksums: Any = CHECKSUMS) -> PagedFiles:
    return PagedFiles(bucket, stored(), lambda: checksums)  # type: ignore[arg-type]


def ranges(*given: tuple[int, int, int], home: Sequence[bool] = ()) -> PageRanges:
    columns = [np.array(column, np.int64) for column in zip(*given, strict=True)]
    return PageRanges(*columns, np.array(home or [True] * len(given)))


def of_files(files: PagedFiles, *wanted: int) -> list[int]:
    """The numbers of all pages of some files."""
    places = [(file, page * PAGE) for file, page in NUMBERS if file in wanted]
    return [int(files._pages.of(np.array([f]), np.array([at]))[0]) for f, at in places]


def opened() -> PageCache:
    cache = page_cache.page_cache()
    assert cache
    return cache


def settled(cache: PageCache) -> None:
    """Wait until nothing is wanted or under way."""
    fetcher = cache.fetcher
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: not fetcher.left, 60)


def test_pages_are_numbered_file_by_file() -> None:
    pages = PageNumbers("gs://bkt", stored(), lambda: CHECKSUMS)
    assert pages.count == len(NUMBERS) == 22
    begins = [(np.array([file]), np.array([page * PAGE])) for file, page in NUMBERS]
    every = [int(pages.of(*begin)[0]) for begin in begins]
    assert len({*every}) == 22
    for number, (file, page) in zip(every, NUMBERS, strict=True):
        start, stop = page * PAGE, min(page * PAGE + PAGE, SIZES[file])
        assert pages.range(number) == (file, start, stop)
        assert pages.size_of(number) == stop - start
        for byte in (start, stop - 1):
            assert pages.of(np.array([file]), np.array([byte])).tolist() == [number]
        version = stored()[file].version
        assert pages.name(number) == f"{version[:32]}/{start}-{stop}"
        assert pages.label(number) == (version, f"gs://bkt\nf{file}")
        data = FILES[file][start:stop]
        assert pages.is_whole(number, data)
        assert not pages.is_whole(number, data[:-1])
        assert str(pages.damage(number)) == (
            f"gs://bkt/f{file}: bytes {start:,} to {stop:,} are not what was written: restore it "
            "from a copy; jaxdata verify gs://bkt names what is damaged"
        )
    foreign = PageNumbers("", [StoredFile("g", 1, "v")], lambda: None)
    assert foreign.is_whole(0, b"anything")


RANGES = st.lists(
    st.sampled_from(NUMBERS).flatmap(
        lambda at: st.tuples(
            st.just(at[0]),
            st.integers(at[1] * PAGE, min((at[1] + 1) * PAGE, SIZES[at[0]]) - 1),
            st.integers(0, 130),
        )
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RANGES, st.sets(st.integers(0, 21)))
def test_ranges_are_the_bytes_of_the_files_wherever_their_pages_are(
    given: list[tuple[int, int, int]], here: set[int]
) -> None:
    """Where its page is here, a range is a hit, unless it goes on into the next."""
    bucket = Bucket()
    files = by_page(bucket)
    pages = {at: f"{stored()[at[0]].version[:32]}/{at[1] * PAGE}-" for at in NUMBERS}
    known = {
        f"{pages[f, p]}{min((p + 1) * PAGE, SIZES[f])}": memoryview(FILES[f])[
            p * PAGE : (p + 1) * PAGE
        ]
        for f, p in (NUMBERS[number] for number in here)
    }
    cache: Any = Cached(known)
    files.__dict__["_cache"] = cache
    asked = [(f, a, min(a + n, SIZES[f])) for f, a, n in given]
    before = READS.read()
    found = files.gather(ranges(*asked))
    counted = READS.read() - before
    assert [bytes(each) for each in found.each()] == [FILES[f][a:b] for f, a, b in asked]
    held = {NUMBERS[number] for number in here}
    missed = [
        (f, a, b) for f, a, b in asked if (f, a // PAGE) not in held or a % PAGE + b - a > PAGE
    ]
    assert bucket.read_ranges == missed
    assert (counted.hits, counted.misses) == (len(asked) - len(missed), len(missed))
    assert counted.used_bytes == files._used == sum(b - a for _, a, b in asked)
    assert cache.wanted == {
        f"{pages[f, p]}{min((p + 1) * PAGE, SIZES[f])}"
        for f, p in {(f, a // PAGE) for f, a, _ in missed} - held
    }


class Cached:
    """Stands in for a `PageCache` with these pages."""

    most, refuses, is_behind = 10**9, False, False

    def __init__(self, known: dict[str, memoryview]) -> None:
        self.known, self.wanted = known, set[str]()
        self.folder = self.fetcher = self
        self.sent: set[str] = set()
        self.waited: list[str] = []

    def get(self, names: Sequence[str]) -> list[memoryview | None]:
        return [self.known.get(name) for name in names]

    def want(self, pages: Iterator[Wanted]) -> None:
        self.wanted |= {page.name for page in pages}

    def is_sent(self, name: str) -> bool:
        return name in self.sent

    def wait(self, names: list[str], seconds: float, _check: Callable[[], None]) -> None:
        assert 0 < seconds < 1
        self.waited += names
        self.known |= {name: memoryview(FILES[2]) for name in names}


def test_a_batch_waits_for_pages_that_are_under_way_and_for_no_others() -> None:
    bucket, third = Bucket(), stored()[2].version[:32]
    files = by_page(bucket)
    cache: Any = Cached({})
    files.__dict__["_cache"] = cache
    cache.sent = {f"{third}/0-100"}
    before = READS.read().wait_seconds
    found = files.gather(ranges((0, 5, 9), (2, 7, 70)))
    assert [bytes(each) for each in found.each()] == [FILES[0][5:9], FILES[2][7:70]]
    assert cache.waited == [f"{third}/0-100"]
    assert bucket.read_ranges == [(0, 5, 9)]
    assert 0 < READS.read().wait_seconds - before < 60


@pytest.mark.parametrize("behind", [False, True])
def test_ahead_of_need_pages_are_wanted_in_order_and_the_rest_is_asked_for(behind: bool) -> None:
    bucket, version = Bucket(), [each.version[:32] for each in stored()]
    files = by_page(bucket)
    cache: Any = Cached({f"{version[0]}/200-250": memoryview(FILES[0])[200:]})
    cache.is_behind = behind
    files.__dict__["_cache"] = cache
    given = [(3, 510, 520), (0, 210, 220), (0, 10, 20), (3, 530, 540)]
    asked = ranges(*given, home=[True, True, False, True])
    pages = of_files(files, 0, 3)
    assert files.pages_of(asked).tolist() == [pages[8], pages[2], pages[0]]
    assert [files.size_of(page) for page in pages[1:4]] == [100, 50, 100]
    assert (files.page_count, files.size) == (22, sum(SIZES))
    files.prefetch(asked)
    assert cache.wanted == {f"{version[3]}/500-600", f"{version[0]}/0-100"}
    assert bucket.asked == ([given[0], given[2], given[3]] if behind else [])
    assert bucket.kept == 2**28
    files.dealt_by_pages, cache.wanted, bucket.asked = True, set(), []
    assert files.pages_of(asked).tolist() == [pages[8], pages[2]]
    files.prefetch(asked)
    assert cache.wanted == {f"{version[3]}/500-600"}
    assert bucket.asked == ([given[0], given[2], given[3]] if behind else [given[2]])
    for files.by_pages, cache.refuses in [(False, False), (True, True)]:
        cache.wanted, bucket.asked = set(), []
        files.prefetch(asked)
        assert (cache.wanted, bucket.asked) == (set(), given)
        assert not len(files.pages_of(asked))


def test_without_a_cache_all_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_files, "page_cache", lambda: None)
    bucket = Bucket()
    files = by_page(bucket)
    given = [(3, 510, 520), (0, 210, 220)]
    files.prefetch(ranges(*given))
    assert bucket.asked == given
    assert files.gather(ranges(*given)).join() == FILES[3][510:520] + FILES[0][210:220]
    assert files.prefetch_pages(np.array([0, 1])).tolist() == [True, True]
    files.fetch_missing([0])
    assert not bucket.fetched
    assert files._fetch(1) == [FILES[0][100:200]]


def test_pages_come_once_and_what_failed_is_fetched_when_it_is_needed() -> None:
    bucket = Bucket()
    files, cache = by_page(bucket), opened()
    pages = of_files(files, 0, 2)
    for _ in range(2):
        files.prefetch_pages(np.array(pages[:2]))
        settled(cache)
    assert sorted(bucket.fetched) == [(0, 0, 100), (0, 100, 200)]
    assert files._fetched == 200
    before = READS.read().pages
    files.fetch_missing(pages)
    assert sorted(bucket.fetched) == [(0, 0, 100), (0, 100, 200), (0, 200, 250), (2, 0, 100)]
    assert READS.read().pages == before + 2
    assert not files.prefetch_pages(np.array(pages)).any()
    labels = {path.read_text() for path in cache.folder._labels.iterdir()}
    assert labels == {"gs://bkt/ds\nf0", "gs://bkt/ds\nf2"}


@pytest.mark.parametrize("times", [1, 2])
def test_a_damaged_page_is_fetched_twice_and_then_refused(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, right = Bucket(), Bucket.fetch
    files = by_page(bucket)
    page = of_files(files, 3)[2]

    def damaged(self: Bucket, file: int, start: int, stop: int) -> bytes:
        data = right(self, file, start, stop)
        return data if len(self.fetched) > times else b"?" + data[1:]

    monkeypatch.setattr(Bucket, "fetch", damaged)
    if times == 1:
        files.fetch_missing([page])
        assert files._damaged == {}
    else:
        with pytest.raises(DatasetError, match="f3: bytes 200 to 300 are not"):
            files.fetch_missing([page])
        files.gather(ranges((3, 340, 350)))
        with pytest.raises(DatasetError, match="f3: bytes 200 to 300 are not"):
            files.gather(ranges((3, 340, 350), (3, 240, 250)))
    assert bucket.fetched.count((3, 200, 300)) == 2


@pytest.mark.parametrize(
    ("fetched", "used", "gives_up"),
    [(8 * 10**9, 2 * 10**9 - 1, True), (8 * 10**9, 2 * 10**9, False), (5 * 10**9, 0, False)],
)
def test_pages_are_given_up_where_less_than_a_quarter_was_used(
    fetched: int, used: int, gives_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = by_page(Bucket())
    cache: Any = Cached({})
    cache.most = 5 * 10**9
    files.__dict__["_cache"] = cache
    files._fetched, files._used = fetched, used
    files.prefetch_pages(np.array([0]))
    assert files.by_pages == (not gives_up)
    if gives_up:
        (said,) = caplog.messages
        assert said.startswith(
            "gs://bkt/ds: pages of 8000 MB were fetched, but rows needed 1999 MB of them before "
            "they had to go: from now on exact ranges are fetched. The cache of 5000 MB is too"
        )


def test_pages_come_in_the_order_in_which_they_are_wanted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_THREADS", 1)
    monkeypatch.setattr(page_cache, "_BEHIND", 3)
    folder = PageFolder(tmp_path, 10**6)
    fetcher, first, got = PageFetcher(folder), threading.Event(), list[str]()
    begun = threading.Event()

    def wanted(number: int) -> Wanted:
        name = f"{number:032}/0-3"

        def fetch() -> list[bytes]:
            got.append(name)
            begun.set()
            assert first.wait(60)
            if number == 2:
                raise DatasetError("damaged")
            return [b"abc"]

        return Wanted(name, 3, fetch)

    fetcher.want([wanted(0)])
    assert begun.wait(60)
    fetcher.want(map(wanted, [0, 3, 1, 2, 3]))
    assert (fetcher.left, fetcher.is_behind) == (4, False)
    fetcher.want([wanted(4)])
    assert (fetcher.left, fetcher.is_behind) == (5, True)
    assert [fetcher.is_sent(wanted(number).name) for number in (0, 1)] == [True, False]
    assert len(fetcher._threads) == 1
    checks: list[int] = []
    fetcher.wait([wanted(0).name], 0.01, lambda: checks.append(1))
    assert checks
    fetcher.wait([wanted(1).name], 1e9, pytest.fail)
    with pytest.raises(Stopped):
        fetcher.wait([wanted(0).name], 1e9, stopped)
    first.set()
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: not fetcher.left, 60)
    assert got == [wanted(number).name for number in (0, 3, 1, 2, 4)]
    assert [folder.has(wanted(number).name) for number in range(5)] == [True] * 2 + [
        False,
        True,
        True,
    ]
    other = PageFolder(tmp_path, 10**6)
    assert all(other.claims.take(wanted(number).name) for number in range(5)), "none is claimed"
    fetcher.want([wanted(1), wanted(5)])
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: not fetcher.left, 60)
    assert got[5:] == [wanted(5).name], "what is here is not fetched"
    assert (len(fetcher._threads), fetcher._idle) == (1, 1)
    threads = list(fetcher._threads)
    fetcher.close()
    assert not any(thread.is_alive() for thread in threads)
    assert fetcher._idle == 0
    folder.close()
    other.close()


def stopped() -> None:
    raise Stopped


def test_a_page_that_another_process_fetches_is_waited_for(tmp_path: Path) -> None:
    mine, other = PageFolder(tmp_path, 10**6), PageFolder(tmp_path, 10**6)
    fetcher, name = PageFetcher(mine), f"{0:032}/0-3"
    assert other.claims.take(name)
    tried, take = threading.Semaphore(0), mine.claims.take

    def counted(name: str) -> bool:
        tried.release()
        return take(name)

    mine.claims.take = counted  # type: ignore[method-assign]
    fetcher.want([Wanted(name, 3, lambda: pytest.fail("it is fetched"))])
    assert all(tried.acquire(timeout=60) for _ in range(2))
    assert fetcher.left == 1
    other.add(name, 3, lambda: [b"abc"])
    other.claims.release(name)
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: not fetcher.left, 60)
    assert bytes(mine.get([name])[0] or b"") == b"abc"
    fetcher.close()
    mine.close()
    other.close()


def test_threads_grow_with_what_is_wanted_and_end_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_THREADS", 3)
    monkeypatch.setattr(page_cache, "_IDLE_SECONDS", 0.001)
    folder = PageFolder(tmp_path, 10**6)
    fetcher, go, begun = PageFetcher(folder), threading.Event(), threading.Semaphore(0)

    def wanted(number: int) -> Wanted:
        def fetch() -> list[bytes]:
            begun.release()
            assert go.wait(60)
            return [b"abc"]

        return Wanted(f"{number:032}/0-3", 3, fetch)

    for count, threads in [(1, 1), (2, 2), (7, 3)]:
        fetcher.want(map(wanted, range(count)))
        assert begun.acquire(timeout=60)
        assert len(fetcher._threads) == threads
    running = list(fetcher._threads)
    go.set()
    for thread in running:
        thread.join(60)
    assert (fetcher.left, fetcher._idle, fetcher._threads) == (0, 0, set())
    fetcher.want([wanted(9)])
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: folder.has(wanted(9).name), 60)
    fetcher.close()
    folder.close()


class Asked:
    """Stands in for a request that is answered at once."""

    tries = 2

    def __init__(self, value: bytes) -> None:
        self.value = value

    def result(self) -> Any:
        return self


@pytest.mark.parametrize("edges", [[0, 40], [0, 16, 40], [0, 7, 16, 17, 40]])
def test_a_column_is_fetched_in_parts_of_its_objects_once_for_the_host(
    edges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_columns, "_PART_BYTES", 8)
    monkeypatch.setattr(index_columns, "_AT_ONCE", 2)
    data, sent = FILES[0][:40], list[tuple[int, int]]()

    def send(start: int, stop: int) -> Any:
        sent.append((start, stop))
        return Asked(data[start:stop])

    sha256, before = hashlib.sha256(data).hexdigest(), READS.read()
    for _ in range(2):
        found = cached_column("gs://bkt/c", sha256, edges, send, "gs://bkt\nc")
        assert bytes(found or b"") == data
    expected = [
        (start, min(start + 8, stop))
        for begin, stop in pairwise(edges)
        for start in range(begin, stop, 8)
    ]
    assert sent == expected
    counted = READS.read() - before
    assert (counted.gets, counted.bytes) == (2 * len(sent), 40)
    folder = opened().folder
    assert (folder._labels / sha256[:32]).read_text() == "gs://bkt\nc"
    assert folder.column_bytes() == 40
    with pytest.raises(DatasetError, match=r"^gs://bkt/c is not what was written: its checksum"):
        cached_column("gs://bkt/c", "0" * 64, edges, send, "")
    parts = index_columns._parts(edges, send)
    del sent[:]
    next(parts)
    assert len(sent) == min(3, len(expected)), "so many are under way, and one more is sent"


def test_a_column_is_left_to_memory_where_the_cache_is_too_small_or_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = FILES[0][:40]
    sha256 = hashlib.sha256(data).hexdigest()

    def column() -> Any:
        return cached_column("u", sha256, [0, 40], lambda a, b: Asked(data[a:b]), "")  # type: ignore[arg-type,return-value]

    cache = opened()
    cache.folder.most = 79
    assert column() is None
    cache.folder.most = 80
    cache.folder._refused_until = 1e18
    assert column() is None
    cache.folder._refused_until = 0
    other = PageFolder(cache.folder._folder, 10**6)
    stop = threading.Event()
    assert other.claims.take(f"{sha256[:32]}/column")
    stop.set()
    with until(stop), pytest.raises(Stopped):
        column()
    other.close()
    assert bytes(column()) == data
    assert other.claims is not cache.folder.claims
    monkeypatch.setattr(index_columns, "page_cache", lambda: None)
    assert column() is None


def test_the_cache_is_where_and_as_large_as_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "a/b"))
    (tmp_path / "a").mkdir()
    asked: list[Path] = []

    def usage(path: Path) -> Any:
        asked.append(path)
        return type("Usage", (), {"free": 1_234})

    monkeypatch.setattr(page_cache.shutil, "disk_usage", usage)
    cache = opened()
    assert (cache.most, asked) == (123, [tmp_path / "a"])
    assert page_cache.most_ahead() == 123 // 8
    assert opened() is cache
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(2**40))
    second = opened()
    assert (second.most, page_cache.most_ahead()) == (2**40, 2**28)
    page_cache._open[-1, "of the process that forked this one"] = cache
    page_cache.close_caches()
    assert page_cache._open.pop((-1, "of the process that forked this one")) is cache
    assert (cache.folder._closed, second.folder._closed, page_cache._open) == (True, True, {})
    assert second.fetcher._closed.is_set()
    assert opened() is not second
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "all")
    with pytest.raises(InputError, match="JAXDATA_CACHE_BYTES='all': expected a whole number"):
        page_cache.limit_bytes(tmp_path)
    monkeypatch.delenv("JAXDATA_CACHE_BYTES")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert (opened_or_none(), opened_or_none()) == (None, None)
    assert page_cache.most_ahead() == 2**28
    assert page_cache.read_counts() == READS.read()
    assert caplog.text.count(f"no pages are cached in {tmp_path}/file (") == 1
    monkeypatch.delenv("JAXDATA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert page_cache.cache_root() == tmp_path / ".cache/jaxdata"


def opened_or_none() -> PageCache | None:
    return page_cache.page_cache()


def test_a_long_column_takes_only_what_an_index_takes() -> None:
    data = np.arange(20_000, dtype=np.int32)
    column = index_columns.FarColumn(
        len(data), data.dtype, lambda a, b: pytest.fail(f"{a} to {b}"), lambda: data
    )
    assert column[np.empty(0, np.int64)].tolist() == []
    assert column.shape == (20_000,)
    with pytest.raises(AttributeError, match="__nothing__"):
        column.__nothing__  # noqa: B018
    assert not hasattr(column, "__cuda_array_interface__")
