"""Batches of workers and the memory that they share: threads in place of processes, and those."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import WorkerDied
from jaxdata.base.processes import Channel
from jaxdata.feed import workers as feed_workers
from jaxdata.feed.batches import Change
from jaxdata.feed.schedule import Span
from jaxdata.feed.workers import BatchSender, WorkerStream, serve
from jaxdata.testing import assert_same_batches, distinct_documents
from tests.leftovers import descriptors

Patch = pytest.MonkeyPatch


class Pair(NamedTuple):
    """A structure with names."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    """One that cannot be written to."""

    one: Any
    other: Any


BATCHES: list[Any] = [
    {},
    {"inputs": np.arange(12).reshape(3, 4), "none": np.zeros((0, 3)), "word": "a word"},
    [np.asfortranarray(np.ones((3, 5), np.uint8)), (True, None, np.float64(2.5))],
    Pair(np.arange(9, dtype=np.float32), {"deep": [np.array(7), np.arange(5) > 2]}),
    Frozen(np.arange(70_000, dtype=np.int64), np.int16(3)),
    np.arange(4, dtype=np.int32),
    "no array at all",
]


def arrays_in(batch: Any) -> list[Any]:
    if isinstance(batch, Frozen):
        return arrays_in(vars(batch))
    if isinstance(batch, dict | list | tuple):
        inside = batch.values() if isinstance(batch, dict) else batch
        return [array for each in inside for array in arrays_in(each)]
    return [batch] if isinstance(batch, np.ndarray) and batch.size and batch.flags.forc else []


class Here:
    """A `Worker` whose process is a thread of this one."""

    def __init__(self, target: str, *args: Any) -> None:
        assert target == "jaxdata.feed.workers:serve"
        self.connection, self._child = Channel.pair()
        self._thread = threading.Thread(target=self._run, args=args, daemon=True)
        self._thread.start()

    def _run(self, *args: Any) -> None:
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            serve(self._child, *args)
        self._child.close()

    def send(self, message: Any) -> None:
        self.connection.send(message)

    def receive(self) -> Any:
        return self.connection.recv()

    def guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def terminate(self) -> None:
        if not self.connection.closed:
            self.connection.close()

    def close(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


class Maker:
    """Makes given batches; numbers that are `within` lie in memory that is shared already."""

    is_far = False

    def __init__(self, batches: Sequence[Any], together: int = 3) -> None:
        self.batches, self.most = batches, together

    def together(self, span: Span) -> int:
        return self.most

    def make(self, spans: Sequence[Span], buffers: Any) -> Iterator[Any]:
        for span in spans:
            batch = self.batches[span.first]
            if isinstance(batch, int):
                words = buffers.take(4 * 70)[: 4 * 70].view(np.int32)
                words[:] = range(batch, batch + 70)
                batch = {"one": words[:20].reshape(4, 5), "other": words[20:]}
            yield batch


def whole(batch: Any) -> Any:
    """What comes of a batch of a `Maker`."""
    if isinstance(batch, int):
        words = np.arange(batch, batch + 70, dtype=np.int32)
        return {"one": words[:20].reshape(4, 5), "other": words[20:]}
    return batch


@settings(max_examples=6)
@given(
    st.lists(st.sampled_from(BATCHES) | st.integers(0, 9), max_size=25),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 12),
    st.sets(st.integers(0, 24)),
)
def test_batches_of_any_structure_come_in_turn_and_stay_what_they_are_while_they_are_held(
    batches: Any, workers: int, depth: int, together: int, kept: set[int]
) -> None:
    before = descriptors()
    with Patch.context() as patch:
        patch.setattr(feed_workers, "Worker", Here)
        spans = [Span(number, 1) for number in range(len(batches))]
        stream = WorkerStream(Maker(batches, together), iter(spans), workers, depth)
        held = {}
        for span in spans:
            told, batch = next(stream)
            assert told == span
            assert repr(batch) == repr(whole(batches[span.first]))
            if not isinstance(batches[span.first], int):  # JAX takes those without a copy
                assert all(each.ctypes.data % 64 == 0 for each in arrays_in(batch))
            if span.first in kept:
                held[span.first] = batch
            del batch
        with pytest.raises(StopIteration):
            next(stream)
        for number, batch in held.items():
            assert repr(batch) == repr(whole(batches[number])), "nobody wrote there"
        stream.close()
        for number, batch in held.items():
            assert repr(batch) == repr(whole(batches[number])), "nor did it go with its worker"
    held.clear()
    batch = None
    gc.collect()
    assert "memfd:jaxdata" not in Path("/proc/self/maps").read_text(), "its memory goes"
    assert descriptors() <= before


@pytest.mark.parametrize("unread", [0, 1, 4])
def test_memory_is_used_again_once_nobody_refers_to_it(unread: int) -> None:
    here, there = Channel.pair()
    sender = BatchSender(there)
    assert not sender.has_message()
    numbers = list[int]()
    for turn in range(20):
        sender.send({"x": np.full(5, turn), "y": turn // 10})
        number, [(begin, size)], _ = here.recv()
        assert (begin, size) == (0, 40)
        if number not in numbers:
            handle = feed_workers.recv_handle(here)
            assert os.fstat(handle).st_size == 2**16, "batches that differ a little use the same"
            os.close(handle)
        numbers.append(number)
        if turn >= unread:
            here.send([numbers[turn - unread]])
            assert sender.has_message()
            assert sender.listen() is None
    assert sorted({*numbers}) == [*range(unread + 1)]


class Numbers:
    """Makes the number of each span, and more by another recipe."""

    is_far = False

    def __init__(self, more: int = 0) -> None:
        self.more = more

    def together(self, _: Span) -> int:
        return 3

    def make(self, spans: Sequence[Span], _: Any = None) -> Iterator[int]:
        return iter([span.first + self.more for span in spans])


def by_100(maker: Numbers) -> Numbers:
    return Numbers(maker.more + 100)


@settings(max_examples=10)
@given(
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), min_size=1, max_size=3),
)
def test_another_recipe_holds_for_what_no_worker_has_begun(
    workers: int, depth: int, changes: list[tuple[int, int]]
) -> None:
    """Its spans may end earlier, or later again; those already begun come first, in order."""
    with Patch.context() as patch:
        patch.setattr(feed_workers, "Worker", Here)
        spans = iter([Span(at, 1) for at in range(30)])
        stream = WorkerStream(Numbers(), spans, workers, depth)  # type: ignore[arg-type]
        at, end, recipe = 0, 30, 0
        begun = workers * (max(depth, 1) + 1)
        for steps, following in changes:
            for _ in range(min(steps, end - at)):
                span, number = next(stream)
                assert (span.first, number % 100) == (at, at)
                at += 1
            end, recipe = max(following, min(at + begun, end)), recipe + 1
            stream.change(Change(by_100, iter([Span(each, 1) for each in range(at, end)])))
        rest = [*stream]
        assert [span.first for span, _ in rest] == [*range(at, end)]
        found = [number // 100 for _, number in rest]
        for worker in range(workers):
            assert found[worker::workers] == sorted(found[worker::workers]), "it stays"
        assert {*found[begun:]} <= {recipe}
        stream.close()


DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 2_000))
)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=64)
ME = os.getpid()


def children() -> list[str]:
    return Path(f"/proc/{ME}/task/{ME}/children").read_text().split()


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
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["once", "True", *["False"] * 3], done.stderr


def test_a_killed_worker_is_an_error_and_no_hang() -> None:
    others = children()
    loader = jaxdata.Loader(ROWS, batch_size=4, num_workers=2)
    next(loader)
    for pid in set(children()) - set(others):
        os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"workers:serve\) ended early: SIGKILL"):
        list(loader)
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("on_device", [False, True])
def test_held_batches_do_not_change_but_by_their_owner(on_device: bool) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0]) if on_device else None
    loader = jaxdata.Loader(ROWS, batch_size=8, num_workers=2, sharding=sharding)
    expected = list(jaxdata.Loader(ROWS, batch_size=8))
    held, parts = list(islice(loader, 40)), [batch["inputs"][3:5] for batch in islice(loader, 40)]
    if not on_device:
        held[0]["inputs"][:] = -1
        assert (held.pop(0)["inputs"] == -1).all(), "one may write to it"
    rest = list(loader)
    gc.collect()
    assert_same_batches([*held, *rest], [*expected[40 - len(held) : 40], *expected[80:]])
    for part, batch in zip(parts, expected[40:], strict=False):
        assert np.array_equal(part, batch["inputs"][3:5]), "one array holds its batch"


@pytest.mark.slow
def test_a_worker_far_ahead_and_its_reader_do_not_wait_for_each_other() -> None:
    """More messages are unread than fit into a socket."""
    loader = jaxdata.Loader(ROWS, batch_size=1, num_workers=1, prefetch=5_000)
    assert assert_same_batches(loader, jaxdata.Loader(ROWS, batch_size=1)) > 1_000
