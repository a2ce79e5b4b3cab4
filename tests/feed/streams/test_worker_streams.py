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
from jaxdata.feed.streams.workers import BatchSender, Heard, Received, WorkerStream, serve

from jaxdata.base.errors import InputError
from jaxdata.base.processes import Channel
from jaxdata.feed.schedule import Span
from jaxdata.feed.streams import workers as shared
from jaxdata.feed.streams import workers as worker_stream
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
    """A batch as plain values, with the types of everything; a number of numpy is an array."""
    if isinstance(batch, dict):
        return {name: shown(value) for name, value in batch.items()}
    if isinstance(batch, Frozen):
        return Frozen, shown(vars(batch))
    if isinstance(batch, list | tuple):
        return type(batch), [shown(each) for each in batch]
    if isinstance(batch, np.ndarray | np.generic):
        return batch.dtype, batch.shape, batch.tolist()
    return type(batch), batch


class Here:
    """A `Worker` whose process is a thread of this one."""

    def __init__(self, target: str, *args: Any) -> None:
        assert target == "jaxdata.feed.streams.workers:serve"
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


@settings(max_examples=10)
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
        patch.setattr(shared, "Worker", Here)
        spans = [Span(number, 1) for number in range(len(batches))]
        stream = WorkerStream(Maker(batches, together), iter(spans), workers, depth)
        held = {}
        for span in spans:
            told, batch = next(stream)
            assert told == span
            assert shown(batch) == shown(whole(batches[span.first]))
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
    assert "jaxdata-batch" not in Path("/proc/self/maps").read_text(), "its memory goes"
    assert descriptors() <= before


@given(
    st.lists(
        st.tuples(st.sampled_from(["<i4", "u1", "<f8"]), st.lists(st.integers(0, 70), max_size=2)),
        max_size=5,
    )
)
def test_arrays_lie_end_to_end_each_at_a_multiple_of_64_bytes(arrays: Any) -> None:
    given_ = tuple(
        (str(at), np.dtype(dtype), tuple(shape)) for at, (dtype, shape) in enumerate(arrays)
    )
    size, found = shared._end_to_end(given_)
    end = 0
    for (name, dtype, shape, start), each in zip(found, given_, strict=True):
        assert (name, dtype, shape) == each
        assert start % 64 == 0
        assert 0 <= start - end < 64
        end = start + dtype.itemsize * int(np.prod(shape, dtype=int))
    assert size % 65_536 == 0
    assert -64 < size - max(end, 1) < 65_536 + 64
    assert size >= max(end, 1)


def test_python_objects_cannot_be_handed_over() -> None:
    with pytest.raises(InputError, match=r"'0\.words' holds Python objects.* num_workers=0"):
        BatchSender(Channel.pair()[0]).send([{"words": np.array([None])}])


