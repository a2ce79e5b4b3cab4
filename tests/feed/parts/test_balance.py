"""Equal work for the parts of a batch: the same rows a step, whoever gets which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.balance import evened
from jaxdata.testing import distinct_documents
from jaxdata.testing.resuming import joined
from tests.builders import dataset

CHANCE = np.random.default_rng(7)
LENGTHS = {
    "web": CHANCE.integers(2, 30, 150),
    "code": CHANCE.integers(2, 66, 100),
}
KINDS = ["one source", "mixed", "lanes", "amended", "mapped"]
POOLS = {"chunk_bytes": 200, "block_bytes": 800}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources with masks and a side array, of one of which a view drops short documents."""
    lengths = {name: each.tolist() for name, each in LENGTHS.items()}
    masks = {name: [np.arange(n) % 3 > 0 for n in each] for name, each in lengths.items()}
    side = {name: {"weight": [np.arange(n) * 0.5 for n in each]} for name, each in lengths.items()}
    folder = dataset(tmp_path_factory.mktemp("balance") / "d", lengths, masks=masks, side=side)
    jaxdata.select(folder, "d1", where="tokens > 3", sources=["web"])
    return folder


@pytest.fixture(scope="module")
def made(data: Path) -> Iterator[dict[str, Any]]:
    """Rows of every kind, which go with the module."""
    opened = jaxdata.open_dataset(data).with_views({"train/web": "d1"})
    rows = {kind: rows_of(opened, kind) for kind in KINDS}
    yield rows
    rows.clear()


def rows_of(opened: Any, kind: str) -> Any:
    lanes = POOLS | {"lanes": 4} if kind == "lanes" else {}
    pack = partial(jaxdata.pack, **lanes)
    docs = {name: opened.source("train", name) for name in LENGTHS}
    if kind == "one source":  # of one segment a row, whose work differs much
        return pack(docs["code"], seq_len=64, strategy="pad")
    rows = {name: pack(each, seq_len=64) for name, each in docs.items()}
    mixed = jaxdata.mix(
        rows,
        phases=[jaxdata.Phase(rows=90, weights={"web": 2, "code": 1})],
        epochs=dict.fromkeys(rows, 2),
        on_exhaustion="renormalize",
    )
    if kind == "mapped":
        return mixed.map(dict)
    if kind == "amended":
        later = {name: pack(each, seq_len=32) for name, each in docs.items()}
        return mixed.amend(37, rows=later)
    return mixed


def work_of(batch: Any, square: Callable[[int], int] = lambda n: n * n) -> np.ndarray:
    """What attention costs in each row of a batch, from its arrays."""
    rows = np.asarray(batch["segment_ids"]).tolist()
    return np.array([sum(square(ids.count(one)) for one in {*ids} - {0}) for ids in rows])


def as_set(batch: Any) -> list[tuple[bytes, ...]]:
    return sorted(
        zip(*([row.tobytes() for row in batch[name]] for name in sorted(batch)), strict=True)
    )


@settings(max_examples=12)
@given(st.data())
def test_hosts_get_the_rows_of_each_step_as_without_it_and_the_state_says_the_same(
    made: dict[str, Any], draw: st.DataObject
) -> None:
    kind, hosts = draw.draw(st.sampled_from(KINDS)), draw.draw(st.sampled_from([1, 2, 4]))
    micro = draw.draw(st.sampled_from([1, 3]))
    rows, base = made[kind], hosts * micro
    sizes = [base * draw.draw(st.integers(1, 3)) for _ in range(2)]
    given: dict[str, Any] = {
        "batch_size": [(0, sizes[0]), (20, sizes[1])] if draw.draw(st.booleans()) else sizes[0],
        "skip_rows": draw.draw(st.sampled_from([[], [(5, 9)]])),
        "extras": () if kind == "mapped" else ("weight", "source"),
        "prefetch": draw.draw(st.sampled_from([0, 2])),
        "drop_remainder": draw.draw(st.booleans()),
    }
    work = draw.draw(st.sampled_from([None, "attention", {"attention": 9}]))
    ours = given | {"balance": work, "microbatches": micro}
    plain = jaxdata.Loader(rows, **given)
    group = [jaxdata.Loader(rows, shard=(host, hosts), **ours) for host in range(hosts)]
    start = draw.draw(st.integers(0, len(plain) - 1))
    for one in (plain, *group):
        one.seek(step=start)
    for step, (expected, found) in enumerate(zip(plain, joined(group), strict=True), start):
        assert as_set(found) == as_set(expected)
        assert {one.next_row for one in group} == {plain.next_row}
        numbers = group[-1].batch_rows(step).tolist()
        assert sorted(numbers) == sorted(plain.batch_rows(step).tolist())
        filled = [at for at, work in enumerate(work_of(found)) if work]
        assert [group[0].step_of_row(number) for number in numbers] == [(step, at) for at in filled]
    assert [one.get_state() for one in group] == [plain.get_state()] * hosts


