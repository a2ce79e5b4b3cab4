"""Where a loader is, and what follows: resumed, moved, skipped; in Orbax's checkpoints too."""

import json
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
from hypothesis import given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import DOCUMENTS, REFERENCE, ROWS, loader
from tests.feed.test_states import GOOD, VALUES

SKIP = st.none() | st.tuples(st.integers(0, 400), st.integers(1, 9))
LEG = st.tuples(st.integers(1, 40), st.integers(1, 5), SKIP)
LEGS = st.lists(LEG, min_size=1, max_size=6)


@settings(max_examples=15)
@given(LEGS)
def test_other_hosts_and_batch_sizes_go_on_and_nothing_is_lost_or_repeated(legs: Any) -> None:
    """At every stop rows may be skipped too, those that were delivered before included."""
    state, delivered, gone = None, list[int](), set[int]()
    number = {token: row for row, token in enumerate(first_tokens())}
    for each, hosts, skip in [*legs, (7, 1, None)]:
        group = [loader(each * hosts, shard=(host, hosts), prefetch=0) for host in range(hosts)]
        for one in group:
            if state:
                one.set_state(state)
            if skip:
                one.skip(skip[0], min(skip[0] + skip[1], len(ROWS)))
        gone |= set(range(skip[0], skip[0] + skip[1])) - set(delivered) if skip else set()
        steps = 3 if (each, hosts, skip) != (7, 1, None) else None
        for batches in islice(zip(*group, strict=True), steps):
            tokens = np.concatenate([batch["inputs"][:, 0] for batch in batches])
            filled = np.concatenate([batch["segment_ids"][:, 0] for batch in batches]) > 0
            delivered += [number[token] for token in tokens[filled].tolist()]
        assert len({json.dumps(one.get_state()) for one in group}) == 1, "of all hosts one state"
        state = json.loads(json.dumps(group[0].get_state()))
    assert delivered == [row for row in range(len(ROWS)) if row not in gone]


@cache
def first_tokens() -> list[int]:
    return [int(ROWS[row]["inputs"][0]) for row in range(len(ROWS))]


def test_seek_skip_and_reset() -> None:
    one = loader()
    assert_same_batches(one, REFERENCE)
    with pytest.raises(InputError, match=r"at its end.* reset\(\), or seek\(step=…\)"):
        iter(one)
    one.seek(step=3)
    assert_same_batches(one, REFERENCE[3:])
    one.seek(step=len(one))
    assert list(one) == []
    one.seek(row=30)
    assert next(one)["inputs"][0][0] == first_tokens()[30]
    for where, message in (
        ({}, "seek takes step=… or row=…, one of them"),
        ({"step": 1, "row": 1}, "seek takes step=… or row=…, one of them"),
        ({"row": -1}, f"cannot seek to row -1: the rows are 0 to {len(ROWS)}"),
        ({"step": 99}, f"cannot seek to step 99: the steps are 0 to {len(one)}"),
    ):
        with pytest.raises(InputError) as caught:
            one.seek(**where)
        assert str(caught.value) == message
    with pytest.raises(InputError, match=f"no step {len(one)}: the steps are 0 to {len(one) - 1}"):
        one.batch_rows(len(one))
    one.reset()
    list(islice(one, 2))
    one.skip(48, 96)  # a loss spike is expected there
    assert_same_batches(one, REFERENCE[4:])
    with pytest.raises(InputError, match=r"cannot skip rows \(5, 100000\): expected \(a, b\) with"):
        one.skip(5, 100_000)
    one.skip(0, len(ROWS))
    one.reset()
    assert (len(one), list(one)) == (0, [])


