"""Fetching what a run reads first, with a cache and files that only count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.feed import warming
from jaxdata.feed.schedule import Schedule, Span
from jaxdata.feed.warming import warm
from jaxdata.storage.pages.read_counts import ReadCounts

Patch = pytest.MonkeyPatch


class Cache:
    """A cache in which pages arrive while somebody waits."""

    def __init__(self, most: int, columns: int = 0, refuses: str | None = None) -> None:
        self.most, self.columns, self.left, self.slept = most, columns, 0, 0
        self.refuses, self.refusal = bool(refuses), refuses
        self.folder = self.fetcher = self

    def column_bytes(self) -> int:
        return self.columns

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 1
        self.slept += 1
        self.left = max(self.left - 100, 0)


class Files:
    """The files of a source, of pages of one size."""

    def __init__(self, cache: Cache, page_count: int, size: int, by_pages: bool = True) -> None:
        self.cache, self.page_count, self.size, self.by_pages = cache, page_count, size, by_pages
        self.asked, self.missing = list[set[int]](), list[int]()

    def pages_of(self, ranges: Sequence[int]) -> Any:
        return np.array([number for number in ranges if number < self.page_count], np.int64)

    def prefetch_pages(self, pages: Any) -> None:
        known = set[int]().union(*self.asked)
        self.asked.append({*pages.tolist()})
        self.cache.left += len(self.asked[-1] - known)

    def size_of(self, page: int) -> int:
        return self.size

    def fetch_missing(self, pages: set[int]) -> None:
        assert self.cache.left == 0, "not before all were waited for"
        self.missing = sorted(pages)


class Run:
    """A run whose batches read given pages of each source; it notes how it was made."""

    made: dict[str, Any]

    def __init__(
        self, patch: Patch, cache: Cache | None, files: dict[str, Files | None], pages: Any
    ) -> None:
        self.schedule, self.rows, self.files = Schedule(len(pages), [(0, 1)]), self, files
        self._pages, self.clock, self.counts = pages, iter([10.0, 12.5]), ReadCounts(gets=3)
        self.progress = list[tuple[int, int]]()
        patch.setattr(warming, "BatchIterator", self._make)
        patch.setattr(warming, "known_rows", lambda rows: SimpleNamespace(table=rows))
        patch.setattr(warming, "page_cache", lambda: cache)
        patch.setattr(warming, "read_counts", lambda: self.counts)
        sleep = cache and cache.sleep
        time = SimpleNamespace(perf_counter=lambda: next(self.clock), sleep=sleep)
        patch.setattr(warming, "time", time)

    def _make(self, rows: Any, settings: Any, placement_of: Any) -> Any:
        self.made = settings.model_dump(exclude_unset=True)
        self.made["rows"] = placement_of(8, 0).rows.tolist()
        return rows

    def sections(self) -> Any:
        tables = [
            (name, SimpleNamespace(documents=[SimpleNamespace(is_far=bool(files), pages=files)]))
            for name, files in self.files.items()
        ]
        return [(at, SimpleNamespace(sources=dict([one]))) for at, one in enumerate(tables)]

    def maker(self) -> Any:
        return self

    def far_ranges(self, spans: Sequence[Span]) -> Iterator[Any]:
        for span in spans:
            far = [files for files in self.files.values() if files]
            yield from zip(far, self._pages[span.first], strict=True)

    def open(self) -> Any:
        self.counts += ReadCounts(gets=2, bytes=50)  # columns of the index
        return self

    def warm(self, **given_: Any) -> Any:
        how = {"batch_size": 8, "progress": lambda *said: self.progress.append(said)}
        return warm(self.open, **(how | given_))


PAGES = st.lists(st.integers(0, 59), max_size=30)


@given(
    st.lists(st.tuples(PAGES, PAGES), max_size=40),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 9), st.just(7) | st.none()),
    st.booleans(),
    st.integers(0, 800),
    st.none() | st.integers(0, 50),
)
def test_pages_are_asked_for_batch_by_batch_until_the_cache_is_full(
    pages: Any, counts: Any, sizes: Any, by_pages: bool, most: int, steps: int | None
) -> None:
    columns = 40
    cache = Cache(most, columns)
    size, other = sizes[0], sizes[1] or sizes[0]
    files = {
        "web": Files(cache, counts[0], size),
        "code": Files(cache, counts[1], other, by_pages),
    }
    with pytest.MonkeyPatch.context() as patch:
        run = Run(patch, cache, files, pages)
        done = run.warm(steps=steps)
    wanted = len(pages) if steps is None else min(steps, len(pages))
    room, whole, at, here = most * 7 // 8 - columns, 0, 0, [set[int](), set[int]()]
    while at < wanted:
        group = pages[at : min(at + (8 if at else 1), wanted)]
        for mine, one, numbers in zip(here, counts, zip(*group, strict=True), strict=True):
            mine.update(number for some in numbers for number in some if number < one)
        every = [len(mine) == one for mine, one in zip(here, counts, strict=True)]
        if every[0] and (every[1] or not by_pages):
            whole = wanted
            break
        if len(here[0]) * size + len(here[1]) * other > room:
            break
        at += len(group)
        whole = at
    total = len(here[0]) * size + len(here[1]) * other
    assert (done.steps, done.asked_steps, done.full) == (whole, wanted, whole < wanted)
    assert (done.pages, done.bytes) == (len(here[0]) + len(here[1]), total)
    assert done.skipped == (() if by_pages else ("code",))
    assert [each.missing for each in files.values()] == [sorted(mine) for mine in here]
    assert (done.gets, done.fetched_bytes, done.seconds) == (2, 50, 2.5)
    assert run.progress[-1] == (min(total, room), min(total, room))


def test_a_host_asks_for_its_own_rows_and_stops_where_the_cache_refuses(
    monkeypatch: Patch,
) -> None:
    cache = Cache(10_000, refuses="the disk is full")
    files = Files(cache, 100, 5)
    run = Run(monkeypatch, cache, {"web": files}, [[[at]] for at in range(30)])
    with pytest.raises(InputError, match=r"^the disk is full$"):
        run.warm(shard=(1, 2), drop_remainder=True)
    assert files.asked == [{0}]
    assert run.made == {"rows": [4, 5, 6, 7], "batch_size": 8, "drop_remainder": True}


def test_without_a_bucket_or_a_cache_there_is_nothing_to_fetch(monkeypatch: Patch) -> None:
    with pytest.raises(
        InputError, match="nothing to fetch: no source of this run lies in a bucket"
    ):
        Run(monkeypatch, Cache(99), {"web": None}, []).warm()
    run = Run(monkeypatch, None, {"web": Files(Cache(99), 1, 1)}, [])
    with pytest.raises(
        InputError, match="there is no cache to fetch into: let JAXDATA_CACHE name a"
    ):
        run.warm()
    monkeypatch.setattr(warming, "known_rows", lambda rows: None)
    with pytest.raises(InputError, match="nothing to fetch"):
        run.warm()
