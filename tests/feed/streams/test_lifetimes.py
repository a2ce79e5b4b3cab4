"""What a loader has taken goes with it: when it ends, fails, is interrupted, or is dropped."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
import jaxdata.torch
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.schedule import Schedule
from jaxdata.feed.workers import BatchReceiver
from jaxdata.testing import assert_same_batches, distinct_documents
from tests.leftovers import held

ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([20] * 60)), seq_len=32)
DEVICE = {"sharding": "device"}
KINDS = [
    pytest.param({}, id="a thread"),
    pytest.param({"num_workers": 1, **DEVICE}, id="both", marks=pytest.mark.slow),
]


def loader(rows: Any = ROWS, **given: Any) -> jaxdata.Loader:
    if "sharding" in given:
        given = {**given, "sharding": SingleDeviceSharding(jax.devices()[0])}
    return jaxdata.Loader(rows, batch_size=4, **given)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    loader(**DEVICE).close()  # libraries open what they keep at their first use
    gc.collect()
    before = held()
    yield
    gc.collect()
    assert held() - before == set()


@pytest.mark.parametrize("given", KINDS)
def test_at_its_end_it_has_nothing(given: dict[str, Any]) -> None:
    """Nor does it take anything to say again that it is at its end."""
    one = loader(**given)
    before = held()
    next(one)
    assert held() != before
    deque(one, maxlen=0)
    gc.collect()  # jax lets go of memory then
    assert held() == before
    assert next(one, None) is None
    assert held() == before
    one.reset()
    assert len(list(one)) == len(one)


@pytest.mark.parametrize("given", KINDS)
def test_dropped_at_its_end_half_read_or_unread(given: dict[str, Any]) -> None:
    batches = list(loader(**given))
    next(loader(**given))
    loader(**given).start_prefetch()
    for batch in loader(**given):
        assert batch.keys() == batches[0].keys()
        break


def test_an_error_before_the_first_batch_ends_the_workers_there_are() -> None:
    """The second worker cannot be told what to do."""

    class Unsendable:
        sent = 0

        def __call__(self, row: Any) -> Any:
            return row

        def __reduce__(self) -> Any:
            Unsendable.sent += 1
            if Unsendable.sent > 1:
                raise ValueError("not again")
            return dict, ()

    with pytest.raises(ValueError, match="not again") as caught:
        next(loader(ROWS.map(Unsendable()), num_workers=3))
    assert not [each for each in held() if "jaxdata import processes" in each]
    del caught


@pytest.mark.exhaustive
def test_the_thread_itself_may_be_what_finds_a_dropped_loader() -> None:
    """Python collects reference cycles in whichever thread it is, that of the loader included."""
    dropped, collected = threading.Event(), threading.Event()

    def collects(row: Any) -> Any:
        if dropped.is_set():
            gc.collect()
            collected.set()
        return row

    before = set(threading.enumerate())
    gc.disable()
    try:
        cycle: list[Any] = [loader(ROWS.map(collects))]
        cycle.append(cycle)
        next(cycle[0])
        dropped.set()
        next(cycle[0])  # makes room for a batch
        del cycle
        assert collected.wait(60), "the thread waits for itself"
    finally:
        gc.enable()
    for thread in {*threading.enumerate()} - before:
        thread.join(60)


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
        pytest.param(
            *(BatchReceiver, "receive", {"num_workers": 1, "prefetch": 0}), marks=pytest.mark.slow
        ),
        (HostPlacement, "place", {"prefetch": 0}),
        (Schedule, "advance", {}),
    ],
)
def test_after_an_interrupt_it_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, settings: dict[str, Any]
) -> None:
    one = loader(**settings)
    batches, expected = list[Any](), list(loader())
    monkeypatch.setattr(where, name, Interrupting(getattr(where, name), when=5))
    with pytest.raises(KeyboardInterrupt):
        batches.extend(one)
    delivered = one.step
    assert_same_batches(batches, expected[: len(batches)])
    assert_same_batches(list(one), expected[delivered:])
    assert delivered - len(batches) == (name == "advance")  # it was counted, as it says
    one.close()
