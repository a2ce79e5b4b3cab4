"""Pages and columns of files next to the files themselves: numbers, ranges, fetching, damage."""

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.ragged import Ints, merged
from jaxdata.storage.pages import page_cache, paged_files
from jaxdata.storage.pages.page_cache import PageCache, Wanted
from jaxdata.storage.pages.paged_files import SPAN, FarColumn, PagedFiles, PageRanges, StoredFile
from jaxdata.storage.pages.read_counts import READS
from tests.storage.pages.test_page_cache import settled

PAGE = 100
SIZES = (250, 0, 100, 1_733)
"""of files: 3, 0, 1 and 18 pages"""
FILES = [bytes(np.random.default_rng(n).integers(0, 256, n, np.uint8)) for n in SIZES]
STORED = [StoredFile(f"f{n}", SIZES[n], hashlib.sha256(FILES[n]).hexdigest()) for n in range(4)]
STARTS = [(file, at) for file, size in enumerate(SIZES) for at in range(0, size, PAGE)]
PAGES = [(file, at, min(at + PAGE, SIZES[file])) for file, at in STARTS]
CHECKSUMS = np.array([zlib.crc32(FILES[f][a:b]) for f, a, b in PAGES], np.uint32)
Triple = tuple[int, int, int]


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> "type[Bucket]":
    monkeypatch.setattr(paged_files, "PAGE_BYTES", PAGE)
    monkeypatch.setattr(paged_files, "ExactRanges", Bucket)
    Bucket.damages = 0
    return Bucket


class Bucket:
    """Stands in for the ranges of `FILES`; what was asked of it."""

    damages = 0

    def __init__(self, url: str, names: Sequence[str]) -> None:
        assert (url, names) == ("gs://bkt/ds", [file.name for file in STORED])
        self.fetched, self.read_ranges, self.asked = list[Triple](), list[Triple](), list[Triple]()

    def part(self, file: int, start: int, stop: int) -> Any:
        self.fetched.append((file, start, stop))
        damaged = b"?" * (len(self.fetched) <= Bucket.damages)
        return SimpleNamespace(data=damaged + FILES[file][start + len(damaged) : stop])

    def read(self, *columns: NDArray[np.int64]) -> list[bytes]:
        ranges = list(zip(*(column.tolist() for column in columns), strict=True))
        self.read_ranges += ranges
        return [FILES[file][start:stop] for file, start, stop in ranges]

    def ask(self, file: Ints, start: Ints, stop: Ints, most: int) -> None:
        assert most == 2**28
        self.asked += zip(file.tolist(), start.tolist(), stop.tolist(), strict=True)

    def are_asked(self, *columns: NDArray[np.int64]) -> list[bool]:
        return [False] * len(columns[0])


class Cached:
    """Stands in for a `PageCache` that has these pages."""

    refuses, is_behind = False, False

    def __init__(self, *known: Triple) -> None:
        self.known = {name_of(each): memoryview(FILES[each[0]])[slice(*each[1:])] for each in known}
        self.wanted, self.sent, self.waited = set[str](), set[str](), set[str]()

    def get(self, names: Sequence[str]) -> list[memoryview | None]:
        return [self.known.get(name) for name in names]

    def want(self, pages: Iterator[Wanted]) -> None:
        self.wanted |= {page.name for page in pages}

    def wait_for(self, names: Sequence[str], seconds: float) -> bool:
        assert 0 < seconds < 1
        self.waited = {*names} & self.sent
        self.known |= {name: memoryview(FILES[2]) for name in self.waited}
        return bool(self.waited)


def name_of(page: Triple) -> str:
    file, start, stop = page
    return f"{STORED[file].version[:32]}/{start}-{stop}"


def ends(document: Ints, file: Ints, byte: Ints) -> Ints:
    """Documents go on for 30 bytes after each end of a page; the one of number 7 for 200."""
    sizes = np.array(SIZES)[file]
    return np.minimum(byte + np.where(document == 7, 200, 30), np.maximum(sizes, byte))


def by_page(cache: Any = None) -> tuple[PagedFiles, Any]:
    files = PagedFiles("gs://bkt/ds", STORED, lambda: CHECKSUMS, ends)
    if cache:
        files.__dict__["_cache"] = cache
    return files, files._exact


def ranges(*given: Triple, page: Sequence[int] = (), document: int = 0) -> PageRanges:
    columns = [np.array(column, np.int64) for column in zip(*given, strict=True)]
    own = columns[1] // PAGE
    return PageRanges(*columns, np.array(page or own), np.full_like(own, document))


