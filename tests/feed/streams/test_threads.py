"""One loader in several threads, interrupted, closed or dropped: each batch once, nothing left."""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import chain, islice
from typing import Any

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from jaxdata.base.errors import InputError
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.schedule import Schedule
from jaxdata.feed.workers import BatchReceiver
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import REFERENCE, ROWS, loader
from tests.leftovers import held

THREADS = 6
IN_WORKERS = {"num_workers": 1, "prefetch": 0}
SETTINGS = [{"prefetch": 2}, pytest.param(IN_WORKERS, marks=pytest.mark.slow)]


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


def ordered(batches: list[Any]) -> list[Any]:
    return sorted(batches, key=lambda batch: batch["inputs"].tobytes())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_each_batch_comes_once_and_closing_wakes_who_waits(settings: dict[str, Any]) -> None:
    one = loader(**settings)
    batches = in_threads(lambda: list(iter(lambda: next(one, None), None)))
    assert_same_batches(ordered(batches), ordered(REFERENCE))
    assert (one.next_row, one.step) == (len(ROWS), len(REFERENCE))
    waiting, said = threading.Event(), []

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


def test_states_that_others_take_meanwhile() -> None:
    """While some take batches others take states and go back; no state is half of another."""
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
    with pytest.raises(InputError, match="a Loader is not copied or pickled, as it has threads"):
        copy(one)


@pytest.mark.parametrize(
    "given",
    [{}, pytest.param({"num_workers": 1, "sharding": "device"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_what_it_has_taken_goes_at_its_end_or_when_it_is_dropped(given: dict[str, Any]) -> None:
    """Half read or unread; nor does it take anything to say again that it is at its end."""

    def make() -> Any:
        if "sharding" in given:
            return loader(**{**given, "sharding": SingleDeviceSharding(jax.devices()[0])})
        return loader(**given)

    make().close()  # libraries open what they keep at their first use
    gc.collect()
    before = held()
    one = make()
    next(one)
    assert held() != before
    deque(one, maxlen=0)
    gc.collect()  # jax lets go of memory then
    assert (held(), next(one, None), held()) == (before, None, before)
    one.reset()
    assert len(list(one)) == len(one)
    next(make())
    make().start_prefetch()
    gc.collect()
    assert held() == before


class Interrupting:
    """A method that Ctrl-C breaks off when it has done its work, the n-th time."""

    def __init__(self, method: Any, when: int) -> None:
        self.method, self.when = method, when

    def __get__(self, owner: Any, _: Any) -> Any:
        def call(*args: Any) -> Any:
            found = self.method(owner, *args)
            self.when -= 1
            if self.when == 0:
                raise KeyboardInterrupt
            return found

        return call


@pytest.mark.parametrize(
    ("where", "name", "settings"),
    [
        pytest.param(BatchReceiver, "receive", IN_WORKERS, marks=pytest.mark.slow),
        (HostPlacement, "place", {"prefetch": 0}),
        (Schedule, "advance", {}),
    ],
)
def test_after_an_interrupt_it_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, settings: dict[str, Any]
) -> None:
    one = loader(**settings)
    monkeypatch.setattr(where, name, Interrupting(getattr(where, name), when=5))
    batches = [*islice(one, 4)]
    with pytest.raises(KeyboardInterrupt):
        next(one)
    assert one.step == 4 + (name == "advance")  # it was counted, as it says
    assert_same_batches(batches, REFERENCE[:4])
    assert_same_batches(one, REFERENCE[one.step :])
    one.close()
