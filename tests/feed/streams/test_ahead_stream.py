"""Batches that a thread makes ahead."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from jaxdata.feed.streams.ahead import AheadStream

from jaxdata.feed.schedule import Span


class Source:
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
    stream = AheadStream(source, depth)
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
    stream = AheadStream(source, 3)
    assert source.wait_until(min(last, 3))
    stream.close()
    assert source.closed == 1
    assert not stream._thread.is_alive()
    assert source.taken <= 3
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    stream.close()
