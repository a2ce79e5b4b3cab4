"""What is made and fetched ahead, whatever goes wrong; and what is read of buckets by pages."""

import io
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
from jaxdata.base import progress
from jaxdata.base.threads import check_stop
from jaxdata.feed import ahead as feed_ahead, batches
from jaxdata.feed.ahead import fetched_ahead, made_ahead, told_ahead, with_first_fill
from jaxdata.feed.batches import Stream, choose_pages
from jaxdata.feed.schedule import Span
from jaxdata.storage.pages.paged_files import PagedFiles
from jaxdata.storage.pages.read_counts import Counter

Patch = pytest.MonkeyPatch


class Source:
    """Yields some numbers, then raises; others may wait for what it gave."""

    closed = False

    def __init__(self, count: int) -> None:
        self.count, self.taken, self.changed = count, 0, threading.Condition()

    def __next__(self) -> int:
        with self.changed:
            if self.taken == self.count:
                raise ZeroDivisionError("of the maker")
            self.taken += 1
            self.changed.notify_all()
            return self.taken

    def close(self) -> None:
        self.closed = True

    def wait_for(self, taken: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.taken >= taken, 60)


@pytest.mark.parametrize("depth", [1, 5])
def test_so_many_are_made_ahead_and_after_an_error_or_closed_it_is_at_its_end(depth: int) -> None:
    source: Any = Source(20)
    stream: Any = made_ahead(source, depth)
    for number in range(20):
        assert source.wait_for(min(number + depth, 20))
        assert source.taken <= number + depth
        assert next(stream) == number + 1
    with pytest.raises(ZeroDivisionError, match="of the maker"):
        next(stream)
    assert [*stream] == []
    other: Any = made_ahead(again := Source(9), depth)  # type: ignore[arg-type]
    assert again.wait_for(depth)
    other.close()
    assert (again.closed, other._thread.is_alive(), [*other]) == (True, False, [])
    stream._thread.join(60)
    assert not stream._thread.is_alive()


class Maker:
    """Makes numbers of batches, and notes of which stores were told."""

    is_far = True

    def __init__(self, tell: Callable[[Sequence[Span]], int]) -> None:
        self.told, self.groups, self.tell = list[int](), list[int](), tell

    def together(self, span: Span) -> int:
        return 4

    def far_ranges(self, spans: Sequence[Span]) -> Iterator[Any]:
        nbytes = self.tell(spans)
        self.groups.append(len(spans))
        self.told += [span.first for span in spans]
        yield SimpleNamespace(prefetch=lambda ranges: None), SimpleNamespace(nbytes=nbytes)

    def make(self, spans: Sequence[Span], *_: Any) -> Iterator[Any]:
        yield from (span.first for span in spans)


def spans(count: int) -> Iterator[Span]:
    return (Span(number, 1) for number in range(count))


def fails(_: Sequence[Span]) -> int:
    raise ValueError("of a library")


@pytest.mark.parametrize(("tell", "room"), [(len, 2**28), (fails, 2**28), (len, 0)])
def test_every_batch_comes_in_order(monkeypatch: Patch, tell: Any, room: int) -> None:
    """Also where nothing can be told, or the cache has no room."""
    monkeypatch.setattr(feed_ahead, "most_ahead", lambda _: room)
    maker, threads = Maker(tell), threading.active_count()
    stream = fetched_ahead(maker, spans(200))  # type: ignore[arg-type]
    assert [batch for _, batch in stream] == [*range(200)]
    assert maker.groups[:5] == ([] if tell is fails else [1, 2, 4, 8, 16]), "in groups that grow"
    stream.close()
    far = fetched_ahead(maker, spans(10**6))  # type: ignore[arg-type]
    assert next(far)[1] == 0
    far.close()
    assert threading.active_count() <= threads
    assert [*far] == []


