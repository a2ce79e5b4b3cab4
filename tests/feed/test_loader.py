from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from copy import copy as copy_of
from copy import deepcopy
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.errors import InputError, StateMismatch
from jaxdata.testing import (
    assert_exactly_once,
    assert_same_batches,
    distinct_documents,
)

DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 400)), name="train/a"
)
TEXTS = [each["tokens"] for each in DOCUMENTS]
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32, block_bytes=12800)
Loading = Callable[..., jaxdata.Loader]


def loader(batch_size: int = 24, rows: Any = ROWS, **settings: Any) -> jaxdata.Loader:
    return jaxdata.Loader(rows, batch_size=batch_size, **settings)


REFERENCE = list(loader(prefetch=0))


@pytest.mark.parametrize("prefetch", [0, 1, 5])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_workers_and_prefetch_change_nothing(num_workers: int, prefetch: int) -> None:
    with_them = loader(num_workers=num_workers, prefetch=prefetch)
    assert assert_same_batches(with_them, REFERENCE) == len(REFERENCE) == len(with_them)


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 24])
def test_shards_concatenated_are_the_batch(shards: int) -> None:
    parts = [list(loader(shard=(part, shards))) for part in range(shards)]
    joined = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in parts[0][step]}
        for step in range(len(parts[0]))
    ]
    assert_same_batches(joined, REFERENCE)


MESHES = {
    "data": ((4,), PartitionSpec("x")),
    "data, two axes": ((2, 2), PartitionSpec(("x", "y"))),
    "data x model": ((2, 2), PartitionSpec("x")),
    "model only": ((1, 4), PartitionSpec("x")),
    "batch x sequence": ((2, 2), PartitionSpec("x", "y")),
    "sequence": ((4,), PartitionSpec(None, "x")),
}


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_any_sharding_gives_the_same_global_batch(name: str, prefetch: int) -> None:
    shape, spec = MESHES[name]
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), ("x", "y")[: len(shape)])
    sharding = NamedSharding(mesh, spec)
    batches = list(loader(sharding=sharding, prefetch=prefetch))
    assert all(array.sharding == sharding for array in batches[0].values())
    assert_same_batches(batches, REFERENCE)


def test_one_device_is_a_sharding_too() -> None:
    assert_same_batches(loader(sharding=SingleDeviceSharding(jax.devices()[1])), REFERENCE)


def test_the_last_batch_is_completed_with_masked_rows() -> None:
    total = len(ROWS)
    assert total % 24
    last = REFERENCE[-1]
    empty = 24 - total % 24
    assert all(not array[-empty:].any() for array in last.values())
    assert last["segment_ids"][:-empty].any(axis=1).all()
    assert_same_batches(loader(drop_remainder=True), REFERENCE[:-1])
    assert len(loader(drop_remainder=True)) == len(REFERENCE) - 1
    # A host whose part of the last batch has no row at all has the same number of steps.
    parts = [list(loader(shard=(part, 24))) for part in (0, 23)]
    assert len(parts[0]) == len(parts[1]) == len(REFERENCE)


def test_it_is_a_grain_iterator(tmp_path: Path) -> None:
    one = loader()
    assert isinstance(one, grain.DatasetIterator)
    next(one)
    manager = ocp.CheckpointManager(tmp_path.resolve())
    manager.save(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(one)))
    manager.wait_until_finished()
    other = loader()
    manager.restore(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(other)))
    assert_same_batches(other, REFERENCE[1:])


def test_orbax_keeps_its_state_as_json(tmp_path: Path) -> None:
    one = loader()
    next(one)
    with ocp.CheckpointManager(tmp_path.resolve()) as manager:
        saved = ocp.args.JsonSave(one.get_state())
        manager.save(1, args=ocp.args.Composite(loader=saved))
        next(one)  # what is saved is the state at the call
        manager.wait_until_finished()
        found = manager.restore(1, args=ocp.args.Composite(loader=ocp.args.JsonRestore()))
    other = loader(48, shard=(0, 2))
    other.set_state(found["loader"])
    assert np.array_equal(next(other)["inputs"], REFERENCE[1]["inputs"])


def test_a_delivered_batch_never_changes() -> None:
    one = loader(sharding=SingleDeviceSharding(jax.devices()[0]), prefetch=3)
    kept = [(batch, {k: np.array(v) for k, v in batch.items()}) for batch in one]
    for batch, copy in kept:
        assert_same_batches([batch], [copy])
    numpy_batch = next(loader())
    numpy_batch["inputs"][:] = -1  # belongs to the caller
    assert_same_batches([next(loader())], REFERENCE[:1])


