"""Batches are their rows, whoever makes which; and every part of one has equal work."""

import hashlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.schedule import evened
from jaxdata.testing import distinct_documents
from jaxdata.testing.proofs import joined
from tests.builders import dataset

CHANCE = np.random.default_rng(7)
LENGTHS = {"web": CHANCE.integers(2, 30, 150), "code": CHANCE.integers(2, 66, 100)}
KINDS = ["one source", "mixed", "lanes", "amended", "mapped"]
KNOWN: dict[str, dict[int, Any]] = {}
"""rows of each kind, one by one"""
ARRAYS = ("inputs", "targets", "loss_mask", "segment_ids", "positions")
POOLS = {"chunk_bytes": 200, "block_bytes": 800, "lanes": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Rows of every kind, of sources with masks and a side array, one of them through a view."""
    lengths = {name: each.tolist() for name, each in LENGTHS.items()}
    masks = {name: [np.arange(n) % 3 > 0 for n in each] for name, each in lengths.items()}
    side = {name: {"weight": [np.arange(n) * 0.5 for n in each]} for name, each in lengths.items()}
    folder = dataset(tmp_path_factory.mktemp("balance") / "d", lengths, masks=masks, side=side)
    jaxdata.select(folder, "d1", where="tokens > 3", sources=["web"])
    opened = jaxdata.open_dataset(folder).with_views({"train/web": "d1"})

    def packed(**settings: Any) -> dict[str, Any]:
        docs = {name: opened.source("train", name) for name in LENGTHS}
        return {name: jaxdata.pack(each, **settings) for name, each in docs.items()}

    phases = [jaxdata.Phase(rows=90, weights={"web": 2, "code": 1})]
    how: Any = {"phases": phases, "epochs": {"web": 2, "code": 2}, "on_exhaustion": "renormalize"}
    mixed, lanes = (jaxdata.mix(packed(seq_len=64, **more), **how) for more in ({}, POOLS))
    alone = packed(seq_len=64, strategy="pad")["code"]  # rows whose work differs much
    rows = {"one source": alone, "mixed": mixed, "lanes": lanes, "mapped": mixed.map(dict)}
    rows["amended"] = mixed.amend(37, rows=packed(seq_len=32))
    yield rows
    rows.clear()


def work_of(batch: Any) -> np.ndarray:
    """What attention costs in each row of a batch, from its arrays."""
    rows = np.asarray(batch["segment_ids"]).tolist()
    return np.array([sum(ids.count(one) ** 2 for one in {*ids} - {0}) for ids in rows])


def unevenness(batch: Any, parts: int) -> float:
    """What the part with most work does, of the mean."""
    work = work_of(batch).reshape(parts, -1).sum(axis=1)
    return float(work.max() / work.mean())


@settings(max_examples=12)
@given(st.data())
def test_batches_are_the_rows_that_the_schedule_says_whoever_has_them(made: Any, draw: Any) -> None:
    """Hosts together have each row of a step once, as the dataset itself has it; else padding."""
    kind, hosts = draw.draw(st.sampled_from(KINDS)), draw.draw(st.sampled_from([1, 2, 4]))
    micro = draw.draw(st.sampled_from([1, 3]))
    rows, known = made[kind], KNOWN.setdefault(kind, {})
    sizes = [hosts * micro * draw.draw(st.integers(1, 3)) for _ in range(2)]
    size = [(0, sizes[0]), (20, sizes[1])] if draw.draw(st.booleans()) else sizes[0]
    given: dict[str, Any] = {"batch_size": size}
    given["skip_rows"] = draw.draw(st.sampled_from([[], [(5, 9)]]))
    given["extras"] = () if kind == "mapped" else ("weight", "source")
    given["prefetch"] = draw.draw(st.sampled_from([0, 2]))
    given["drop_remainder"] = draw.draw(st.booleans())
    work = draw.draw(st.sampled_from([None, "attention", {"attention": 9}]))
    ours = given | {"balance": work, "microbatches": micro}
    plain = jaxdata.Loader(rows, **given)
    group = [jaxdata.Loader(rows, shard=(host, hosts), **ours) for host in range(hosts)]
    start = draw.draw(st.integers(0, len(plain) - 1))
    for one in (plain, *group):
        one.seek(step=start)
    both = islice(zip(plain, joined(group), strict=True), 5)
    for step, (expected, found) in enumerate(both, start):
        assert {one.next_row for one in group} == {plain.next_row}
        for one, batch in ((plain, expected), (group[-1], found)):
            numbers = one.batch_rows(step).tolist()
            assert sorted(numbers) == plain.schedule.batch_rows(step).tolist()
            filled = np.flatnonzero(work_of(batch))
            assert one.step_of_row(numbers[-1]) == (step, filled[-1])
            for at, number in zip(filled, numbers, strict=True):
                if number not in known:
                    known[number] = rows[number]
                own = known[number]
                assert all(np.array_equal(batch[name][at], own[name]) for name in ARRAYS)
            empty = np.delete(np.arange(len(batch["inputs"])), filled)
            assert not any(batch[name][empty].any() for name in {*batch} & {*ARRAYS, "weight"})
        for name in given["extras"]:
            assert np.array_equal(np.sort(found[name], axis=0), np.sort(expected[name], axis=0))
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
        after, before = alone[group].sum(axis=1), alone.reshape(parts, -1).sum(axis=1)
        assert after.max() <= before.max() or not keep
        if rows >= 8 * parts:  # a swap more would not help: hardly more than the mean and a row
            assert after.max() <= 1.01 * after.mean() + alone.max() / 2


@pytest.mark.parametrize(("rows", "most"), [(32, 1.09), (64, 1.01), (4_000, 1.005)])
def test_rows_of_real_lengths_are_dealt_evenly(rows: int, most: float) -> None:
    work = np.random.default_rng(2).lognormal(12, 0.5, (20, rows)).astype(np.int64)
    for keep in (False, True):
        load = np.take_along_axis(work[:, None], evened(work, 8, keep=keep), axis=2).sum(axis=2)
        assert (load.max(axis=1) / load.mean(axis=1)).mean() < most + 0.03 * keep


DEALT = {"one source": "a096be2ce40e99eb", "lanes": "54fe13e69d98424e"}


@pytest.mark.parametrize(("kind", "digest"), DEALT.items())
def test_what_is_dealt_stays_the_same(made: dict[str, Any], kind: str, digest: str) -> None:
    dealt = {"shard": (1, 2), "balance": "attention", "microbatches": 4}
    loader = jaxdata.Loader(made[kind], batch_size=32, prefetch=0, **dealt)
    rows = np.concatenate([loader.batch_rows(step) for step in range(len(loader))])
    assert hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_one_part_with_all_the_work_gives_it_away() -> None:
    work = np.where(np.arange(64) < 8, 1000, 1)
    [dealt] = evened(work[None], 8, keep=True)
    assert {*work[dealt].sum(axis=1).tolist()} == {1007}


def test_hosts_micro_batches_and_data_shards_have_equal_work(made: dict[str, Any]) -> None:
    """Of 4 hosts, of the 4 parts of each, of 2 shards of a mesh; and the padding is shared out."""
    rows = made["one source"].repeat(8)
    make = partial(jaxdata.Loader, rows, batch_size=64)
    for settings_, parts, least, most in (
        ({}, 4, 1.15, 9.0),
        ({"balance": "attention"}, 4, 1.0, 1.01),
        ({"balance": "attention", "microbatches": 4}, 16, 1.0, 1.1),
        ({"microbatches": 4}, 4, 1.1, 9.0),
    ):
        group = [make(shard=(host, 4), **settings_) for host in range(4)]
        assert least <= unevenness(next(joined(group)), parts) < most
    assert unevenness(next(make(microbatches=4)), 4) < 1.02
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    assert unevenness(next(make(sharding=sharding, balance="attention")), 2) < 1.01
    group = [make(shard=(host, 4), balance="attention") for host in range(4)]
    for one in group:
        one.seek(step=len(one) - 1)
    padding = [int((work_of(batch) == 0).sum()) for batch in map(next, group)]
    assert sum(padding) == -len(rows) % 64
    assert max(padding) - min(padding) <= 2


ROWS = jaxdata.pack(jaxdata.ArrayDocuments(distinct_documents([9] * 40)), seq_len=32)


REFUSED: list[Any] = [
    ({"balance": "tokens"}, "balance='tokens': expected 'attention', or {'attention': window}"),
    ({"balance": {"attention": 0}}, "balance={'attention': 0}: expected 'attention', or"),
    ({"microbatches": 0}, "microbatches=0: expected at least 1"),
    ({"microbatches": 3, "shard": (0, 2)}, "the 4 rows that each of 2 parts has of batch"),
    ({"balance": "attention", "rows": ROWS[:8]}, "segments of rows, which are not known"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_cannot_be_balanced_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        jaxdata.Loader(given.pop("rows", ROWS), batch_size=8, **given)
    assert message in str(caught.value)
