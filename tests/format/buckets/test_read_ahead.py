"""Telling stores what coming batches read: a window ahead, whatever goes wrong."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jaxdata import progress
from jaxdata.background import check_stop
from jaxdata.feed.schedule import Span
from jaxdata.feed.streams import read_ahead
from jaxdata.feed.streams.read_ahead import FarStream, FirstFill, ReadAhead
from jaxdata.format.storage.pages.read_counts import Counter

BATCH_BYTES = 2**20


class Maker:
    """Makes numbers of batches, and notes of which it told."""

    is_far = True

    def __init__(self, error: BaseException | None = None) -> None:
        self.told: list[int] = []
        self.error = error
        self.waits = threading.Event()

    def together(self, span: Span) -> int:
        return 4

    def prefetch(self, spans: Sequence[Span]) -> int:
        if self.error:
            raise self.error
        self.told += [span.first for span in spans]
        return BATCH_BYTES * len(spans)

    def make(self, spans: Sequence[Span], *_: Any) -> Iterator[Any]:
        yield from (span.first for span in spans)


@pytest.fixture(autouse=True)
def _tells_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makers here have no bucket that could be told."""
    monkeypatch.setattr(read_ahead, "prefetch", lambda maker, spans: maker.prefetch(spans))


def spans(count: int) -> Iterator[Span]:
    return (Span(number, 1) for number in range(count))


@pytest.mark.parametrize("error", [None, ValueError("of a library")])
def test_every_batch_comes_in_order(error: BaseException | None) -> None:
    maker: Any = Maker(error)
    stream = FarStream(maker, spans(500))
    found = [batch for _, batch in iter(lambda: next(stream, None), None)]
    assert found == list(range(500))
    assert maker.told == ([] if error else found)
    stream.close()


def test_it_is_a_window_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_LEAST_WINDOW", 8 * BATCH_BYTES)
    monkeypatch.setattr(read_ahead, "_WINDOW_SECONDS", 0)
    maker: Any = Maker()
    ahead = ReadAhead(maker, spans(500))
    taken = 0
    while taken < 100:
        taken += len(ahead.take(1))
        # Batches are told of in groups of up to 16.
        assert len(maker.told) <= taken + 8 + 16
    assert len(maker.told) >= taken
    ahead.close()


def test_it_ends_at_once_in_the_middle_of_a_request() -> None:
    class Silent(Maker):
        def prefetch(self, spans: Sequence[Span]) -> int:
            self.waits.set()
            while True:
                check_stop()

    maker: Any = Silent()
    ahead = ReadAhead(maker, spans(5))
    assert maker.waits.wait(10)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert ahead.take(1) == []


@pytest.mark.parametrize("size", [0, BATCH_BYTES])
def test_a_window_of_nothing_stops_nobody(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """As with a cache of 0 bytes."""
    monkeypatch.setattr(read_ahead, "most_ahead", lambda: 0)
    maker: Any = Maker()
    maker.prefetch = lambda spans: size * len(spans)
    stream = FarStream(maker, spans(50))
    assert [batch for _, batch in iter(lambda: next(stream, None), None)] == list(range(50))
    stream.close()


def test_batches_of_no_far_bytes_are_not_all_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a bucket has little of a mixture: each lookup plans blocks."""
    monkeypatch.setattr(read_ahead, "_MOST_BATCHES", 20)
    maker: Any = Maker()
    told = list[int]()

    def prefetch(some: Sequence[Span]) -> int:
        told.extend(span.first for span in some)
        return 0

    maker.prefetch = prefetch
    ahead = ReadAhead(maker, spans(5_000))
    for taken in range(1, 100):
        assert len(ahead.take(1)) == 1
        assert len(told) <= taken + 20 + 16
    ahead.close()


class Slow:
    """A stream whose batches come when the test lets them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __next__(self) -> tuple[Span, Any]:
        time.sleep(self.seconds)
        return Span(0, 1), "batch"

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("seconds", "says"), [(0.6, True), (0.0, False)])
def test_whoever_watches_a_long_first_fill_sees_what_came(
    seconds: float, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.2)
    reader, writer = os.openpty()
    fetched = Counter()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        stream = FirstFill(Slow(seconds), fetched.read)
        fetched.add(gets=7, bytes=3_200_000)
        assert [next(stream)[1] for _ in range(3)] == 3 * ["batch"]
        terminal.flush()
        ready, _, _ = select.select([reader], [], [], 0.1)
        shown = os.read(reader, 65_536).decode() if ready else ""
    os.close(reader)
    assert ("fetching the first batch: 3.2 MB in 7 GETs" in shown) == says


def test_a_log_says_what_the_first_batch_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jaxdata")
    stream = FirstFill(Slow(0), Counter().read)
    assert [next(stream)[1] for _ in range(3)] == 3 * ["batch"]
    assert [record.message for record in caplog.records] == [
        "the first batch is here: 0.0 MB in 0 GETs, 0.0 s"
    ]
