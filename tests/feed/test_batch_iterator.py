"""What a pipeline is opened with, which streams it needs, and when it is closed."""

from __future__ import annotations

from inspect import signature
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jaxdata
import jaxdata.torch
from jaxdata.base import processes as lifeline
from jaxdata.base.errors import InputError
from jaxdata.feed import batch_iterator
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.feed.batches import HostPlacement, OpenStream
from jaxdata.feed.schedule import Span
from jaxdata.feed.settings import LoaderSection
from jaxdata.feed.trees import check_slots
from jaxdata.storage.pages.read_counts import ReadCounts
from jaxdata.testing import assert_same_batches, distinct_documents

ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([20] * 60)), seq_len=32)
Patch = pytest.MonkeyPatch


def make(**given: Any) -> BatchIterator:
    return BatchIterator(
        ROWS, lambda size, _: HostPlacement(size, (0, 1)), **{"batch_size": 8, **given}
    )


def test_without_options_it_makes_two_batches_ahead_in_this_process() -> None:
    defaults = {"num_workers": 0, "prefetch": 2, "drop_remainder": False, "skip_rows": ()}
    defaults |= {"expand": "host", "layout": "jaxdata", "extras": (), "reiterable": False}
    for made in (jaxdata.Loader, BatchIterator):
        found = signature(made).parameters
        assert {name: found[name].default for name in defaults} == defaults
    assert signature(BatchIterator).parameters["on_devices"].default is False


@pytest.mark.parametrize("face", [jaxdata.Loader, jaxdata.torch.Loader])
def test_what_is_no_rows_is_said(face: Any) -> None:
    with pytest.raises(InputError, match="a loader is given rows, not a str: pack a source first"):
        face("data/mine", batch_size=8, num_workers=-1)


def test_so_many_workers_batches_ahead_and_slots_are_taken() -> None:
    LoaderSection.checked(num_workers=0, prefetch=0)
    LoaderSection.checked(num_workers=1024, prefetch=np.int64(65_536))
    for wrong in (1.0, "1", None, np.float32(1)):
        with pytest.raises(InputError, match=r"prefetch=.*: expected a whole number$"):
            LoaderSection.checked(prefetch=wrong)
    for rows, seq_len in ((2**20, 2**11), (1, 2**31), (2**31, 1), (2**31 - 1, 1)):
        check_slots(rows, seq_len)
        with pytest.raises(InputError, match="expected at most 2,147,483,648 slots"):
            check_slots(rows + 2 * (seq_len == 1), seq_len + (seq_len > 1))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("is_far", [False, True])
def test_streams_are_those_that_its_settings_need(
    prefetch: int, workers: int, works: bool, is_far: bool, monkeypatch: Patch
) -> None:
    """A thread runs ahead where batches are made or placed in this process."""
    for name in ("Worker", "Far", "Direct", "Ahead"):

        def opened(made: Any, *args: Any, name: str = name) -> Any:
            inner = made if name == "Ahead" else []
            return [*inner, (name, *(arg for arg in args if isinstance(arg, int)))]

        monkeypatch.setattr(batch_iterator, f"{name}Stream", opened)
    monkeypatch.setattr(batch_iterator, "PlacedStream", lambda made, place: [*made, place(*BATCH)])
    fetched = iter(map(ReadCounts, (3, 10, 12, 13)))
    monkeypatch.setattr(batch_iterator, "read_counts", lambda: next(fetched))
    monkeypatch.setattr(batch_iterator, "FirstFill", lambda made, reads: [*made, reads().gets])
    one = make(num_workers=workers, prefetch=prefetch)
    assert one.reads is None
    told = list[tuple[int, int]]()
    monkeypatch.setattr(
        batch_iterator, "warn_of_downloads", lambda tables, hosts: told.append((len(tables), hosts))
    )
    placement = SimpleNamespace(works=works, hosts=3, place=lambda batch: batch * 2)
    one._placements = {(8, 0): placement, (8, 1): SimpleNamespace(works=False)}
    monkeypatch.setattr(BatchIterator, "maker", lambda _: SimpleNamespace(is_far=is_far))
    made = [("Worker", workers, prefetch)] if workers else [("Far",) if is_far else ("Direct",)]
    expected = [*made, *[7] * is_far, 22]
    ahead = bool(prefetch) and (works or not workers)
    assert one._open() == [*expected, *[("Ahead", prefetch)] * ahead]
    assert one.reads == (ReadCounts(gets=9) if is_far else None)
    assert told == [(1, 3)] * is_far
    one._made(one.maker(), iter([]))
    assert told == [(1, 3)] * is_far, "once"


BATCH = Span(0, 8), 11


def test_it_waits_as_long_as_its_batches_take(monkeypatch: Patch) -> None:
    clock = (2.0**at for at in count(4))
    monkeypatch.setattr(batch_iterator, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    one = make(prefetch=0)
    for waited in (16.0, 16.0 + 64.0):
        next(one)
        assert one.wait_seconds == waited


def test_a_closed_one_does_nothing_more() -> None:
    one = jaxdata.Loader(ROWS, batch_size=8, prefetch=1)
    state, closes = one.get_state(), []
    stream = SimpleNamespace(close=lambda: closes.append(1))
    one._stream.get(lambda: stream)
    one.close()
    assert closes == [1]
    for call in (
        one.__next__,
        one.__iter__,
        one.start_prefetch,
        one.reset,
        lambda: one.seek(row=1),
        lambda: one.skip(1, 2),
        lambda: one.set_state(state),
    ):
        with pytest.raises(InputError, match=r"^this loader is closed: make another"):
            call()


def test_a_copy_of_the_process_makes_the_batches_it_chooses() -> None:
    one = make(num_workers=2, prefetch=2)
    one.become_copy(lambda spans: (span for span in spans if span.first % 16 == 8))
    assert_same_batches([next(one)], [*jaxdata.Loader(ROWS, batch_size=8)][1:2])
    assert one.schedule.next_row == 16


def test_whatever_reads_is_told_in_a_forked_copy() -> None:
    stream = OpenStream()
    assert stream in [*lifeline._forgetful]
