from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import DatasetError, InputError
from jaxdata.packing import planner
from jaxdata.packing.block_plan import BlockTable
from jaxdata.packing.planner import Planner
from jaxdata.packing.settings import PackSettings
from jaxdata.testing import (
    assert_exactly_once,
    assert_same_batches,
    distinct_documents,
    write_dataset,
)


def source(count: int = 300, name: str = "documents", seed: int = 0) -> jaxdata.ArrayDocuments:
    rng = np.random.default_rng(seed)
    return jaxdata.ArrayDocuments(distinct_documents(rng.integers(1, 90, count)), name=name)


def first_targets(rows: object, count: int) -> list[int]:
    return [int(rows[k]["targets"][0]) for k in range(count)]


def test_an_epoch_has_the_same_rows_in_another_order() -> None:
    rows = jaxdata.pack(source(), seq_len=64, order=1, block=64)
    n = len(rows)
    epochs = [[rows[e * n + k]["inputs"].tobytes() for k in range(n)] for e in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1


def test_the_first_epoch_is_shuffled_too() -> None:
    rows = jaxdata.pack(source(2_000), seq_len=64)
    lengths = [int((rows[k]["segment_ids"] == 1).sum()) for k in range(len(rows))]
    half = len(lengths) // 2
    # Best-fit decreasing would put all the longest first.
    assert abs(np.mean(lengths[:half]) - np.mean(lengths[half:])) < 0.1 * np.mean(lengths)


def test_orders_differ_between_seeds_and_sources() -> None:
    orders = [
        first_targets(jaxdata.pack(source(name=name), seq_len=64, seed=seed), 20)
        for name in ("train/web", "train/code")
        for seed in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


@given(st.lists(st.integers(0, 10**6), max_size=30))
def test_rows_do_not_depend_on_what_was_asked_before(indices: list[int]) -> None:
    docs = source(50)
    warm = jaxdata.pack(docs, seq_len=32, order=1, block=8)
    for index in indices:
        cold = jaxdata.pack(docs, seq_len=32, order=1, block=8)
        assert_same_batches([warm[index]], [cold[index]])


def test_blocks_end_at_documents_or_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_WINDOWS", 10)
    windows = [1, 2, 3, 4, 25, 1, 1, 10, 1]
    docs = jaxdata.ArrayDocuments(distinct_documents([4 * count + 1 for count in windows]))
    settings = PackSettings(seq_len=4, order=1, block=3, shuffle=False)
    table = BlockTable.of(Planner(docs, settings).table())
    assert list(zip(table.first.tolist(), table.documents.tolist(), strict=True)) == [
        (0, 3),
        (3, 1),
        (4, 1),  # more windows than a block may have: alone
        (5, 2),
        (7, 1),
        (8, 1),
    ]
    assert table.rows.tolist() == [6, 4, 25, 2, 10, 1]


def test_all_cores_plan_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 400)
    dataset = write_dataset(tmp_path, {"train/a": distinct_documents(lengths)})
    docs, settings = dataset.source("train", "a"), PackSettings(seq_len=16, order=1, block=3)
    alone = Planner(docs, settings).table()
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(planner, "_WORTH_WORKERS", 2)
    monkeypatch.setattr(planner, "_A_TASK", 30)
    with_workers = Planner(docs, settings).table(lambda done, total: seen.append((done, total)))
    assert np.array_equal(with_workers, alone)
    assert seen == [(done, 134) for done in range(135)], "the total before the first"


@given(st.integers(0, 300), st.integers(1, 40))
def test_runs_of_neighbours_are_dealt_together(count: int, run: int) -> None:
    docs = jaxdata.ArrayDocuments([[1, 2]] * count)
    shuffled = Planner(docs, PackSettings(seq_len=4, order=1, shuffle_run=run)).order.documents_of(
        (0, count)
    )
    assert sorted(shuffled.tolist()) == list(range(count))
    whole = shuffled[: count // run * run].reshape(-1, run)
    assert (whole - whole[:, :1] == np.arange(run)).all()
    assert (whole[:, 0] % run == 0).all()


def test_runs_make_other_rows_and_lose_nothing() -> None:
    docs = source(500)
    rows = jaxdata.pack(docs, seq_len=64, order=1, block=64, shuffle_run=16)
    assert_exactly_once([rows[k] for k in range(len(rows))], [docs])
    assert first_targets(rows, 20) != first_targets(
        jaxdata.pack(docs, seq_len=64, order=1, block=64), 20
    )


def test_it_is_a_map_dataset() -> None:
    rows = jaxdata.pack(source(), seq_len=32)
    assert isinstance(rows, grain.MapDataset)
    lengths = rows.map(lambda row: int(row["loss_mask"].sum()))
    assert sum(lengths[k] for k in range(len(lengths))) == rows.plan.trained_tokens
    batch = rows.batch(4)[0]
    assert batch["inputs"].shape == (4, 32)
    assert np.array_equal(batch["inputs"][3], rows[3]["inputs"])
    assert np.array_equal(rows[-1]["inputs"], rows[len(rows) - 1]["inputs"])
    assert len(rows[10:20]) == 10
    assert np.array_equal(rows[10:20][3]["inputs"], rows[13]["inputs"])
    twice = rows.repeat(2)
    assert len(twice) == 2 * len(rows)
    assert np.array_equal(twice[len(rows)]["inputs"], rows[len(rows)]["inputs"])
    iterated = list(rows.to_iter_dataset())
    assert len(iterated) == len(rows)
    assert np.array_equal(iterated[7]["inputs"], rows[7]["inputs"])


def test_grains_elastic_iterator_takes_them() -> None:
    rows = jaxdata.pack(source(), seq_len=32).map(lambda row: row["inputs"])
    options = [grain.sharding.ShardOptions(shard_index=k, shard_count=2) for k in range(2)]
    hosts = [grain.experimental.ElasticIterator(rows, 8, option) for option in options]
    first = [next(host) for host in hosts]
    # Its hosts take rows in turn.
    assert all(np.array_equal(first[k % 2][k // 2], rows[k]) for k in range(8))


def test_grains_own_workers_take_them(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train/a": distinct_documents([20] * 50)})
    rows = jaxdata.pack(jaxdata.open_dataset(tmp_path).source("train", "a"), seq_len=32)
    there = pickle.loads(pickle.dumps(rows))
    assert_same_batches([there[k] for k in range(5)], [rows[k] for k in range(5)])


def test_plans_are_kept_in_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 50)})
    docs = dataset.source("train", "a")
    expected = jaxdata.pack(docs, seq_len=32)
    assert len(list((tmp_path / "d/plans").glob("*.npy"))) == 1

    def fail(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(Planner, "measure", fail)
    again = jaxdata.pack(docs, seq_len=32)
    assert again.plan == expected.plan
    with pytest.raises(AssertionError, match="planned again"):
        jaxdata.pack(docs, seq_len=33)


def test_a_damaged_plan_is_made_again(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 50)})
    expected = jaxdata.pack(dataset.source("train", "a"), seq_len=32).plan
    plan = next((tmp_path / "d/plans").glob("*.npy"))
    for damaged in (b"", plan.read_bytes()[:100], b"not an array"):
        plan.write_bytes(damaged)
        assert jaxdata.pack(dataset.source("train", "a"), seq_len=32).plan == expected


def test_plans_of_a_dataset_that_cannot_be_written_go_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "d", {"train/a": distinct_documents([20] * 50)})
    (tmp_path / "d/plans").write_bytes(b"a file in the way refuses the folder, even to root")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    jaxdata.pack(dataset.source("train", "a"), seq_len=32)
    assert len(list((tmp_path / "cache/plans").glob("*.npy"))) == 1


def test_a_moved_dataset_gives_the_same_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path / "one", {"train/a": distinct_documents([20, 30] * 50)})
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    a, b = (
        jaxdata.Loader(
            jaxdata.pack(jaxdata.open_dataset(tmp_path / name).source("train", "a"), seq_len=32),
            batch_size=4,
        )
        for name in ("one", "two")
    )
    next(a)
    b.set_state(a.get_state())
    assert_same_batches(list(a), list(b))


