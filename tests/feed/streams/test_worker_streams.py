"""Batches of workers and the memory that they share, with threads in place of processes."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.processes import Channel
from jaxdata.feed import workers as feed_workers
from jaxdata.feed.batches import Change
from jaxdata.feed.schedule import Span
from jaxdata.feed.workers import BatchSender, Told, WorkerStream, serve
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


LEAVES = st.one_of(
    st.builds(
        lambda dtype, shape, first, order: np.asarray(
            (np.arange(first, first + int(np.prod(shape))) % 100).reshape(shape), dtype, order
        ),
        st.sampled_from([np.int32, np.int64, np.uint8, np.bool_, np.float64]),
        st.lists(st.integers(0, 4), max_size=3),
        st.integers(0, 90),
        st.sampled_from(["C", "F"]),
    ),
    st.sampled_from(["a word", None, 7, 1.5, True, np.float64(2.5), np.int16(3)]),
)
BATCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["inputs", "mask", "extra"]), inner, max_size=3),
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Frozen, inner, inner),
    ),
    max_leaves=5,
)


def shown(batch: Any) -> Any:
    """A batch as plain values, with the types of everything."""
    if isinstance(batch, dict):
        return {name: shown(value) for name, value in batch.items()}
    if isinstance(batch, Frozen):
        return Frozen, shown(vars(batch))
    if isinstance(batch, list | tuple):
        return type(batch), [shown(each) for each in batch]
    return type(batch), getattr(batch, "dtype", None), np.shape(batch), np.array(batch).tolist()


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
    st.lists(BATCHES | st.integers(0, 9), max_size=25),
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
            assert shown(batch) == shown(whole(batches[span.first]))
            if not isinstance(batches[span.first], int):  # JAX takes those without a copy
                assert all(each.ctypes.data % 64 == 0 for each in arrays_in(batch))
            if span.first in kept:
                held[span.first] = batch
            del batch
        with pytest.raises(StopIteration):
            next(stream)
        for number, batch in held.items():
            assert shown(batch) == shown(whole(batches[number])), "nobody wrote there"
        stream.close()
        for number, batch in held.items():
            assert shown(batch) == shown(whole(batches[number])), "nor did it go with its worker"
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


class Script:
    """A sender whose parent says given things, one before each batch and the rest when asked."""

    buffers = None

    def __init__(self, messages: list[Told | None], early: int) -> None:
        self.messages, self.early, self.sent = deque(messages), early, list[int]()

    def has_message(self) -> bool:
        return len(self.messages) > self.early

    def listen(self) -> Told | None:
        if not self.messages:
            raise EOFError
        return self.messages.popleft()

    def send(self, batch: int) -> None:
        assert len(self.messages) <= self.early, "unread, messages would fill the channel"
        self.sent.append(batch)


class Numbers:
    """Makes the number of each span, and more by another recipe."""

    def __init__(self, is_far: bool, more: int = 0) -> None:
        self.is_far, self.more, self.fetched = is_far, more, list[int]()

    def together(self, _: Span) -> int:
        return 3

    def far_ranges(self, spans: Sequence[Span]) -> Iterator[Any]:
        self.fetched += [span.first for span in spans]
        return iter(())

    def make(self, spans: Sequence[Span], _: Any = None) -> Iterator[int]:
        return iter([span.first + self.more for span in spans])


@given(
    st.lists(st.none() | st.integers(1, 9), max_size=30),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_worker_makes_so_many_ahead_of_what_its_parent_has_received(
    messages: Any, ready: int, early: int, is_far: bool
) -> None:
    """None of the messages: a batch was received; a number: of spans to make."""
    told, said = 0, list[Told | None]()
    for size in messages:
        said.append(size and Told([Span(at, 1) for at in range(told, told + size)]))
        told += size or 0
    sender, maker = Script(said, early), Numbers(is_far)
    with Patch.context() as patch:
        patch.setattr(feed_workers, "BatchSender", lambda connection: sender)
        with pytest.raises(EOFError):
            serve(None, maker, ready)  # type: ignore[arg-type]
    assert sender.sent == [*range(min(told, ready + messages.count(None)))]
    assert maker.fetched == ([*range(told)] if is_far else [])


def by_100(maker: Numbers) -> Numbers:
    return Numbers(maker.is_far, maker.more + 100)


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
        stream = WorkerStream(
            Numbers(False), iter([Span(at, 1) for at in range(30)]), workers, depth
        )
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