def test_transformed_rows_are_loaded_row_by_row() -> None:
    rows = ROWS.map(lambda row: {**row, "weights": row["loss_mask"].astype(np.float32)})
    for num_workers in (0, 2):
        batches = list(loader(rows=rows, num_workers=num_workers))
        assert batches[0]["weights"].dtype == np.float32
        stripped = [{k: v for k, v in b.items() if k != "weights"} for b in batches]
        assert_same_batches(stripped, REFERENCE)
    state = loader(rows=rows).get_state()
    with pytest.raises(StateMismatch, match="seed was 0, is 5"):
        loader(
            rows=jaxdata.pack(DOCUMENTS, seq_len=32, block_bytes=12800, seed=5).map(dict)
        ).set_state(state)


def test_repeated_rows_are_more_epochs() -> None:
    batches = list(loader(rows=ROWS.repeat(2)))
    assert_exactly_once(batches, [DOCUMENTS], epochs=2)
    row_by_row = [ROWS.repeat(2)[k]["inputs"] for k in range(len(ROWS) - 2, len(ROWS) + 2)]
    expected = [ROWS[k]["inputs"] for k in range(len(ROWS) - 2, len(ROWS) + 2)]
    assert np.array_equal(row_by_row, expected)
    endless = loader(rows=ROWS.repeat())
    endless.set_state(loader().get_state())  # one epoch may be prolonged
    assert_same_batches([next(endless) for _ in REFERENCE[:-1]], REFERENCE[:-1])
    same = ROWS.repeat(2, reseed_each_epoch=False)
    assert np.array_equal(same[len(ROWS) + 3]["inputs"], ROWS[3]["inputs"])


def test_filtered_rows_are_refused() -> None:
    rows = ROWS.filter(lambda row: bool(row["inputs"][0] % 2))
    with pytest.raises(InputError, match=r"row \d+ is None: rows cannot be filtered"):
        list(loader(rows=rows))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5: expected a whole number"),
        (
            {"batch_size": [(8, 2)]},
            "batch_size=[(8, 2)]: expected a whole number of at least 1, or",
        ),
        ({"batch_size": [(0, 2), (0, 4)]}, "like [(0, 256), (100_000, 512)]"),
        ({"skip_rows": [(3, 3)]}, "cannot skip rows (3, 3): expected (a, b) with 0 <= a < b <= "),
        ({"skip_rows": 7}, "skip_rows=7: expected pairs of rows, like [(4000, 4800)]"),
        ({"num_workers": -1}, "num_workers=-1: expected a whole number of at least 0"),
        ({"shard": (0, 5)}, "batch_size=24 cannot be divided among 5 shards"),
        ({"shard": (2, 2)}, "shard=(2, 2): expected (i, n) with 0 <= i < n"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        loader(**settings)
    assert message in str(caught.value)


def test_a_sharding_that_does_not_divide_is_refused() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    with pytest.raises(InputError, match="a batch of 6 rows of 32 does not divide over"):
        loader(6, sharding=sharding)
    with pytest.raises(InputError, match="not both"):
        loader(sharding=sharding, shard=(0, 1))


def test_an_error_while_reading_reaches_the_trainer() -> None:
    def broken(row: Any) -> Any:
        raise ZeroDivisionError("in the user's function")

    for settings in ({"prefetch": 0}, {"prefetch": 2}, {"num_workers": 1}):
        one = loader(rows=ROWS.map(broken), **settings)
        for _ in range(2):  # an error is no end
            with pytest.raises(ZeroDivisionError, match="in the user's function"):
                next(one)
        one.close()


def test_closing_leaves_no_thread() -> None:
    gc.collect()
    before = threading.active_count()
    for _ in range(50):
        one = loader(prefetch=3)
        next(one)
        one.close()
    for _ in range(50):
        next(loader(prefetch=3))  # dropped without closing
    gc.collect()
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="closed"):
        next(one)


def test_waiting_is_measured() -> None:
    one = loader(prefetch=0)
    assert one.wait_seconds == 0
    next(one)
    assert one.wait_seconds > 0


@pytest.mark.parametrize("copied", [copy_of, deepcopy, pickle.dumps])
def test_it_is_not_copied_but_made_again(copied: Callable[[Any], Any]) -> None:
    one = loader()
    expected = [next(one), next(one)][1]
    with pytest.raises(InputError, match=r"a Loader is not copied .* call its set_state\("):
        copied(one)
    again = loader()
    again.set_state(one.get_state())
    again.seek(step=1)
    assert_same_batches([next(again)], [expected])