@given(
    st.integers(0, 5_000),
    st.integers(0, 2**25),
    st.sampled_from([-1, 0]),
    st.sampled_from([4_095, 4_096, 1, 0]),
    st.sampled_from([1, 4]),
)
def test_the_window_is_what_is_taken_in_four_seconds_within_limits(
    milliseconds: int, rate: int, beyond: int, count: int, processes: int
) -> None:
    """Of 16 to 256 MiB of rows (here 64), and of at most 4,096 batches."""
    now, found, taken = [5.0], list[Any](), rate * milliseconds // 1000
    with Patch.context() as patch:
        patch.setattr(feed_ahead, "time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(feed_ahead, "most_ahead", {processes: 2**26}.get)
        patch.setattr(feed_ahead, "Ahead", lambda _items, has_room: found.append(has_room))
        told_ahead(Maker(len), spans(0), processes)  # type: ignore[arg-type]
        now[0] = 5.0 + milliseconds / 1000
        window = min(max(4 * taken / max(now[0] - 5.0, 0.001), 2**24), 2**26)
        held = int(window) + beyond
        ready = [feed_ahead._Told(Span(0, 1), taken, taken + held)] * count
        assert found[0](ready) == (not count or (count < 4_096 and held < window))


def test_where_pages_come_late_batches_are_looked_up_and_made_alone(monkeypatch: Patch) -> None:
    """As where many lanes begin at once: the first of a group would wait for ranges of all."""
    late, told = [True], list[int]()

    def tell(some: Sequence[Span]) -> int:
        told.append(len(some))
        return 1

    for module in (feed_ahead, batches):
        monkeypatch.setattr(module, "pages_are_behind", lambda: late[0])
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3]] * 9), seq_len=8)
    maker = jaxdata.Loader(rows, batch_size=2, shard=(0, 1)).maker()
    vars(maker)["is_far"] = True
    assert maker.together(Span(0, 2)) == 1
    ahead = told_ahead(Maker(tell), spans(100))  # type: ignore[arg-type]
    for number in range(5):
        (taken,) = ahead.take(1)
        assert taken.span.first == number
    assert {*told} == {1}
    assert sum(told) <= 5 + 2 + 1, "two are ready, and one is looked up"
    late[0] = False
    assert maker.together(Span(0, 2)) == 256
    while len(told) < 12:
        ahead.take(1)
    assert max(told) > 1
    ahead.close()


def test_it_ends_at_once_in_the_middle_of_a_request() -> None:
    waits = threading.Event()

    def silent(_: Sequence[Span]) -> int:
        waits.set()
        while True:
            check_stop()

    ahead = told_ahead(Maker(silent), spans(5))  # type: ignore[arg-type]
    assert waits.wait(60)
    ahead.close()
    assert not ahead._thread.is_alive()


