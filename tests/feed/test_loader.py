"""What a loader delivers: the same batches, whoever makes them and wherever they go."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.testing import assert_same_batches, assert_same_on_hosts, distinct_documents

DOCUMENTS = jaxdata.ArrayDocuments(
    distinct_documents(np.random.default_rng(0).integers(1, 120, 400)), name="train/a"
)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32, block_bytes=12800)


def loader(batch_size: Any = 24, rows: Any = ROWS, **settings: Any) -> jaxdata.Loader:
    return jaxdata.Loader(rows, batch_size=batch_size, **settings)


REFERENCE = list(loader(prefetch=0))


@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_and_prefetch_change_nothing(num_workers: int) -> None:
    one = loader(num_workers=num_workers, prefetch=5)
    assert assert_same_batches(one, REFERENCE) == len(REFERENCE) == len(one)


def test_hosts_have_their_part_of_the_batch_and_the_last_one_is_completed_or_dropped() -> None:
    """Of 24 hosts, some have no row at all in the last batch, and the same number of steps."""
    assert assert_same_on_hosts(lambda shard: loader(shard=shard), [3, 24]) == len(REFERENCE)
    empty, last = -len(ROWS) % 24, REFERENCE[-1]
    assert not any(array[-empty:].any() for array in last.values())
    assert last["segment_ids"][:-empty].any(axis=1).all()
    assert_same_batches(loader(drop_remainder=True), REFERENCE[:-1])


MESHES = {
    "data, two axes": ((2, 2), PartitionSpec(("x", "y"))),
    "data x model": ((2, 2), PartitionSpec("x")),
    "batch x sequence": ((2, 2), PartitionSpec("x", "y")),
    "sequence": ((4,), PartitionSpec(None, "x")),
}


def on_mesh(name: str) -> NamedSharding:
    shape, spec = MESHES[name]
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), ("x", "y")[: len(shape)])
    return NamedSharding(mesh, spec)


@pytest.mark.parametrize("name", MESHES)
def test_any_sharding_gives_the_same_global_batch_which_never_changes(name: str) -> None:
    sharding = on_mesh(name)
    kept = list(loader(sharding=sharding))
    assert all(array.sharding == sharding for array in kept[0].values())
    assert_same_batches(kept, REFERENCE)
    own = next(loader())
    own["inputs"][:] = -1  # belongs to the caller
    assert_same_batches([next(loader())], REFERENCE[:1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected a whole number of at least 1"),
        ({"skip_rows": [(3, 3)]}, "cannot skip rows (3, 3): expected (a, b) with 0 <= a < b <= "),
        ({"skip_rows": 4}, "skip_rows: 4: expected pairs of rows, like [(4000, 4800)]"),
        ({"skip_rows": [(1, 2.5)]}, "skip_rows: [(1, 2.5)]: expected pairs of rows"),
        ({"num_workers": -1}, "num_workers=-1: expected at least 0"),
        ({"shard": (2, 2)}, "shard=(2, 2): expected (i, n) with 0 <= i < n"),
        ({"batch_size": [(0, 24), (70, 12)], "shard": (0, 24)}, "batch_size=12 cannot be divided"),
        ({"batch_size": 6, "sharding": 4}, "a batch of 6 rows of 32 does not divide over"),
        ({"sharding": 4, "shard": (0, 1)}, "give sharding= (jax arrays) or shard=(i, n) (nump"),
        ({"expand": "gpu"}, "expand='gpu': expected 'host' or 'device'"),
        ({"expand": "device"}, "expand='device' makes arrays on devices: give sharding= with"),
        ({"sharding": 1, "expand": "device", "rows": ROWS.map(dict)}, "but these were transform"),
        ({"sharding": 1, "expand": "device", "objective": {"mtp": 2}}, "is made on the host"),
        ({"rows": DOCUMENTS}, "a loader is given rows, not a ArrayDocuments: pack a source"),
        ({"rows": "data/mine"}, "a loader is given rows, not a str: pack a source first"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    if devices := settings.get("sharding"):  # forks import this module: JAX begins with its devices
        mesh = Mesh(np.array(jax.devices()[:devices]), ("x",))
        settings = settings | {"sharding": NamedSharding(mesh, PartitionSpec("x"))}
    with pytest.raises(InputError) as caught:
        loader(**settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [{"prefetch": 0}, {"prefetch": 2}, pytest.param({"num_workers": 1}, marks=pytest.mark.slow)],
)
def test_an_error_while_reading_reaches_the_trainer(settings: dict[str, Any]) -> None:
    def broken(row: Any) -> Any:
        raise ZeroDivisionError("in the user's function")

    one = loader(rows=ROWS.map(broken), **settings)
    for _ in range(1 + ("prefetch" in settings)):  # an error is no end
        with pytest.raises(ZeroDivisionError, match="in the user's function"):
            next(one)
    assert one.wait_seconds > 0
    one.close()


def test_a_loader_tells_of_itself() -> None:
    one = loader([(0, 24), (70, 12)])
    assert repr(one) == f"Loader({len(ROWS)} rows in {len(one)} batches, at row 0)"
    assert repr(loader(10**4)).endswith(" rows in 1 batch, at row 0)")
    assert (one.batch_sizes, one.reiterable) == ([(0, 24), (70, 12)], False)
    assert (one.reads, one.halt(), one.step_of_row(len(ROWS))) == (None, None, None)
    pools = jaxdata.pack(DOCUMENTS, seq_len=32, lanes=8, chunk_bytes=400, block_bytes=1600)
    other = loader(rows=pools)
    assert other.batch_rows(3).tolist() != sorted(other.batch_rows(3)), "lanes are sorted"


def test_a_row_of_your_own_is_delivered_as_a_batch_is() -> None:
    one = loader(sharding=on_mesh("data x model"), layout="maxtext")
    assert_same_batches([one.sample()], REFERENCE[:1])
    assert_same_batches([one.deliver(one.sample())], [next(one)])
    on_device = loader(sharding=on_mesh("data x model"), expand="device")
    with pytest.raises(InputError, match="expand='device' delivers no arrays of your own: use"):
        on_device.deliver(one.sample())


def test_an_objective_is_made_of_packed_rows_on_any_hosts() -> None:
    made = loader(objective={"mtp": 2})
    assert next(made)["mtp_targets"].shape == (24, 32, 2)
    assert assert_same_on_hosts(lambda shard: loader(shard=shard, objective={"mtp": 2}), [24]) > 10
    side = jaxdata.ArrayDocuments([[7, 8, 0]] * 4, [[0, 1, 1]] * 4)
    pairs = jaxdata.pairs(side, side, seq_len=4)
    with pytest.raises(InputError, match="objective mtp takes packed rows, and not pairs"):
        next(loader(4, pairs, objective={"mtp": 2}))
