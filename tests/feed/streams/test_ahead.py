"""What a thread takes ahead: batches, and what stores are told of; whatever goes wrong."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base import progress
from jaxdata.base.threads import check_stop
from jaxdata.feed import ahead as feed_ahead
from jaxdata.feed.ahead import Ahead, FarStream, made_ahead, told_ahead, with_first_fill
from jaxdata.feed.batches import Change, Stream
from jaxdata.feed.schedule import Span
from jaxdata.storage.pages.read_counts import Counter

BATCH_BYTES = 2**20
Patch = pytest.MonkeyPatch


class Source(Stream[Any]):
    """A stream of numbers; who waits sees how many were taken. At `last` it raises or waits."""

    def __init__(self, last: int, error: BaseException | None = None) -> None:
        self.taken, self.last, self.error = 0, last, error
        self.changed, self.closed = threading.Condition(), 0

    def __next__(self) -> Any:
        with self.changed:
            if self.taken == self.last:
                if self.error is None:
                    self.changed.wait_for(lambda: self.closed, 60)
                raise self.error or StopIteration
            self.taken += 1
            self.changed.notify_all()
            return Span(self.taken - 1, 1), self.taken * 10

    def close(self) -> None:
        with self.changed:
            self.closed += 1
            self.changed.notify_all()

    def wait_until(self, taken: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.taken >= taken, 60)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_so_many_are_made_ahead_and_after_an_error_it_is_at_its_end(depth: int) -> None:
    source = Source(20, ZeroDivisionError("of the maker"))
    stream: Any = made_ahead(source, depth)
    for number in range(20):
        assert source.wait_until(min(number + depth, 20))
        assert source.taken <= number + depth
        assert next(stream) == (Span(number, 1), number * 10 + 10)
    with pytest.raises(ZeroDivisionError, match="of the maker"):
        next(stream)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    stream._thread.join(60)
    assert not stream._thread.is_alive()


@pytest.mark.parametrize("last", [2, 9])
def test_closed_it_stops_its_thread_and_hands_out_nothing_more(last: int) -> None:
    """Also while the thread waits for a batch."""
    source = Source(last)
    stream: Any = made_ahead(source, 3)
    assert source.wait_until(min(last, 3))
    stream.close()
    assert (source.closed, stream._thread.is_alive()) == (1, False)
    assert source.taken <= 3
    assert [*stream] == [*stream] == []
    stream.close()


class Maker:
    """Makes numbers of batches, and notes of which stores were told."""

    is_far = True

    def __init__(self, tell: Callable[[Sequence[Span]], int] | None = None) -> None:
        self.told: list[int] = []
        self.groups: list[int] = []
        self.tell = tell or (lambda spans: BATCH_BYTES * len(spans))

    def together(self, span: Span) -> int:
        return 4

    def far_ranges(self, spans: Sequence[Span]) -> Iterator[Any]:
        self.groups.append(len(spans))
        nbytes = self.tell(spans)
        self.told += [span.first for span in spans]
        yield SimpleNamespace(prefetch=lambda ranges: None), SimpleNamespace(nbytes=nbytes)

    def make(self, spans: Sequence[Span], *_: Any) -> Iterator[Any]:
        yield from (span.first for span in spans)


def spans(count: int, first: int = 0) -> Iterator[Span]:
    return (Span(number, 1) for number in range(first, count))


def fails(_: Sequence[Span]) -> int:
    raise ValueError("of a library")


@pytest.mark.parametrize(
    ("tell", "room"), [(None, 2**28), (fails, 2**28), (None, 0), (lambda _: 0, 0)]
)
def test_every_batch_comes_in_order(monkeypatch: Patch, tell: Any, room: int) -> None:
    """Also where nothing can be told, or the cache has no room, and after another recipe."""
    monkeypatch.setattr(feed_ahead, "most_ahead", lambda: room)
    maker: Any = Maker(tell)
    stream = FarStream(maker, spans(200))
    assert [batch for _, batch in stream] == list(range(200))
    assert maker.told == ([] if tell is fails else list(range(200)))
    assert maker.groups == [1, 2, 4, 8, *[16] * 11, 9], "in groups that grow"
    again = FarStream(maker, spans(50))
    assert next(again) == (Span(0, 1), 0)
    other: Any = Maker(tell)
    again.change(Change(lambda _: other, spans(90)))
    assert [batch for _, batch in again] == list(range(1, 90))
    assert other.groups[:2] == [1, 2]
    for each in (stream, again):
        each.close()


@pytest.mark.parametrize(
    ("setting", "value", "tell"),
    [("_LEAST_WINDOW", 8 * BATCH_BYTES, None), ("_MOST_BATCHES", 8, lambda _: 0)],
)
def test_it_is_a_window_ahead(monkeypatch: Patch, setting: str, value: int, tell: Any) -> None:
    """Of bytes, or of batches, where a bucket has little of a mixture."""
    monkeypatch.setattr(feed_ahead, setting, value)
    monkeypatch.setattr(feed_ahead, "_WINDOW_SECONDS", 0)
    maker: Any = Maker(tell)
    ahead, taken = told_ahead(maker, spans(500)), 0
    while taken < 100:
        taken += len(ahead.take(1))
        assert len(maker.told) <= taken + 8 + 16, "batches are told of in groups of up to 16"
    assert len(maker.told) >= taken
    ahead.close()


@given(st.integers(0, 5_000), st.integers(0, 2**27), st.integers(0, 2**27), st.integers(0, 4_200))
def test_the_window_is_what_is_taken_in_four_seconds_within_limits(
    milliseconds: int, taken: int, held: int, count: int
) -> None:
    """Of 16 to 256 MiB of rows here, and of at most 4,096 batches."""
    now, found = [5.0], list[Any]()

    def kept(_items: Any, has_room: Any) -> Any:
        found.append(has_room)

    with Patch.context() as patch:
        patch.setattr(feed_ahead, "time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(feed_ahead, "most_ahead", lambda: 2**26)
        patch.setattr(feed_ahead, "Ahead", kept)
        told_ahead(Maker(), spans(0))  # type: ignore[arg-type]
        now[0] = 5.0 + milliseconds / 1000
        ready = [feed_ahead._Told(Span(0, 1), taken, taken + held)] * count
        rate = taken / max(now[0] - 5.0, 0.001)
        window = min(max(4 * rate, 2**24), 2**26)
        assert found[0](ready) == (not count or (count < 4_096 and held < window))


def test_it_ends_at_once_in_the_middle_of_a_request() -> None:
    waits = threading.Event()

    def silent(_: Sequence[Span]) -> int:
        waits.set()
        while True:
            check_stop()

    maker: Any = Maker(silent)
    ahead: Ahead[Any] = told_ahead(maker, spans(5))
    assert waits.wait(60)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert ahead.take(1) == []


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