def numbers(*wanted: int) -> list[int]:
    """Of all pages of some files."""
    most = paged_files._PAGES_A_FILE
    return [file * most + start // PAGE for file, start in STARTS if file in wanted]


def opened() -> PageCache:
    cache = page_cache.page_cache()
    assert cache
    return cache


def fetch(files: PagedFiles, pages: Sequence[int]) -> None:
    """Pages, now."""
    for page in pages:
        opened().fetch(files._wanted(page))


def in_page(page: Triple) -> Any:
    """A range that begins there: file, first byte, size, and the page that it is fetched with."""
    file, start, stop = page
    with_page = st.sampled_from([start // PAGE, max(start // PAGE - 1, 0), -1])
    return st.tuples(st.just(file), st.integers(start, stop - 1), st.integers(0, 130), with_page)


RANGES = st.lists(st.sampled_from(PAGES).flatmap(in_page), min_size=1, max_size=8)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RANGES, st.dictionaries(st.sampled_from(PAGES), st.integers(0, 60)), st.booleans())
def test_ranges_are_the_bytes_of_the_files_wherever_their_pages_are(
    given: list[tuple[int, int, int, int]], known: dict[Triple, int], by_chunks: bool
) -> None:
    """A range is a hit where its page is here, or what spilled over from that before."""
    spilled = [(f, a, min(b + more, SIZES[f])) for (f, a, b), more in known.items()]
    files, bucket = by_page(cache := Cached())
    files.dealt_by_pages = by_chunks
    pairs = zip(known, spilled, strict=True)
    cache.known = {name_of(p): memoryview(FILES[p[0]])[p[1] : one[2]] for p, one in pairs}
    asked = [(f, a, min(a + n, SIZES[f])) for f, a, n, _ in given]
    before = READS.read()
    found = files.gather(ranges(*asked, page=[page for *_, page in given]))
    counted = READS.read() - before
    assert [bytes(each) for each in found.each()] == [FILES[f][a:b] for f, a, b in asked]
    missed, fetched = [], set[str]()
    for one, (*_, page) in zip(asked, given, strict=True):
        own = one[1] // PAGE
        wanted = {own, page} - {-1} if by_chunks else {own}
        here = [each for each in spilled if each[0] == one[0] and each[1] // PAGE in wanted]
        if not any(each[1] <= one[1] and one[2] <= each[2] for each in here):
            missed.append(one)
            with_page = page if by_chunks else own
            page_there = [p for p in PAGES if (p[0], p[1] // PAGE) == (one[0], with_page)]
            fetched |= {name_of(each) for each in page_there if each not in known}
    assert bucket.read_ranges == missed
    assert (counted.hits, counted.misses) == (len(asked) - len(missed), len(missed))
    assert counted.used_bytes == sum(b - a for _, a, b in asked)
    assert cache.wanted == fetched


def test_a_batch_waits_for_pages_that_are_under_way_and_for_no_others() -> None:
    files, bucket = by_page(cache := Cached())
    cache.sent = {name_of((2, 0, 100))}
    before = READS.read().wait_seconds
    found = files.gather(ranges((0, 5, 9), (2, 7, 70)))
    assert [bytes(each) for each in found.each()] == [FILES[0][5:9], FILES[2][7:70]]
    assert (cache.waited, bucket.read_ranges) == (cache.sent, [(0, 5, 9)])
    assert 0 < READS.read().wait_seconds - before < 60


@pytest.mark.parametrize("behind", [False, True])
def test_ahead_of_need_pages_are_wanted_in_order_and_the_rest_is_asked_for(behind: bool) -> None:
    files, bucket = by_page(cache := Cached((0, 200, 250)))
    cache.is_behind = behind
    given = [(3, 510, 520), (0, 210, 220), (0, 10, 20), (3, 530, 540)]
    asked = ranges(*given, page=[5, 2, -1, 5])
    pages = numbers(0, 3)
    assert files.pages_of(asked).tolist() == [pages[8], pages[2], pages[0]]
    assert [files.size_of(page) for page in pages[1:4]] == [100, 50, 100]
    assert files.size == sum(SIZES)
    files.prefetch(asked)
    assert cache.wanted == {name_of((3, 500, 600)), name_of((0, 0, 100))}
    assert bucket.asked == ([given[0], given[2], given[3]] if behind else [])
    assert files.fit(sum(SIZES) - 1, sum(SIZES))
    cache.wanted, bucket.asked = set(), []
    assert files.pages_of(asked).tolist() == [pages[8], pages[2]]
    files.prefetch(asked)
    assert cache.wanted == {name_of((3, 500, 600))}
    assert bucket.asked == ([given[0], given[2], given[3]] if behind else [given[2]])
    for need, cache.refuses in [(sum(SIZES) + 1, False), (sum(SIZES), True)]:
        assert files.fit(need, sum(SIZES)) == cache.refuses
        assert not files.dealt_by_pages
        cache.wanted, bucket.asked = set(), []
        files.prefetch(asked)
        assert (cache.wanted, bucket.asked) == (set(), given)
        assert not len(files.pages_of(asked))


def dealt(cache: Any = None) -> tuple[PagedFiles, Any]:
    files, bucket = by_page(cache)
    files.fit(1, 1)
    return files, bucket


def test_what_spills_over_the_end_of_a_page_is_fetched_with_it() -> None:
    files, bucket = dealt()
    spilled = ranges((3, 580, 600), (3, 600, 625), (0, 200, 220), page=[5, 5, 1])
    pages, before = files.pages_of(spilled), READS.read()
    assert pages.tolist() == [numbers(3)[5], numbers(0)[1]]
    assert [files.size_of(page) for page in pages] == [130, 130]
    files.prefetch(spilled)
    settled(opened())
    assert sorted(bucket.fetched) == [(0, 100, 230), (3, 500, 630)]
    expected = FILES[3][580:625] + FILES[0][200:220]
    assert files.gather(spilled).join() == expected
    other, exact = dealt()
    other.prefetch(spilled)
    assert other.gather(spilled).join() == expected
    counted = READS.read() - before
    assert (counted.hits, counted.misses, counted.pages) == (6, 0, 2)
    assert (exact.fetched, exact.asked, bucket.asked, bucket.read_ranges) == ([], [], [], [])


def test_a_document_that_fills_the_next_page_or_ends_the_file_spills_as_far_as_known() -> None:
    files, _ = dealt()
    long = ranges((3, 580, 600), (0, 190, 200), document=7)
    assert [files.size_of(page) for page in files.pages_of(long)] == [100, 150]
    files.pages_of(ranges((3, 1_650, 1_660), (3, 1_710, 1_720)))
    assert [files.size_of(page) for page in numbers(3)[16:]] == [130, 33]
    files.fit(sum(SIZES), sum(SIZES))
    assert [files.size_of(page) for page in numbers(3)[16:]] == [100, 33]


def test_spills_of_pages_that_came_without_them_are_asked_for_or_lie_in_their_own() -> None:
    """As where another run, to which all pages were of use, has filled the cache."""
    files, bucket = dealt(cache := Cached((3, 500, 600), (3, 700, 800), (3, 800, 900)))
    spilled = ranges((3, 600, 625), (3, 800, 810), page=[5, 7])
    files.prefetch(spilled)
    assert (cache.wanted, bucket.asked) == (set(), [(3, 600, 625), (3, 800, 810)])
    assert files.gather(spilled).join() == FILES[3][600:625] + FILES[3][800:810]
    assert bucket.read_ranges == [(3, 600, 625)]


def test_without_a_cache_all_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "page_cache", lambda: None)
    files, bucket = by_page()
    given = [(3, 510, 520), (0, 210, 220)]
    files.prefetch(ranges(*given))
    assert bucket.asked == given
    assert files.gather(ranges(*given)).join() == FILES[3][510:520] + FILES[0][210:220]
    assert files.prefetch_pages(np.array([0, 1])).tolist() == [0, 0]
    assert not bucket.fetched


def test_pages_come_once_and_what_failed_is_fetched_when_it_is_needed() -> None:
    files, bucket = by_page()
    pages, cache, before = numbers(0, 2), opened(), READS.read().pages
    for _ in range(2):
        files.prefetch_pages(np.array(pages[:2]))
        settled(cache)
    assert sorted(bucket.fetched) == [(0, 0, 100), (0, 100, 200)]
    fetch(files, pages)
    assert sorted(bucket.fetched) == [page for page in PAGES if page[0] in (0, 2)]
    assert READS.read().pages == before + 4
    assert files.prefetch_pages(np.array(pages)).tolist() == [100, 100, 50, 100]
    found = files.gather(ranges((0, 0, 100), (0, 240, 250), (2, 50, 100)))
    assert [bytes(one) for one in found.each()] == [FILES[0][:100], FILES[0][240:], FILES[2][50:]]
    labels = {path.read_text() for path in (cache.folder / "labels").iterdir()}
    assert labels == {"gs://bkt/ds\nf0", "gs://bkt/ds\nf2"}


def test_a_damaged_page_is_fetched_twice_and_then_refused(bucket: type[Bucket]) -> None:
    said = (
        "gs://bkt/ds/f3: bytes 200 to 300 are not what was written: restore it from a copy; "
        "jaxdata verify gs://bkt/ds names what is damaged"
    )
    first, second = numbers(3)[1:3]
    bucket.damages = 1
    files, exact = by_page()
    fetch(files, [first])
    assert exact.fetched == [(3, 100, 200)] * 2
    bucket.damages = 2
    files, exact = by_page()
    with pytest.raises(DatasetError, match=said):
        fetch(files, [second])
    assert exact.fetched == [(3, 200, 300)] * 2
    files.gather(ranges((3, 340, 350)))
    with pytest.raises(DatasetError, match=said):
        files.gather(ranges((3, 340, 350), (3, 240, 250)))


def test_a_column_is_fetched_once_for_the_host_unless_the_cache_does_not_take_it() -> None:
    data, sent, cache = FILES[0][:40], list[int](), opened()
    sha256 = hashlib.sha256(data).hexdigest()

    def parts() -> Iterator[bytes]:
        sent.append(1)
        yield from (data[:17], data[17:])

    def column(sha256: str = sha256) -> Any:
        return paged_files.cached_column("gs://bkt/c", sha256, 40, parts, "gs://bkt\nc")

    for cache.most, cache._refused_until in ((79, 0), (80, 1e18)):
        assert column() is None
    cache._refused_until = 0
    assert ([bytes(column()) for _ in range(2)], sent) == ([data] * 2, [1])
    assert (cache.folder / "labels" / sha256[:32]).read_text() == "gs://bkt\nc"
    with pytest.raises(DatasetError, match=r"^gs://bkt/c is not what was written: its checksum"):
        column("0" * 64)


SIZE = 40 * SPAN + 5


DATA = np.random.default_rng(0).integers(0, 2**32, SIZE).astype("<u4")


def far_column() -> tuple[FarColumn, list[int | str]]:
    """`DATA`, and what was fetched of it: numbers of bytes, or the whole."""
    fetched: list[int | str] = []

    def read(start: Ints, stop: Ints) -> list[Any]:
        fetched.append(int((stop - start).sum()))
        return [DATA.tobytes()[a:b] for a, b in zip(start, stop, strict=True)]

    return FarColumn(SIZE, DATA.dtype, read, lambda: fetched.append("all") or DATA), fetched


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(-SIZE, SIZE - 1), max_size=8), max_size=12))
def test_a_far_column_is_the_array(lookups: list[list[int]]) -> None:
    column, _ = far_column()
    for places in lookups:
        chosen = np.array(places, np.int64)
        assert column[chosen].tolist() == DATA[chosen].tolist()
        clipped = DATA.take(chosen * 3, mode="clip")
        assert column.take(chosen * 3, mode="clip").tolist() == clipped.tolist()
    assert (column[5:9].tolist(), int(column[-1])) == (DATA[5:9].tolist(), int(DATA[-1]))
    with pytest.raises(IndexError, match=f"out of bounds of a column of {SIZE} entries"):
        column[np.array([SIZE])]


def test_operators_and_flags_take_the_whole_of_a_far_column() -> None:
    column: Any = far_column()[0]
    assert ((column > 2**31) == (DATA > 2**31)).all()
    assert (column == DATA).all()
    assert (column - column == 0).all()
    assert column[DATA > 2**31].tolist() == DATA[DATA > 2**31].tolist()


def test_what_is_here_is_not_fetched_again_and_many_spans_are_the_whole() -> None:
    column, fetched = far_column()
    for _ in range(3):
        column[np.array([[1, SPAN + 1], [2, SIZE - 1]])]
    column.take(np.arange(3 * SPAN, 5 * SPAN, SPAN))
    assert fetched == [(2 * SPAN + 5) * 4, 2 * SPAN * 4], "an eighth of the 41"
    column[np.array([6 * SPAN])]
    assert column[np.array([3])].tolist() == [int(DATA[3])]
    assert int(column.sum()) == int(DATA.sum())
    assert np.asarray(column).tolist() == DATA.tolist()
    assert fetched[2:] == ["all"]
    assert (len(column), column.shape) == (SIZE, (SIZE,))
    assert not hasattr(column, "__cuda_array_interface__")


@example([(0, 0, 0), (0, 1, 0), (0, 2, 0)], 1)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 60))),
    st.integers(0, 20),
)
def test_each_range_is_in_one_extent_and_extents_lie_apart(ranges: list[Triple], gap: int) -> None:
    """They begin and end where a range does, and no gap in them is longer."""
    file, start, size = np.array(ranges, np.int64).reshape(-1, 3).T
    *found, owners = merged(file, start, start + size, gap=gap)
    held: dict[int, list[tuple[int, int]]] = {}
    for number, owner in enumerate(owners.tolist()):
        assert found[0][owner] == file[number]
        held.setdefault(owner, []).append((int(start[number]), int(start[number] + size[number])))
    extents = list(zip(*(each.tolist() for each in found), strict=True))
    for owner, (_, begin, end) in enumerate(extents):
        reach = begin
        for a, b in sorted(held[owner]):
            assert a <= reach + gap
            reach = max(reach, b)
        assert (min(held[owner])[0], reach) == (begin, end)
    for (f, _, stop), (g, begin, _) in pairwise(sorted(extents)):
        assert f != g or begin - stop > gap
