"""Numbers through a pipe: in order, whole, with an end."""

from __future__ import annotations

import os
import threading

import pytest

from jaxdata.feed.numbers import NumberReader, NumberWriter


@pytest.fixture
def ends() -> tuple[NumberReader, NumberWriter]:
    reader, writer = os.pipe()
    return NumberReader(reader), NumberWriter(writer)


def test_what_has_come_is_taken_at_once(ends: tuple[NumberReader, NumberWriter]) -> None:
    reader, writer = ends
    writer.write(3)
    writer.write(-1, 2**31 - 1, -(2**31))
    assert reader.read().tolist() == [3, -1, 2**31 - 1, -(2**31)]
    writer.close()
    assert reader.read().tolist() == []
    reader.close()


def test_more_than_a_pipe_holds(ends: tuple[NumberReader, NumberWriter]) -> None:
    reader, writer = ends
    numbers = list(range(100_000))
    thread = threading.Thread(target=lambda: (writer.write(*numbers), writer.close()))
    thread.start()
    found: list[int] = []
    while some := reader.read():
        found += some
    thread.join()
    assert found == numbers
    reader.close()


def test_nobody_is_left_to_read(ends: tuple[NumberReader, NumberWriter]) -> None:
    reader, writer = ends
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.write(1)
    writer.close()