@given(
    st.lists(st.integers(0, 50) | st.integers(2**25, 2**26), min_size=1, max_size=60),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.booleans(),
    st.integers(1, 3),
)
def test_rows_are_dealt_once_in_equal_numbers_and_each_batch_by_itself(
    costs: list[int], parts: int, keep: bool, groups: int
) -> None:
    rows = -(-len(costs) // parts) * parts
    work = np.array([np.roll((costs * rows)[:rows], shift) for shift in range(groups)])
    found = evened(work, parts, keep=keep)
    assert found.shape == (groups, parts, rows // parts)
    assert (np.sort(found.reshape(groups, -1)) == np.arange(rows)).all()
    assert (np.diff(found, axis=2) > 0).all()
    for group, alone in zip(found, work, strict=True):
        assert (evened(alone[None], parts, keep=keep)[0] == group).all()
        loads = (alone[each].sum(axis=1) for each in (np.arange(rows).reshape(parts, -1), group))
        before, after = loads
        assert after.max() <= before.max() or not keep
        if rows >= 8 * parts:  # a swap more would not help: hardly more than the mean and a row
            assert after.max() <= 1.01 * after.mean() + alone.max() / 2


@pytest.mark.parametrize(("rows", "most"), [(32, 1.09), (64, 1.01), (4_000, 1.005)])
def test_rows_of_real_lengths_are_dealt_evenly(rows: int, most: float) -> None:
    work = np.random.default_rng(2).lognormal(12, 0.5, (20, rows)).astype(np.int64)
    for keep in (False, True):
        load = np.take_along_axis(work[:, None], evened(work, 8, keep=keep), axis=2).sum(axis=2)
        assert (load.max(axis=1) / load.mean(axis=1)).mean() < most + 0.03 * keep


def parts_of(batch: Any, parts: int) -> np.ndarray:
    return work_of(batch).reshape(parts, -1).sum(axis=1)


def test_hosts_and_micro_batches_have_equal_work(made: dict[str, Any]) -> None:
    rows = made["one source"].repeat(8)
    make = partial(jaxdata.Loader, rows, batch_size=64)
    plain, uneven, even, micro = next(make()), [], [], []
    for settings_, parts, found in (
        ({}, 4, uneven),
        ({"balance": "attention"}, 4, even),
        ({"balance": "attention", "microbatches": 4}, 16, micro),
    ):
        whole = next(joined([make(shard=(host, 4), **settings_) for host in range(4)]))
        work = parts_of(whole, parts)
        found.append(work.max() / work.mean())
    assert uneven[0] > 1.15
    assert even[0] < 1.01
    assert micro[0] < 1.1
    alone = next(make(microbatches=4))
    assert as_set(alone) == as_set(plain)
    work = parts_of(alone, 4)
    assert work.max() / work.mean() < 1.02


def test_rows_that_complete_the_last_batch_are_shared_out(made: dict[str, Any]) -> None:
    make = partial(jaxdata.Loader, made["one source"], batch_size=96, balance="attention")
    group = [make(shard=(host, 4)) for host in range(4)]
    last = [list(one)[-1] for one in group]
    assert [int((work_of(batch) > 0).sum()) for batch in last] == [1] * 4
    for batch in last:
        padding = work_of(batch) == 0
        assert not any(array[padding].any() for array in batch.values())


@pytest.mark.parametrize("expand", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_data_shards_of_any_mesh_have_equal_work(made: dict[str, Any], expand: str) -> None:
    rows = made["one source"].repeat(4)
    devices = np.array(jax.devices()[:4])
    meshes = {4: (devices, ("data",)), 2: (devices.reshape(2, 2), ("data", "model"))}
    plain = list(jaxdata.Loader(rows, batch_size=32, drop_remainder=True))
    for shards, mesh in meshes.items():
        sharding = NamedSharding(Mesh(*mesh), PartitionSpec("data"))
        ours = jaxdata.Loader(
            rows, batch_size=32, sharding=sharding, balance="attention", expand=expand
        )
        worst = []
        for step, (batch, expected) in enumerate(zip(ours, plain, strict=False)):
            work = parts_of(batch, shards)
            worst.append(work.max() / work.mean())
            assert as_set({n: np.asarray(a) for n, a in batch.items()}) == as_set(expected)
            numbers = ours.batch_rows(step)
            assert (np.asarray(batch["inputs"])[3] == rows[int(numbers[3])]["inputs"]).all()
        assert np.mean(worst) < 1.03


def test_a_later_pass_is_dealt_by_its_own_rows(made: dict[str, Any]) -> None:
    rows = made["one source"]
    make = partial(jaxdata.Loader, rows, batch_size=16, balance="attention", reiterable=True)
    group = [make(shard=(host, 4)) for host in range(4)]
    for _ in joined(group):
        pass
    again = next(joined([iter(one) for one in group]))
    work = parts_of(again, 4)
    assert work.max() / work.mean() < 1.03
    assert group[0].passes == 1
    assert group[0].batch_rows(0).tolist() == group[1].batch_rows(0).tolist()


ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([9] * 40)), seq_len=32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"balance": "tokens"}, "balance='tokens': expected 'attention', or {'attention': window}"),
        ({"balance": {"attention": 0}}, "balance={'attention': 0}: expected 'attention', or"),
        ({"balance": {"window": 9}}, "balance={'window': 9}: expected 'attention', or"),
        ({"microbatches": 0}, "microbatches=0: expected at least 1"),
        (
            {"microbatches": 3, "shard": (0, 2)},
            "microbatches=3 cannot divide the 4 rows that each of 2 parts has of batch_size=8: "
            "choose a batch_size that is a multiple of 6",
        ),
        (
            {"balance": "attention", "rows": ROWS[:8]},
            "balance and microbatches are made even by the segments of rows, which are not known",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        jaxdata.Loader(given.pop("rows", ROWS), batch_size=8, **given)
    assert message in str(caught.value)


def test_processes_compare_how_they_deal_rows(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    compare = "jaxdata.feed.loader.compare_states"
    monkeypatch.setattr(compare, lambda _board, state: seen.append(state))
    for settings_ in ({}, {"balance": {"attention": 7}}, {"microbatches": 2}):
        one = jaxdata.Loader(made["mixed"], batch_size=8, shard=(1, 2), **settings_)
        one.board = object()  # type: ignore[assignment]
        next(one)
    plain, balanced, micro = seen
    assert not {"balance", "shards"} & plain.keys()
    assert (balanced["balance"], balanced["shards"]) == ({"attention": 7}, {8: 2})
    assert (micro["balance"], micro["microbatches"]) == (None, 2)


def test_of_lanes_few_rows_move_and_a_host_knows_which(made: dict[str, Any]) -> None:
    make = partial(jaxdata.Loader, made["lanes"], batch_size=24)
    moved = 0
    for host in range(2):
        share = make(shard=(host, 2), balance="attention").maker().share
        plain = make(shard=(host, 2)).maker().share
        spans = list(make().schedule.spans())[:3]
        mine = set(np.concatenate(plain.rows(spans)).tolist())
        here = set(np.concatenate(share.rows(spans)).tolist())
        own, others = (set(each.tolist()) for each in share.own_and_moved(spans))
        assert (own, others) == (here & mine, here - mine)
        moved += len(others)
        rows, none = plain.own_and_moved(spans)
        assert set(rows.tolist()) == mine
        assert not len(none)
    assert 0 < moved < 3 * 24 * 0.4