@pytest.mark.parametrize("says", [True, False])
def test_whoever_watches_a_long_first_fill_sees_what_came_and_a_log_what_it_took(
    says: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0 if says else 600)
    terminal, drawn = io.StringIO(), threading.Event()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "flush", drawn.set)
    monkeypatch.setattr("sys.stderr", terminal)
    caplog.set_level("INFO", "jaxdata")
    clock, fetched = chain([10.0], repeat(12.5)), Counter()
    monkeypatch.setattr(feed_ahead, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def slow() -> Iterator[tuple[Span, str]]:
        assert drawn.wait(60 if says else 0) == says
        for number in range(3):
            yield Span(number, 1), "batch"

    stream = with_first_fill(Stream(slow()), fetched.read)
    fetched.add(gets=7, bytes=3_200_000)
    assert [batch for _, batch in stream] == 3 * ["batch"]
    assert ("fetching the first batch: 3.2 MB in 7 GETs" in terminal.getvalue()) == says
    assert caplog.messages == ["the first batch is here: 3.2 MB in 7 GETs, 2.5 s"]


class One(NamedTuple):
    """A source: the bytes of its files, of tokens and of side arrays; None where they are local."""

    dtype: str
    open_bytes: int | None
    size: int | None
    sides: dict[str, tuple[str, int | None]]


class Files:
    """As many bytes of files, and what was chosen for them."""

    fit = PagedFiles.fit

    def __init__(self, size: int) -> None:
        self.size = size


def files(dtype: str, size: int | None) -> Any:
    """Documents in a bucket, or not (None)."""
    pages = None if size is None else Files(size)
    return SimpleNamespace(dtype=np.dtype(dtype), is_far=size is not None, pages=pages)


def need(size: int, width: int, each: One, eighths: int) -> int:
    """Bytes that are open at a time, of `width` for each token."""
    if each.open_bytes is None:
        return size
    return min(size, each.open_bytes * width * eighths // (np.dtype(each.dtype).itemsize * 8))


def bytes_up_to(tenths: int) -> st.SearchStrategy[int | None]:
    """None, or so many tenths of a megabyte, about."""
    return st.none() | st.integers(0, tenths).map(lambda n: n * 100_001)


SIZES, KINDS = bytes_up_to(90), {"mask": "u1", "weight": "<f8"}
SIDES = st.fixed_dictionaries({k: st.tuples(st.just(kind), SIZES) for k, kind in KINDS.items()})
SOURCES = st.builds(One, st.sampled_from(["<u2", "<u4"]), SIZES, SIZES, SIDES)


@given(
    st.dictionaries(st.sampled_from(["web", "code", "wiki"]), SOURCES, max_size=3),
    bytes_up_to(240),
    st.integers(1, 8),
    st.lists(st.sampled_from(["mask", "weight"]), unique=True),
)
def test_the_least_that_is_open_is_read_by_pages_as_far_as_a_cache_has_room(
    given_: dict[str, One], most: int | None, eighths: int, sides: list[str]
) -> None:
    tables, asked = dict[str, Any](), list[tuple[int, Any, str]]()
    for name, each in given_.items():
        documents = files(each.dtype, each.size)
        documents.side = {side: files(*given) for side, given in each.sides.items()}
        tables[name] = SimpleNamespace(documents=[documents], open_bytes=each.open_bytes)
        for one in (documents, *(documents.side[side] for side in sorted(sides))):
            if one.is_far:
                size = need(one.pages.size, one.dtype.itemsize, each, eighths)
                asked.append((size, one.pages, name))
    warnings, logger = list[str](), logging.getLogger("jaxdata")
    with Patch.context() as patch:
        cache = None if most is None else SimpleNamespace(most=most)
        patch.setattr(batches, "page_cache", lambda: cache)
        patch.setattr(logger, "warning", lambda text, *to: warnings.append(text % to))
        choose_pages(tables, eighths / 8, sides)
    room, expected = (most or 0) * 7 // 8, list[str]()
    for size, pages, name in sorted(asked, key=lambda each: each[0]):
        assert pages.dealt_by_pages == (size < pages.size)
        assert pages.by_pages == (size <= room)
        if size <= room:
            room -= size
        elif most is not None:
            expected.append(
                f"{name}: its rows are read from {size // 1_000_000} MB at a time, of which a "
                f"cache of {most // 1_000_000} MB has no room left: they are fetched by exact"
            )
    assert [said[: len(start)] for said, start in zip(warnings, expected, strict=True)] == expected


def made(name: str, size: int, lanes: int, chunk_bytes: int, *, shuffle: bool = True) -> Any:
    """Packed rows of a source in a bucket, of which only this is known."""
    rows = object.__new__(batches.PackedRows)
    settings = SimpleNamespace(shuffle=shuffle, chunk_bytes=chunk_bytes)
    vars(rows).update(documents=[SimpleNamespace(name=name, is_far=True)], settings=settings)
    vars(rows).update(_deals=[SimpleNamespace(lanes=SimpleNamespace(count=lanes))], bytes=size)
    return rows


DOWNLOADS: list[Any] = [
    (1, [("web", 9, 1, 0)], ""),
    (4, [("web", 9, 1, 0)], "4 hosts download 4.0 .* web: add chunk_bytes: 1048576 to"),
    (12, [("web", 9, 8, 2**20)], "12 hosts download 2.2 .* web: add lanes: 16 to"),
    (8, [("web", 9, 64, 2**20)], ""),
    (8, [("web", 90, 64, 2**20), ("code", 10, 1, 0)], "8 hosts download 1.7 .* code: add c"),
    (2, [("web", 6, 2, 2**20), ("code", 5, 1, 0)], ""),
]


@pytest.mark.parametrize(("hosts", "tables", "says"), DOWNLOADS)
def test_hosts_that_download_a_dataset_again_and_again_are_told_once(
    hosts: int, tables: Any, says: str, caplog: pytest.LogCaptureFixture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(batches.PackedRows, "stored_bytes", property(lambda t: t.bytes))
    monkeypatch.setattr(batches.PackedRows, "blocks", property(lambda t: 8 * t.lanes))
    sources = [made("val", 90, 1, 0, shuffle=False), *(made(*each) for each in tables)]
    run: Any = SimpleNamespace(sources=dict(enumerate(sources)))
    batches.warn_of_downloads(run, hosts, 48)
    assert len(caplog.messages) == bool(says)
    assert re.match(says, "".join(caplog.messages))
