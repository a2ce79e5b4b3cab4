"""The loss of each source of a batch, against going from slot to slot."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from tests.builders import documents

NAMES = ("web", "code", "books")


PACKED = {}
for seed, name in enumerate(NAMES):
    found = documents(30, longest=20, seed=seed, first=1 + 1000 * seed)
    PACKED[name] = jaxdata.pack(jaxdata.ArrayDocuments(found), seq_len=16)
ROWS = jaxdata.mix(PACKED, weights=dict.fromkeys(NAMES, 1))


def slot_by_slot(batch: Any, losses: Any) -> tuple[list[float], list[int]]:
    sums, counts = [0.0] * 4, [0] * 4  # one more than there are
    for row, slot in np.argwhere(np.asarray(batch["loss_mask"])):
        number = int(batch["source"][row, slot])
        sums[number] += float(losses[row, slot])
        counts[number] += 1
    return sums, counts


@settings(max_examples=15)
@given(st.integers(0, 9), st.integers(0, 2**32))
def test_each_target_counts_for_the_source_of_its_slot(step: int, seed: int) -> None:
    loader = jaxdata.Loader(ROWS, batch_size=4, extras=["source"], prefetch=0)
    loader.seek(step=step % len(loader))
    batch = next(loader)
    losses = np.random.default_rng(seed).random((4, 16)).astype(np.float32)
    sums, counts = slot_by_slot(batch, losses)
    for made in (np.asarray, jax.numpy.asarray, torch.from_numpy):
        of, given_ = {name: made(array) for name, array in batch.items()}, made(losses)
        found = jaxdata.losses_by_source(of, given_, sources=4)
        np.testing.assert_allclose(np.asarray(found.sums), sums, rtol=1e-5)
        assert np.asarray(found.counts).tolist() == counts
        needed = jaxdata.losses_by_source(of, given_)
        assert len(needed.sums) == len(needed.counts) == int(batch["source"].max()) + 1


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_global_batch_is_summed_over_devices_also_under_jit(kind: AxisType) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(kind,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    batch = next(jaxdata.Loader(ROWS, batch_size=4, sharding=sharding, extras=["source"]))
    losses = jax.device_put(np.arange(64.0, dtype=np.float32).reshape(4, 16), sharding)
    sums, counts = slot_by_slot(*jax.device_get((batch, losses)))

    @jax.jit
    def inside(batch: Any, losses: Any) -> Any:
        return jaxdata.losses_by_source(batch, losses, sources=4)

    for found in (inside(batch, losses), jaxdata.losses_by_source(batch, losses, sources=4)):
        assert found.sums.tolist() == sums
        assert found.counts.tolist() == counts
        assert found.sums.is_fully_replicated
    with pytest.raises(InputError, match=r"under jax.jit give sources=len\(loader.source_names\)"):
        jax.jit(jaxdata.losses_by_source)(batch, losses)


def test_ranks_are_summed(tmp_path: Any) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        batch = next(jaxdata.torch.Loader(ROWS, batch_size=4, extras=["source"]))
        losses = torch.ones(4, 16, requires_grad=True)
        with pytest.raises(InputError, match="with several ranks give sources=len"):
            jaxdata.losses_by_source(batch, losses)
        sums, counts = jaxdata.losses_by_source(batch, losses, sources=4)
        assert sums.tolist() == counts.tolist() == slot_by_slot(batch, losses)[1]
        assert not sums.requires_grad
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_missing_is_named() -> None:
    batch = next(jaxdata.Loader(ROWS, batch_size=4, extras=["source"]))
    without = {name: array for name, array in batch.items() if name != "source"}
    for given_, slots, says in (
        (without, 16, r'loader with extras=\["source"\]'),
        (batch, 15, r"has the shape \(4, 15\): expected .* \(4, 16\)"),
        ({"source": batch["source"]}, 16, "none of which says where there is loss"),
    ):
        with pytest.raises(InputError, match=says):
            jaxdata.losses_by_source(given_, np.zeros((4, slots)))