@pytest.mark.parametrize("unread", [0, 1, 4])
def test_memory_is_used_again_once_nobody_refers_to_it(unread: int) -> None:
    """What a batch is made of is told when it changes."""
    here, there = Channel.pair()
    sender = BatchSender(there)
    assert not sender.has_message()
    numbers, told = list[int](), list[bool]()
    for turn in range(20):
        sender.send({"x": np.full(5, turn), "y": turn // 10})
        number, where = here.recv()
        if number not in numbers:
            os.close(shared.recv_handle(here))
        numbers.append(number)
        told.append(where is not None)
        if turn >= unread:
            here.send(Received([numbers[turn - unread]]))
            assert sender.has_message()
            assert sender.listen() == Heard(received=1)
            assert not sender.has_message()
    assert sorted({*numbers}) == [*range(unread + 1)]
    assert told == [turn in (0, 10) for turn in range(20)]
    here.send([Span(1, 2), Span(3, 4)])
    assert sender.listen() == Heard(spans=[Span(1, 2), Span(3, 4)])


class Told:
    """A worker that notes what it is told; its batches are its number, and theirs."""

    def __init__(self, target: str, maker: Any, ready: int) -> None:
        assert target == "jaxdata.feed.streams.workers:serve"
        if len(maker.workers) == maker.fails_at:
            raise KeyboardInterrupt
        self.number, self.ready, self.log = len(maker.workers), ready, maker.log
        self.spans, self.received = list[int](), 0
        maker.workers.append(self)

    def tell(self, spans: Sequence[Span]) -> None:
        self.spans += [span.first for span in spans]

    def receive(self) -> Any:
        self.received += 1
        return self.number, self.spans[self.received - 1]

    def terminate(self) -> None:
        self.log.append(("terminate", self.number))

    def close(self) -> None:
        self.log.append(("close", self.number))


class Workers(Maker):
    """A maker that notes its workers."""

    def __init__(self, together: int = 3, fails_at: int | None = None) -> None:
        super().__init__([], together)
        self.fails_at, self.workers, self.log = fails_at, list[Told](), list[Any]()


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 3), st.integers(0, 200))
def test_a_worker_is_told_of_its_turns_a_group_and_another_ahead(
    together: int, workers: int, depth: int, count: int
) -> None:
    maker: Any = Workers(together)
    group = max(together, 8) * workers
    with Patch.context() as patch:
        patch.setattr(worker_stream, "BatchReceiver", Told)
        spans = (Span(number, 1) for number in range(count))
        stream = WorkerStream(maker, spans, workers, depth)
        for delivered in range(count + 1):
            told = min(count, group * (2 + delivered // group))
            assert [worker.spans for worker in maker.workers] == [
                [*range(number, told, workers)] for number in range(workers)
            ]
            if delivered < count:
                assert next(stream) == (Span(delivered, 1), (delivered % workers, delivered))
        with pytest.raises(StopIteration):
            next(stream)
        stream.close()
    assert {worker.ready for worker in maker.workers} == {max(1, depth)}
    ends = [(what, number) for what in ("terminate", "close") for number in range(workers)]
    assert maker.log == ends, "side by side"


def test_workers_end_where_another_cannot_be_started(monkeypatch: Patch) -> None:
    maker: Any = Workers(fails_at=2)
    monkeypatch.setattr(worker_stream, "BatchReceiver", Told)
    with pytest.raises(KeyboardInterrupt):
        WorkerStream(maker, iter([]), 3, 1)
    assert maker.log == [("terminate", 0), ("terminate", 1), ("close", 0), ("close", 1)]


class Script:
    """A sender whose parent says given things, one before each batch and the rest when asked."""

    buffers = None

    def __init__(self, messages: list[int | list[Span]], early: int) -> None:
        self.messages, self.early, self.sent = deque(messages), early, list[int]()

    def has_message(self) -> bool:
        return len(self.messages) > self.early

    def listen(self) -> Heard:
        if not self.messages:
            raise EOFError
        message = self.messages.popleft()
        return Heard(received=message) if isinstance(message, int) else Heard(spans=message)

    def send(self, batch: int) -> None:
        assert len(self.messages) <= self.early, "unread, messages would fill the channel"
        self.sent.append(batch)


@given(
    st.lists(st.just(1) | st.integers(1, 9).map(range), max_size=30),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_worker_makes_so_many_ahead_of_what_its_parent_has_received(
    messages: Any, ready: int, early: int, is_far: bool
) -> None:
    told, fetched = 0, list[int]()
    said = list[Any]()
    for message in messages:
        size = 0 if message == 1 else len(message)
        said.append([Span(at, 1) for at in range(told, told + size)] if size else 1)
        told += size
    sender = Script(said, early)
    maker: Any = Maker(range(told))
    maker.is_far = is_far
    maker.make = lambda spans, _: (span.first for span in spans)
    with Patch.context() as patch:
        patch.setattr(worker_stream, "BatchSender", lambda connection: sender)
        patch.setattr(
            worker_stream, "prefetch", lambda _, spans: fetched.extend(span.first for span in spans)
        )
        with pytest.raises(EOFError):
            serve(None, maker, ready)
    assert sender.sent == [*range(min(told, ready + messages.count(1)))]
    assert fetched == ([*range(told)] if is_far else [])