@settings(max_examples=80)
@given(st.sampled_from([*GOOD, "batch_sizes", "skips", "amendments", "passes", "run"]), VALUES)
def test_a_damaged_state_is_refused_or_taken_as_it_says(name: str, value: Any) -> None:
    """With a checksum it is refused; without one its rows are those from `next_row` on."""
    one = loader([(0, 4), (40, 12), (80, 8)], skip_rows=[(3, 9)], prefetch=0)
    one.skip(2, 50)
    next(one)
    state = one.get_state()
    damaged, total = {**state, name: value}, len(ROWS)
    fresh = loader([(0, 4), (40, 12), (80, 8)], skip_rows=[(3, 9)], prefetch=0)
    try:
        fresh.set_state(damaged)
        assert damaged == state or value == []
    except StateMismatch:
        del damaged["checksum"]
    try:
        fresh.set_state(damaged)
    except StateMismatch:
        return
    ranges = [(max(skip[0], *skip[2:], 0), skip[1]) for skip in [*damaged["skips"], (3, 9)]]
    rows = range(damaged["next_row"], total)
    kept = [row for row in rows if not any(first <= row < stop for first, stop in ranges)]
    steps = range(fresh.step, len(fresh))
    assert [int(row) for step in steps for row in fresh.batch_rows(step)] == kept


def moved(steps: int) -> jaxdata.Loader:
    one = loader()
    one.seek(step=steps)
    return one


def save(path: Path, args: Any) -> None:
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.Composite(loader=args))


def restore(path: Path, args: Any) -> Any:
    with ocp.CheckpointManager(path) as manager:
        return manager.restore(3, args=ocp.args.Composite(loader=args))["loader"]


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    one, other = moved(2), loader(12, shard=(1, 2))  # another process count and batch size
    with ocp.CheckpointManager(tmp_path) as manager:
        items = {"model": ocp.args.JsonSave({"a": 1}), "loader": jaxdata.LoaderSave(one)}
        manager.save(3, args=ocp.args.Composite(**items))
        next(one)  # while it is written
    assert restore(tmp_path, jaxdata.LoaderRestore(other)) is other
    assert other.next_row == 48
    assert np.array_equal(next(other)["inputs"], REFERENCE[2]["inputs"][6:12])
    plain = restore(tmp_path, ocp.args.JsonRestore())
    assert plain == moved(2).get_state(), "it is the file of JsonSave"


def test_files_of_grain_and_the_new_orbax_are_restored_on_any_processes(tmp_path: Path) -> None:
    assert isinstance(moved(3), grain.DatasetIterator)
    save(tmp_path / "a", grain.checkpoint.CheckpointSave(moved(3)))
    (file,) = tmp_path.glob("a/3/loader/process_*.json")
    file.rename(file.with_name("process_3-of-8.json"))  # as one host of 8 writes it
    assert_same_batches(restore(tmp_path / "a", jaxdata.LoaderRestore(loader())), REFERENCE[3:])
    one, other = moved(2), loader(48)
    response = ocp_v1.save_checkpointables_async(tmp_path / "c", {"loader": one, "extra": {"a": 1}})
    next(one)
    response.result()
    ocp_v1.load_checkpointables(tmp_path / "c", {"loader": other})
    assert np.array_equal(next(other)["inputs"][:24], REFERENCE[2]["inputs"])


def test_other_rows_and_damaged_files_are_refused(tmp_path: Path) -> None:
    other = loader(rows=jaxdata.pack(DOCUMENTS, seq_len=16, block_bytes=12800))
    save(tmp_path, jaxdata.LoaderSave(moved(1)))
    with pytest.raises(StateMismatch, match="seq_len was 32, is 16: set seq_len back, or"):
        restore(tmp_path, jaxdata.LoaderRestore(other))
    path = tmp_path / "3" / "loader" / "metadata"
    for content in (b"", b"\xff\xfe", b"[" * 10**5):
        path.write_bytes(content)
        with pytest.raises(StateMismatch, match=r"3/loader/metadata is damaged .*: restore an ea"):
            restore(tmp_path, jaxdata.LoaderRestore(other))
    path.unlink()
    with pytest.raises(StateMismatch, match=r"no loader state in .*3/loader: expected the file"):
        restore(tmp_path, jaxdata.LoaderRestore(other))
