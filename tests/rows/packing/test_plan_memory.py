"""Plans in memory: how many bytes they have, which of them go, and who may use them together."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.rows.packing import plan_memory, planner
from jaxdata.rows.packing.plan_memory import PLANS, PlanMemory
from jaxdata.testing import distinct_documents
from tests.feed.test_forks import assert_done, forked, in_a_process

BYTES = 100
HANGS = 60.0
"""seconds after which a test fails that would else never end"""


def plan(size: int = BYTES) -> Any:
    return np.zeros(size, np.uint8)


def unexpected() -> Any:
    raise AssertionError("it is there, and need not be made")


def held(memory: PlanMemory) -> list[Any]:
    return list(memory._held)


def ended(work: Callable[[], Any]) -> bool:
    """Whether some work comes to an end, in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANGS)
    return not thread.is_alive()


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=60),
)
def test_it_holds_those_used_last_within_its_bytes(most: int, uses: list[tuple[int, int]]) -> None:
    memory, expected = PlanMemory(most), dict[Any, int]()
    for number, size in uses:
        key = (0, number)
        found = memory.get(key, lambda size=size: plan(size))
        expected[key] = expected.pop(key, size)
        assert found.nbytes == expected[key]  # what was made first, as long as it is held
        while sum(expected.values()) > most and len(expected) > 1:
            del expected[next(iter(expected))]
        assert held(memory) == list(expected)
        assert memory.nbytes == sum(expected.values())


class Owner:
    """Whoever has plans."""


def test_values_go_with_their_owner() -> None:
    memory, one, other = PlanMemory(10**6), Owner(), Owner()
    first, second = memory.owned_by(one), memory.owned_by(other)
    for block in range(3):
        memory.get((first, 0, block), plan)
        memory.get((second, 0, block), plan)
    del one
    memory.get((second, 0, 3), plan)
    assert held(memory) == [(second, 0, block) for block in range(4)]
    assert memory.nbytes == 4 * BYTES


class Collecting:
    """A value that has the garbage collector run while its bytes are counted."""

    @property
    def nbytes(self) -> int:
        gc.collect()
        return BYTES


def test_an_owner_may_go_while_a_value_is_kept() -> None:
    """The collector runs wherever it likes, also where this thread holds the lock."""
    memory, owner = PlanMemory(10**6), Owner()
    memory.get((memory.owned_by(owner), 0), plan)
    owner.itself = owner  # type: ignore[attr-defined]
    del owner
    assert ended(lambda: memory.get((7, 0), Collecting))
    memory.get((7, 1), plan)
    assert held(memory) == [(7, 0), (7, 1)]
    assert memory.nbytes == 2 * BYTES


def keep_another() -> None:
    """The values of who is gone go with the next that is kept."""
    PLANS.get((time.monotonic(),), lambda: plan(0))


def test_packed_rows_leave_nothing() -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([9] * 500))
    rows = jaxdata.pack(docs, seq_len=16, chunk_bytes=64, block_bytes=256, lanes=4)
    token, copied = rows.table.deal(0)._token, pickle.loads(pickle.dumps(rows))
    gc.collect()
    keep_another()
    before = PLANS.nbytes
    first = [rows[k]["inputs"].tolist() for k in range(len(rows))]
    assert PLANS.nbytes > before
    assert [copied[k]["inputs"].tolist() for k in range(len(copied))] == first
    del rows, copied
    until = time.monotonic() + HANGS
    keep_another()
    while PLANS.nbytes > before and time.monotonic() < until:
        time.sleep(0.01)  # a plan that is made in the background still holds its rows
        keep_another()
    assert PLANS.nbytes == before
    assert not [key for key in held(PLANS) if key[0] == token]