def test_evaluation_rows_are_every_source_once_in_order(tmp_path: Path) -> None:
    documents = distinct_documents(np.random.default_rng(0).integers(1, 60, 90))
    dataset = write_dataset(tmp_path, {"val/b": documents[:40], "val/a": documents[40:]})
    rows = jaxdata.evaluation_rows(dataset, "val", seq_len=48)
    targets = [row["targets"][row["loss_mask"]] for row in (rows[k] for k in range(len(rows)))]
    assert sorted(np.concatenate(targets)) == sorted(np.concatenate([d[1:] for d in documents]))
    starts = np.array([int(rows[k]["inputs"][0]) for k in range(len(rows))])
    second = starts < documents[40][0]  # source b, whose ids are the lower ones, comes second
    assert second.tolist() == sorted(second.tolist())
    assert (np.diff(starts[~second]) > 0).all()
    assert (np.diff(starts[second]) > 0).all()
    capped = jaxdata.evaluation_rows(dataset, "val", seq_len=48, eval_tokens=100)
    assert len(capped) == 3
    assert_same_batches([capped[k] for k in range(3)], [rows[k] for k in range(3)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len=0: expected at least 1"),
        ({"strategy": "tetris"}, "strategy='tetris': expected pad | concat | crop | best_fit"),
        ({"overlap": 9}, "overlap=9: expected 0 to seq_len/2 = 8"),
        ({"positions": "x"}, "positions='x': expected segment | row"),
        ({"max_segments": 0}, "max_segments=0: expected at least 1, or None"),
        ({"shuffle_run": 0}, "shuffle_run=0: expected at least 1"),
        ({"strategy": "concat", "overlap": 2}, "use overlap=0, or strategy 'best_fit' or 'pad'"),
        ({"strategy": "crop", "overlap": 2}, "crop cuts no windows that could overlap"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        jaxdata.pack(source(3), **{"seq_len": 16, **settings})
    assert message in str(caught.value)


def test_what_has_no_lengths_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot pack a list: expected a source with lengths"):
        jaxdata.pack([[1, 2]], seq_len=4)


def test_an_empty_source_packs_to_no_rows() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([]), seq_len=4)
    assert len(rows) == 0
    assert list(jaxdata.Loader(rows, batch_size=2)) == []
    assert len(jaxdata.pack(jaxdata.ArrayDocuments([[0], [0]]), seq_len=4)) == 0


def test_opening_what_is_no_dataset_says_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"is not a dataset: it has no dataset\.json"):
        jaxdata.open_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"version": 99}')
    with pytest.raises(DatasetError, match="format version 99; this jaxdata reads version 1"):
        jaxdata.open_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"version": 1')
    with pytest.raises(DatasetError, match=r"dataset\.json is damaged"):
        jaxdata.open_dataset(tmp_path)


def test_an_unknown_source_names_the_nearest(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, {"train/web": [[1, 0]], "val/web": [[1, 0]]})
    assert dataset.splits == {"train": ["web"], "val": ["web"]}
    with pytest.raises(InputError, match=r"no source 'train/wbe'.* did you mean 'train/web'\?"):
        dataset.source("train", "wbe")
    with pytest.raises(InputError, match="no split 'test': the dataset has train, val"):
        jaxdata.evaluation_rows(dataset, "test", seq_len=4)
