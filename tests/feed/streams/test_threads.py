"""One loader in threads, forks and worker processes, interrupted, closed or dropped.

Each batch comes once, and nothing is left. The forking is done in a process of its own: pytest's
has the threads of JAX.
"""

import gc
import json
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from itertools import chain, islice
from multiprocessing import Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxdata.base.errors import InputError, WorkerDied
from jaxdata.feed import workers
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.schedule import Schedule
from jaxdata.feed.workers import BatchReceiver, BatchSender
from jaxdata.testing import assert_same_batches
from tests.commands import assert_done, forked, in_a_process, python
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
    one, alone, expected = loader(ramp), loader(ramp), set[str]()
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


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_it_has_taken_goes_at_its_end_or_when_it_is_dropped(workers: int) -> None:
    """Half read or unread; nor does it take anything to say again that it is at its end."""
    loader(num_workers=workers).close()  # libraries open what they keep at their first use
    gc.collect()
    before = held()
    one = loader(num_workers=workers)
    next(one)
    assert held() != before
    deque(one, maxlen=0)
    assert (held(), next(one, None), held()) == (before, None, before)
    next(loader(num_workers=workers))
    loader(num_workers=workers).start_prefetch()
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


INTERRUPTED: list[Any] = [
    pytest.param(BatchReceiver, "receive", IN_WORKERS, marks=pytest.mark.slow),
    (HostPlacement, "place", {"prefetch": 0}),
    (Schedule, "advance", {}),
]


@pytest.mark.parametrize(("where", "name", "settings"), INTERRUPTED)
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


@pytest.mark.slow
def test_a_forked_copy_goes_on_by_itself_and_its_original_notices_nothing() -> None:
    in_a_process(fork_everything)


def fork_everything() -> None:
    one = loader(num_workers=1)
    assert_same_batches([next(one), next(one)], REFERENCE[:2])

    def go_on() -> None:
        assert_same_batches(one, REFERENCE[2:])
        one.reset()
        assert_same_batches(one, REFERENCE)

    assert_done(forked(go_on))
    go_on()
    one.close()
    fork_while_another_reads()
    on_device = loader(sharding=SingleDeviceSharding(jax.devices()[0]))
    next(on_device)

    def refused() -> None:
        for call in (lambda: next(on_device), on_device.start_prefetch):
            with pytest.raises(InputError, match=r"JAX cannot be used in a forked process, .*'sp"):
                call()
        assert on_device.next_row == 24

    assert_done(forked(refused))
    assert_same_batches(on_device, REFERENCE[1:])


def fork_while_another_reads() -> None:
    original, reads, may = os.getpid(), threading.Event(), threading.Event()

    def slow(row: Any) -> Any:
        if os.getpid() == original:
            reads.set()
            may.wait()
        return row

    one, taken = loader(rows=ROWS.map(slow), prefetch=0), list[Any]()
    reader = threading.Thread(target=lambda: taken.append(next(one)))
    reader.start()
    reads.wait()
    assert_done(forked(lambda: assert_same_batches(one, REFERENCE)))
    may.set()
    reader.join()
    assert_same_batches(taken, REFERENCE[:1])
    assert_same_batches(one, REFERENCE[1:])


def children() -> set[str]:
    me = os.getpid()
    return {*Path(f"/proc/{me}/task/{me}/children").read_text().split()}


@pytest.mark.slow
def test_an_unguarded_script_runs_once_and_its_workers_import_no_jax(tmp_path: Path) -> None:
    code = """
import os, jaxdata
from pathlib import Path
print("once")
rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 99), seq_len=8)
loader = jaxdata.Loader(rows, batch_size=4, num_workers=1)
next(loader)
me = os.getpid()
child = Path(f"/proc/{me}/task/{me}/children").read_text().split()[0]
maps = Path(f"/proc/{child}/maps").read_text()
print("numpy" in maps, "jaxlib" in maps, "grain" in maps, "tensorstore" in maps)
"""
    (tmp_path / "script.py").write_text(code)
    assert python(tmp_path / "script.py").stdout.split() == ["once", "True", *["False"] * 3]


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    others = children()
    one = loader(4, num_workers=2)
    next(one)
    for pid in children() - others:
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"workers:serve\) ended early: SIGKILL"):
        list(one)
    one.close()


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_held_batches_do_not_change_but_by_their_owner(on_device: bool) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0]) if on_device else None
    one, expected = loader(4, num_workers=2, sharding=sharding), list(loader(4, prefetch=0))
    kept, parts = list(islice(one, 20)), [batch["inputs"][1:3] for batch in islice(one, 20)]
    if not on_device:
        kept[0]["inputs"][:] = -1
        assert (kept.pop(0)["inputs"] == -1).all(), "one may write to it"
    rest = list(one)
    gc.collect()
    assert_same_batches([*kept, *rest], [*expected[20 - len(kept) : 20], *expected[40:]])
    for part, batch in zip(parts, expected[20:], strict=False):
        assert np.array_equal(part, batch["inputs"][1:3]), "one array holds its batch"


@pytest.mark.slow
def test_a_worker_far_ahead_and_its_reader_do_not_wait_for_each_other() -> None:
    """More messages are unread than fit into a socket."""
    rows = ROWS.repeat(4)
    one = loader(1, rows, num_workers=1, prefetch=5_000)
    assert assert_same_batches(one, loader(1, rows)) > 1_000


def test_arrays_of_any_size_are_sent_as_places_in_shared_memory() -> None:
    batch = [np.arange(count, dtype=np.int32) for count in (7, 0, 1, 5, 20_000)]
    ours, theirs = Pipe()
    with ours, theirs:
        BatchSender(theirs).send(batch)
        _, places, content = ours.recv()
        with os.fdopen(recv_handle(ours), "rb") as file:
            shared = file.read()
    arrays = [bytearray(shared[begin : begin + size]) for begin, size in places]
    found = pickle.loads(content, buffers=arrays)
    assert_same_batches([dict(enumerate(found))], [dict(enumerate(batch))])


def test_workers_end_where_another_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    begin = iter([SimpleNamespace(**{w: partial(ended.append, w) for w in ("terminate", "close")})])

    def receiver(*_: Any) -> Any:
        if one := next(begin, None):
            return one
        raise OSError("too many processes")

    monkeypatch.setattr(workers, "BatchReceiver", receiver)
    with pytest.raises(OSError, match="too many processes"):
        workers.WorkerStream(SimpleNamespace(), Schedule(9, [(0, 3)]), 2, 1)  # type: ignore[arg-type]
    assert ended == ["terminate", "close"]
