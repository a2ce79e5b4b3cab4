"""Telling stores what coming batches read: a window ahead, whatever goes wrong."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from jaxdata.feed.streams.ahead import FarStream, FirstFill, ReadAhead

from jaxdata.base import progress
from jaxdata.base.threads import check_stop
from jaxdata.feed.schedule import Span
from jaxdata.feed.streams import ahead as read_ahead
from jaxdata.storage.pages.read_counts import Counter

BATCH_BYTES = 2**20
Patch = pytest.MonkeyPatch


class Maker:
    """Makes numbers of batches, and notes of which it told."""

    is_far = True

    def __init__(self, tell: Callable[[Sequence[Span]], int] | None = None) -> None:
        self.told: list[int] = []
        self.groups: list[int] = []
        self.tell = tell or (lambda spans: BATCH_BYTES * len(spans))

    def together(self, span: Span) -> int:
        return 4

    def prefetch(self, spans: Sequence[Span]) -> int:
        self.groups.append(len(spans))
        size = self.tell(spans)
        self.told += [span.first for span in spans]
        return size

    def make(self, spans: Sequence[Span], *_: Any) -> Iterator[Any]:
        yield from (span.first for span in spans)


@pytest.fixture(autouse=True)
def _tells_makers(monkeypatch: Patch) -> None:
    """Makers here have no bucket that could be told."""
    monkeypatch.setattr(read_ahead, "prefetch", lambda maker, spans: maker.prefetch(spans))


def spans(count: int) -> Iterator[Span]:
    return (Span(number, 1) for number in range(count))


def fails(_: Sequence[Span]) -> int:
    raise ValueError("of a library")


@pytest.mark.parametrize(
    ("tell", "room"), [(None, 2**28), (fails, 2**28), (None, 0), (lambda _: 0, 0)]
)
def test_every_batch_comes_in_order(monkeypatch: Patch, tell: Any, room: int) -> None:
    """Also where nothing can be told, or the cache has no room."""
    monkeypatch.setattr(read_ahead, "most_ahead", lambda: room)
    maker: Any = Maker(tell)
    stream = FarStream(maker, spans(200))
    assert [batch for _, batch in iter(lambda: next(stream, None), None)] == list(range(200))
    assert maker.told == ([] if tell is fails else list(range(200)))
    assert maker.groups == [1, 2, 4, 8, *[16] * 11, 9], "in groups that grow"
    counted = 0 if tell else 200 * BATCH_BYTES
    assert (stream._ahead._ahead, stream._ahead._taken) == (0, counted)
    stream.close()


@pytest.mark.parametrize(
    ("setting", "value", "tell"),
    [("_LEAST_WINDOW", 8 * BATCH_BYTES, None), ("_MOST_BATCHES", 8, lambda _: 0)],
)
def test_it_is_a_window_ahead(monkeypatch: Patch, setting: str, value: int, tell: Any) -> None:
    """Of bytes, or of batches, where a bucket has little of a mixture."""
    monkeypatch.setattr(read_ahead, setting, value)
    monkeypatch.setattr(read_ahead, "_WINDOW_SECONDS", 0)
    maker: Any = Maker(tell)
    ahead = ReadAhead(maker, spans(500))
    taken = 0
    while taken < 100:
        taken += len(ahead.take(1))
        # Batches are told of in groups of up to 16.
        assert len(maker.told) <= taken + 8 + 16
    assert len(maker.told) >= taken
    ahead.close()


def test_the_window_is_what_is_taken_in_four_seconds_within_limits(monkeypatch: Patch) -> None:
    now = [5.0]
    monkeypatch.setattr(read_ahead, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(read_ahead, "most_ahead", lambda: 2**26)
    monkeypatch.setattr(read_ahead, "in_background", lambda *_, **__: threading.current_thread())
    maker: Any = Maker()
    ahead = ReadAhead(maker, spans(0))
    assert (ahead._window, ahead._wants_more) == (2**24, True)
    assert ahead._room_for([*spans(3)], 3_000_002)
    assert ahead._ahead == 3_000_000, "as much for each"
    assert ahead.take(2) == [*spans(2)]
    assert (ahead._ahead, ahead._taken) == (1_000_000, 2_000_000)
    assert ahead._window == 2**26
    for now[0], window in ((7.0, 2**24), (5.25, 32_000_000), (5.0001, 2**26)):
        assert ahead._window == window
    now[0] = 5.25
    for ahead._ahead, wants in ((31_999_999, True), (32_000_000, False)):
        assert ahead._wants_more == wants
    ahead.take(1)
    assert ahead._wants_more, "whoever waits gets one, however large"
    ahead._ahead = 0
    for count, wants in ((4_095, True), (4_096, False)):
        ahead._known.extend((span, 0) for span in spans(count - len(ahead._known)))
        assert ahead._wants_more == wants
    ahead.close()
    assert not ahead._room_for([*spans(1)], 1), "closed, it hands out no more"


def test_it_ends_at_once_in_the_middle_of_a_request() -> None:
    waits = threading.Event()

    def silent(_: Sequence[Span]) -> int:
        waits.set()
        while True:
            check_stop()

    maker: Any = Maker(silent)
    ahead = ReadAhead(maker, spans(5))
    assert waits.wait(60)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert ahead.take(1) == []


class Slow:
    """A stream whose first batch comes after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __next__(self) -> tuple[Span, Any]:
        time.sleep(self.seconds)
        self.seconds = 0
        return Span(0, 1), "batch"

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("seconds", "says"), [(0.6, True), (0.0, False)])
def test_whoever_watches_a_long_first_fill_sees_what_came_and_a_log_what_it_took(
    seconds: float, says: bool, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.2 if says else 600)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    caplog.set_level("INFO", "jaxdata")
    clock = chain([10.0], repeat(12.5))
    monkeypatch.setattr(read_ahead, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    fetched = Counter()
    stream = FirstFill(Slow(seconds), fetched.read)
    fetched.add(gets=7, bytes=3_200_000)
    assert [next(stream)[1] for _ in range(3)] == 3 * ["batch"]
    assert ("fetching the first batch: 3.2 MB in 7 GETs" in terminal.getvalue()) == says
    assert caplog.messages == ["the first batch is here: 3.2 MB in 7 GETs, 2.5 s"]
