"""One loader in several threads: each batch comes once, and every state is one to go on from."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import REFERENCE, ROWS, loader

THREADS = 6
SETTINGS = [
    {"prefetch": 2},
    pytest.param({"num_workers": 1, "prefetch": 0}, marks=pytest.mark.slow),
]


def in_threads(work: Callable[[], list[Any]]) -> list[Any]:
    """What several threads return that begin together, end to end."""
    together, often = threading.Barrier(THREADS), sys.getswitchinterval()

    def one(_: int) -> Any:
        together.wait()
        return work()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(chain.from_iterable(pool.map(one, range(THREADS))))
    finally:
        sys.setswitchinterval(often)


def rest(one: Any) -> list[Any]:
    """What is left of an iterator that others may have read to its end."""
    return list(iter(lambda: next(one, None), None))


def ordered(batches: list[Any]) -> list[Any]:
    return sorted(batches, key=lambda batch: batch["inputs"].tobytes())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_each_batch_comes_once(settings: dict[str, Any]) -> None:
    one = loader(**settings)
    batches = in_threads(lambda: rest(one))
    assert_same_batches(ordered(batches), ordered(REFERENCE))
    assert (one.next_row, one.step) == (len(ROWS), len(REFERENCE))
    one.close()


def test_states_that_others_take_meanwhile() -> None:
    """While some take batches others take states, go back and skip; no state is half of another."""
    ramp = [(0, 4), (40, 12), (80, 24)]
    one, expected = loader(ramp), set[str]()
    alone = loader(ramp)
    for _ in range(len(alone)):
        expected.add(json.dumps(alone.get_state()))
        next(alone)
    turns = iter(range(4 * len(REFERENCE)))

    def work() -> list[str]:
        states = []
        for turn in turns:
            if turn % 16 == 7:
                one.seek(step=turn % 5)
            elif turn % 2:
                states.append(json.dumps(one.get_state()))
            else:
                next(one, None)
        return states

    states = set(in_threads(work))
    assert states <= expected
    assert len(states) > 1
    one.close()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_closing_wakes_a_thread_that_waits(settings: dict[str, Any]) -> None:
    waiting, said = threading.Event(), []
    one = loader(batch_size=1, **settings)
    next(one)

    def reads() -> None:
        try:
            while True:
                waiting.set()
                one.seek(row=1)  # no end
                next(one)
        except InputError as error:
            said.append(str(error))

    reader = threading.Thread(target=reads)
    reader.start()
    waiting.wait()
    one.close()
    reader.join()
    assert said == ["this loader is closed: make another"]


def test_a_signal_in_the_middle_of_a_batch_may_take_the_state() -> None:
    """As of a scheduler that is about to stop the job."""
    taken: list[Any] = []

    def interrupted(row: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return row

    one = loader(rows=ROWS.map(interrupted), prefetch=0)
    before = signal.signal(signal.SIGUSR1, lambda *_: taken.append(one.get_state()))
    try:
        assert_same_batches([next(one)], REFERENCE[:1])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert {state["next_row"] for state in taken} == {0}
