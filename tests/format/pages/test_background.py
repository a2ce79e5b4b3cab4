"""Threads that stop when nobody waits for them, and waits that end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from jaxdata.background import Stopped, Threads, check_stop, left_alone, pause, waited, within


def test_calls_under_way_stop_and_others_are_not_begun() -> None:
    begun, ended = threading.Barrier(3), []

    def wait() -> None:
        begun.wait()
        try:
            pause(1e6)
        except Stopped:
            ended.append(threading.current_thread())

    with Threads(2) as threads:
        futures = [threads.submit(wait) for _ in range(5)]
        begun.wait()
    assert len(set(ended)) == 2
    assert [future.done() for future in futures] == [True, True, False, False, False]


def test_calls_are_taken_as_there_is_room() -> None:
    taken: list[int] = []

    def calls() -> object:
        for number in range(50):
            taken.append(number)
            yield number, lambda: len(taken)

    with Threads(2) as threads:
        found = dict(threads.ended(calls()))  # type: ignore[arg-type]
    assert sorted(found) == list(range(50))
    assert all(there <= number + 8 for number, there in found.items())


def test_the_first_error_of_calls_is_raised() -> None:
    with Threads(3) as threads:
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda n: 1 // n, [2, 1, 0])
        assert threads.map(lambda n: -n, [1, 2]) == [-1, -2]


def test_a_wait_ends() -> None:
    never: Future[None] = Future()
    with within(0.1), pytest.raises(Stopped):
        waited(never)
    late: Future[int] = Future()
    threading.Timer(0.1, late.set_result, [7]).start()
    assert waited(late) == 7
    check_stop()


def test_an_error_of_what_is_waited_for_is_its_own() -> None:
    def late() -> None:
        time.sleep(0.1)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        waited(left_alone(late))
