"""Resuming, seeking, skipping, ramps: where a loader is, and what follows."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import InputError, StateMismatch
from jaxdata.feed.saved_state import sealed
from jaxdata.feed.schedule import BatchSizes
from jaxdata.testing import (
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_same_batches,
    distinct_documents,
)
from tests.feed.pod import rows_asked
from tests.feed.test_loader import DOCUMENTS, REFERENCE, ROWS, TEXTS, loader


def test_it_resumes_at_every_step() -> None:
    assert assert_resumes_everywhere(loader) == len(REFERENCE) + 1
    assert assert_resumes_everywhere(lambda: loader(num_workers=1), tail=1) == len(REFERENCE) + 1


def test_the_state_is_small_and_plain() -> None:
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(TEXTS, name=name), seq_len=32)
        for name in ("train/web", "train/code", "train/wikipedia")
    }
    phases = [
        jaxdata.Phase(tokens=100 * 32, weights=dict.fromkeys(rows, weight)) for weight in (0.3, 0.7)
    ]
    one = loader(rows=jaxdata.mix(rows, phases=phases))
    next(one)
    state = one.get_state()
    assert {"version", "fingerprint", "next_row", "run"} <= set(state)
    assert len(json.dumps(state)) < 1024
    assert json.loads(json.dumps(state)) == state
    others = [
        loader(rows=jaxdata.mix(rows, phases=phases), shard=(1, 2), num_workers=2, prefetch=5)
    ]
    for other in others:
        next(other)
        assert other.get_state() == state
        other.close()


def test_the_state_counts_what_was_delivered_not_what_was_made() -> None:
    ahead = loader(prefetch=5)
    assert ahead.get_state()["next_row"] == ahead.next_row == 0
    next(ahead)
    next(ahead)
    assert ahead.get_state()["next_row"] == ahead.next_row == 48


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=1, max_size=6))
def test_changing_hosts_and_batch_size_loses_and_repeats_nothing(
    legs: list[tuple[int, int]],
) -> None:
    state, delivered = None, []
    for each, hosts in legs:
        group = [loader(each * hosts, shard=(host, hosts), prefetch=0) for host in range(hosts)]
        for one in group:
            if state:
                one.set_state(state)
        for _ in range(3):
            delivered += [batch for one in group if (batch := next(one, None)) is not None]
        states = [one.get_state() for one in group]
        assert all(other == states[0] for other in states)
        state = states[0]
    last = loader(7, prefetch=0)
    last.set_state(state)
    delivered += list(last)
    assert_exactly_once(delivered, [DOCUMENTS])


def test_steps_are_counted_by_the_batch_sizes_they_had() -> None:
    first = loader(24)
    for _ in range(4):
        next(first)
    second = loader(10)
    second.set_state(first.get_state())
    assert (second.step, second.next_row) == (4, 96)
    next(second)
    assert (second.step, second.next_row) == (5, 106)
    assert second.get_state()["batch_sizes"] == [[0, 24], [96, 10]]
    second.seek(step=5)
    assert second.next_row == 106
    second.seek(step=3)
    assert second.next_row == 72


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(0, 60),
)
def test_steps_and_rows_are_inverse(spans: list[tuple[int, int]], step: int) -> None:
    breakpoints, row = [], 0
    for steps, size in spans:
        breakpoints.append((row, size))
        row += steps * size
    sizes = BatchSizes(breakpoints)
    slow = 0
    for _ in range(step):
        slow += sizes.at(slow)
    assert sizes.first(step) == slow
    assert sizes.step(slow) == step


RAMP = [(0, 24), (70, 48), (200, 12)]
SKIPPED = [(30, 41), (100, 250)]


@pytest.mark.parametrize("settings", [{}, {"prefetch": 0}, {"num_workers": 2, "prefetch": 3}])
def test_a_ramp_over_skipped_rows(settings: dict[str, Any]) -> None:
    one = loader(RAMP, skip_rows=SKIPPED, **settings)
    kept = [row for row in range(len(ROWS)) if not any(a <= row < b for a, b in SKIPPED)]
    batches, at = [], 0
    while at < len(kept):
        row = kept[at]
        size = 24 if row < 70 else 48 if row < 200 else 12
        assert (one.next_row, one.step) == (row, len(batches))
        batches.append(next(one))
        assert len(batches[-1]["inputs"]) == size
        at += size
    assert len(one) == len(batches)
    with pytest.raises(StopIteration):
        next(one)
    delivered = np.concatenate([batch["inputs"] for batch in batches])[: len(kept)]
    everything = np.concatenate([batch["inputs"] for batch in REFERENCE])
    assert np.array_equal(delivered, everything[kept])
    one.close()


def test_a_ramp_resumes_everywhere_on_any_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    settings: dict[str, Any] = {"batch_size": RAMP, "skip_rows": SKIPPED}
    expected = list(loader(**settings))
    assert_same_batches(loader(sharding=sharding, **settings), expected)
    parts = [list(loader(shard=(part, 3), **settings)) for part in range(3)]
    joined = [np.concatenate([part[k]["targets"] for part in parts]) for k in range(len(expected))]
    assert all(np.array_equal(a, b["targets"]) for a, b in zip(joined, expected, strict=True))
    assert assert_resumes_everywhere(lambda: loader(**settings)) == len(expected) + 1
    with pytest.raises(InputError, match="batch_size=12 cannot be divided among 8 shards"):
        loader(RAMP, shard=(0, 8))
    with pytest.raises(InputError, match="a batch of 2 rows of 32 does not divide over"):
        loader([(0, 4), (8, 2)], sharding=NamedSharding(mesh, PartitionSpec(("x", "y"))))


def test_the_state_does_not_change_by_restoring_it_with_another_batch_size() -> None:
    first, second = loader(24), loader(10, skip_rows=[(0, 12)])
    next(first)
    state = first.get_state()
    assert state["batch_sizes"] == [[0, 24]]
    assert "skips" not in state
    second.set_state(state)
    skipped = sealed({**state, "skips": [[0, 12, 24]]})
    assert second.get_state() == skipped, "12 rows were delivered before"
    second.reset()
    assert (second.next_row, second.get_state()["skips"]) == (12, [[0, 12]])


def test_skipping_on_the_way() -> None:
    one = loader(num_workers=1)
    for _ in range(2):
        next(one)
    one.skip(48, 96)  # a loss spike is expected there
    assert (one.step, one.next_row) == (2, 96)
    assert_same_batches(one, REFERENCE[4:])
    one.seek(step=1)
    assert one.next_row == 24
    one.seek(step=2)
    assert one.next_row == 96
    one.seek(row=50)
    assert one.next_row == 96
    with pytest.raises(InputError, match=r"cannot skip rows \(5, 100000\): expected \(a, b\) with"):
        one.skip(5, 100_000)
    assert_same_batches(one, REFERENCE[4:])
    one.skip(0, len(ROWS))
    assert (len(one), one.next_row, list(one)) == (len(REFERENCE) - 2, len(ROWS), [])
    one.reset()
    assert (len(one), list(one)) == (0, [])
    one.close()


def test_a_process_reads_only_its_rows() -> None:
    read = []
    for part, prefetch in ((0, 2), (1, 5)):
        with rows_asked(ROWS.table) as asked:
            batches = list(loader(shard=(part, 2), prefetch=prefetch))
        assert sum(array.nbytes for array in batches[0].values()) == 12 * 32 * (4 * 4 + 1)
        assert {row % 24 // 12 for row in asked} == {part}
        read += asked
    assert sorted(read) == list(range(len(ROWS))), "padding is not read"


def test_seek_and_reset() -> None:
    one = loader()
    assert_same_batches(one, REFERENCE)
    with pytest.raises(InputError, match=r"at its end.* reset\(\), or seek\(step=…\)"):
        list(one)
    one.reset()
    assert_same_batches(one, REFERENCE)
    one.seek(step=3)
    assert_same_batches(one, REFERENCE[3:])
    one.seek(step=len(one))
    assert list(one) == []
    one.seek(row=5 * 24)
    assert_same_batches(one, REFERENCE[5:])
    one.seek(row=30)
    assert np.array_equal(next(one)["inputs"][0], ROWS[30]["inputs"])
    for wrong in ({}, {"step": 1, "row": 1}):
        with pytest.raises(InputError, match=r"seek takes step=… or row=…"):
            one.seek(**wrong)
    with pytest.raises(InputError, match=r"cannot seek to row -1: the rows are 0 to"):
        one.seek(row=-1)
    with pytest.raises(InputError, match=rf"cannot seek to step 99: the steps are 0 to {len(one)}"):
        one.seek(step=99)


def test_far_into_a_run_takes_no_longer() -> None:
    endless, again = loader(rows=ROWS.repeat()), loader(12, rows=ROWS.repeat())
    endless.seek(step=10**12)
    state = json.loads(json.dumps(endless.get_state()))
    again.set_state(state)
    assert again.next_row == 24 * 10**12
    assert np.array_equal(next(again)["targets"], next(endless)["targets"][:12])
    assert again.step == 10**12 + 1


def test_a_restored_end_is_an_end() -> None:
    one = loader()
    list(one)
    two = loader()
    two.set_state(one.get_state())
    assert list(two) == []


def test_another_run_is_refused_by_name() -> None:
    state = loader().get_state()
    other = jaxdata.pack(
        jaxdata.ArrayDocuments(distinct_documents([9] * 9), name="train/a"),
        seq_len=64,
        seed=1,
        order=1,
    )
    with pytest.raises(StateMismatch) as caught:
        loader(rows=other).set_state(state)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the loader state belongs to another run; the same rows would not follow:"
    assert lines[1].startswith("  block was 128, is 65536: set block back, or start a new run")
    assert lines[2].startswith("  data[train/a] was '")
    assert lines[3:5] == [
        "  seed was 0, is 1: set seed back, or start a new run",
        "  seq_len was 32, is 64: set seq_len back, or start a new run",
    ]
    with pytest.raises(StateMismatch, match="not a loader state: it lacks fingerprint, next_row"):
        loader().set_state({"version": 1})
    with pytest.raises(StateMismatch, match="has version 7, this jaxdata reads version 1"):
        loader().set_state({**state, "version": 7})


def test_another_mixture_is_refused_a_line_for_each_difference() -> None:
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(TEXTS, name=name), seq_len=32)
        for name in ("train/web", "train/code", "train/wiki")
    }
    one = {name: rows[name] for name in ("train/web", "train/code")}
    other = {name: rows[name] for name in ("train/web", "train/wiki")}

    def mixed(of: Any, second: float, **settings: Any) -> jaxdata.Loader:
        first = dict.fromkeys(of, 1)
        weights = dict(zip(of, (1, second), strict=True))
        phases = [jaxdata.Phase(rows=40, weights=first), jaxdata.Phase(rows=40, weights=weights)]
        return loader(rows=jaxdata.mix(of, phases=phases, **settings))

    state = mixed(one, 0.5).get_state()
    with pytest.raises(StateMismatch) as caught:
        mixed(one, 0.25, epochs={"train/web": 2}, on_exhaustion="halt").set_state(state)
    lines = str(caught.value).splitlines()[1:-1]
    assert lines == [  # not epochs, not on_exhaustion: no row before depends on them
        "  phases[1] was [40, {'train/web': 1, 'train/code': 0.5}], is "
        "[40, {'train/web': 1, 'train/code': 0.25}]: restore the curriculum of the run",
    ]
    with pytest.raises(StateMismatch) as caught:
        mixed(other, 0.5).set_state(state)
    said = str(caught.value)
    assert "data[train/code] was '" in said
    assert "data[train/wiki] was absent, is '" in said
    with pytest.raises(StateMismatch, match="next_row 90: expected 0 to 80"):
        mixed(one, 0.5).set_state(sealed({**state, "next_row": 90}))
    with pytest.raises(StateMismatch, match="its fingerprint and its facts disagree"):
        mixed(one, 0.5).set_state(sealed({**state, "fingerprint": "0" * 16}))