class Slow:
    """A value that is made when it is told to, and counts how often."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.times = threading.Event(), threading.Event(), 0

    def make(self) -> Any:
        self.times += 1
        self.begun.set()
        assert self.go_on.wait(HANGS)
        return plan()


def test_a_reader_waits_for_what_is_made_in_the_background() -> None:
    memory, slow = PlanMemory(10**6), Slow()
    memory.prepare((0, 1), slow.make)
    assert slow.begun.wait(HANGS)
    memory.prepare((0, 1), unexpected)
    begun = threading.active_count()
    memory.prepare((0, 2), Slow().make)
    assert threading.active_count() <= begun  # one at a time
    assert memory.get((0, 3), plan) is memory.get((0, 3), unexpected)  # others do not wait
    with ThreadPoolExecutor(4) as readers:
        found = [readers.submit(memory.get, (0, 1), unexpected) for _ in range(4)]
        slow.go_on.set()
        assert len({id(each.result(HANGS)) for each in found}) == 1
    assert slow.times == 1
    assert sorted(held(memory)) == [(0, 1), (0, 3)]
    memory.prepare((0, 4), (later := Slow()).make)
    assert later.begun.wait(HANGS), "the next one may be made"
    later.go_on.set()
    memory.get((0, 4), unexpected)


def test_a_failure_in_the_background_is_met_by_the_reader() -> None:
    memory, slow = PlanMemory(10**6), Slow()

    def damaged() -> Any:
        slow.make()
        raise DatasetError("these are not the lengths that were planned")

    memory.prepare((0, 1), damaged)
    assert slow.begun.wait(HANGS)
    slow.go_on.set()
    with pytest.raises(DatasetError, match="not the lengths that were planned"):
        memory.get((0, 1), damaged)
    assert slow.times == 2
    assert memory.get((0, 1), plan).nbytes == BYTES  # and whoever can makes it


def test_without_a_thread_it_is_made_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    memory = PlanMemory(10**6)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        memory.prepare((0, 1), plan)
    assert ended(lambda: memory.get((0, 1), plan))
    assert held(memory) == [(0, 1)]


def test_several_threads_keep_count() -> None:
    memory = PlanMemory(5 * BYTES)

    def use(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 2_000).tolist():
            key, size = (0, number), 20 * number + 1
            if number % 3:
                memory.prepare(key, lambda size=size: plan(size))
            assert memory.get(key, lambda size=size: plan(size)).nbytes == size

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(use, seed) for seed in range(4)]:
            done.result()
    for event in list(memory._making.values()):
        assert event.wait(HANGS)
    assert memory.nbytes == sum(each.nbytes for each in memory._held.values())
    assert memory.nbytes <= 5 * BYTES


def fork_while_one_is_made() -> None:
    memory, slow = PlanMemory(10**6), Slow()
    kept = memory.get((0, 0), plan)
    memory.prepare((0, 1), slow.make)
    assert slow.begun.wait(HANGS)
    memory._lock.acquire()  # as if another thread kept something

    def in_the_copy() -> None:
        assert memory.get((0, 0), unexpected) is kept
        assert memory.nbytes == BYTES
        assert ended(lambda: memory.get((0, 1), plan))  # nobody makes it here
        memory.prepare((0, 2), plan)
        assert memory.get((0, 2), plan).nbytes == BYTES
        assert memory.nbytes == 3 * BYTES

    child = forked(in_the_copy)
    memory._lock.release()
    assert_done(child)
    slow.go_on.set()
    assert memory.get((0, 1), unexpected).nbytes == BYTES
    assert slow.times == 1


def test_in_a_forked_copy_nothing_is_under_way() -> None:
    in_a_process(fork_while_one_is_made)


@pytest.mark.parametrize(
    ("limit", "most"), [("max\n", 2**37), (f"{2**34}\n", 2**31), ("1000\n", 2**29), (None, 2**37)]
)
def test_it_takes_its_share_of_what_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, most: int
) -> None:
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr(plan_memory, "_LIMITS", (str(path),))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 2**12, "SC_PHYS_PAGES": 2**28}.get)
    assert plan_memory._most() == most


def test_a_source_of_one_block_is_packed_once_for_its_totals_and_all_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([9] * 40))
    packed: list[Any] = []
    pack = planner.pack_blocks
    monkeypatch.setattr(planner, "pack_blocks", lambda *args: packed.append(args) or pack(*args))
    table = jaxdata.pack(docs, seq_len=16).table
    for epoch in range(3):
        found = table.segments(np.arange(len(table)) + epoch * len(table))
        assert sorted(found.document.tolist()) == list(range(40))
    assert len(packed) == 1
