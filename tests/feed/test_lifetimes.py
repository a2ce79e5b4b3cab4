"""What a loader has taken goes with it: when it ends, fails, is interrupted, or is dropped."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
import jaxdata.torch
from jaxdata.testing import distinct_documents
from tests.leftovers import held

ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([20] * 60)), seq_len=32)
DEVICE = {"sharding": "device"}
KINDS: dict[str, dict[str, Any]] = {
    "a thread": {},
    "a thread, on a device": DEVICE,
    "workers": {"num_workers": 1},
    "workers and a thread": {"num_workers": 1, **DEVICE},
}


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
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


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_dropped_at_its_end_half_read_or_unread(given: dict[str, Any]) -> None:
    batches = list(loader(**given))
    next(loader(**given))
    loader(**given).start_prefetch()
    for batch in loader(**given):
        assert batch.keys() == batches[0].keys()
        break


def broken(row: Any) -> Any:
    raise ZeroDivisionError("in the user's function")


def raises_once() -> Callable[[Any], Any]:
    calls = iter([KeyboardInterrupt])

    def function(row: Any) -> Any:
        for error in calls:
            raise error
        return row

    return function


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_dropped_after_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        next(loader(ROWS.map(broken), **given))


@pytest.mark.parametrize("given", list(KINDS.values())[:2], ids=list(KINDS)[:2])
def test_dropped_after_an_interrupt(given: dict[str, Any]) -> None:
    with suppress(KeyboardInterrupt):
        list(loader(ROWS.map(raises_once()), **given))


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
@pytest.mark.filterwarnings("ignore:stream_text")
@pytest.mark.parametrize(
    "given", [{"num_workers": 0}, {"num_workers": 1}, {"prefetch": 0}], ids=str
)
def test_streams_of_text(tmp_path: Path, given: dict[str, Any]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text\n" * 2_000)

    def stream(**more: Any) -> Any:
        settings = {"tokenizer": "bytes", "seq_len": 32, "batch_size": 4, "num_workers": 0}
        return jaxdata.stream_text(path, **{**settings, **given, **more})

    before = held()
    whole = stream()
    assert len(list(whole)) > 100
    gc.collect()
    assert held() == before
    assert next(whole, None) is None
    assert held() == before
    next(stream())
    with pytest.raises(ZeroDivisionError):
        next(stream(layout=broken))
    failing = stream(layout=raises_once())
    with pytest.raises(KeyboardInterrupt):
        next(failing)
    assert next(failing)["inputs"].shape == (4, 32)  # an error is no end


def test_dropped_loaders_for_torch() -> None:
    from torch.utils.data import DataLoader

    for _ in jaxdata.torch.Loader(ROWS, batch_size=4, num_workers=1):
        break
    list(jaxdata.torch.Loader(ROWS, batch_size=4))
    assert list(DataLoader(jaxdata.torch.Loader(ROWS, batch_size=4), batch_size=None))


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


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_memory_of_workers_goes_with_its_batches() -> None:
    one = loader(num_workers=1)
    kept = next(one)["inputs"][0]
    copy = kept.copy()
    one.close()
    memory = [each for each in held() if "memfd" in each]
    assert memory
    assert np.array_equal(kept, copy)
    del kept
    assert not [each for each in held() if each in memory]
