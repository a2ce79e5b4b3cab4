"""Batches on devices, and what processes see of each other."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import DevicePlacement, board_of, check_wide
from jaxdata.testing import assert_same_batches

MESHES = {
    "data, two axes": PartitionSpec(("x", "y")),
    "data x model": PartitionSpec("x"),
    "batch x sequence": PartitionSpec("x", "y"),
    "sequence": PartitionSpec(None, "x"),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_loader_delivers_the_same_where_it_is_asked_for(name: str) -> None:
    """With jax_transfer_guard users find transfers that they did not ask for."""
    rng = np.random.default_rng(0)
    docs = jaxdata.ArrayDocuments([rng.integers(1, 99, n) for n in rng.integers(1, 80, 300)])
    rows = jaxdata.pack(docs, seq_len=32, overlap=4)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    memory = "pinned_host" if name == "data x model" else "device"
    sharding = NamedSharding(mesh, MESHES[name], memory_kind=memory)
    expected = list(jaxdata.Loader(rows, batch_size=8))
    one = jaxdata.Loader(rows, batch_size=8, sharding=sharding, prefetch=0)
    with jax.transfer_guard("disallow"):
        first = next(one)
    assert {array.sharding for array in first.values()} == {sharding}
    assert_same_batches([first, *one], expected)


def test_arrays_of_64_bits_are_refused_where_jax_has_32() -> None:
    check_wide({"document": np.int32, "weight": np.float32, "kind": np.uint8})
    for name, reason in (
        ("document", "since a source has more than 2^31 documents"),
        ("weight", "as it is stored"),
    ):
        with pytest.raises(InputError) as caught:
            check_wide({"kind": np.int8, name: np.int64})
        assert str(caught.value) == (
            f"'{name}' needs 64 bits, {reason}, but JAX is set to 32: set JAX_ENABLE_X64=1, or "
            "remove it from extras"
        )


def test_a_process_without_a_device_and_rows_of_another_shape_are_refused() -> None:
    one = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(InputError, match=r"'x' has rows of shape \(8, 2\); .* be \(8,\)\. Use"):
        DevicePlacement(one, 4, 8).place({"x": np.zeros((4, 8, 2))})
    elsewhere: Any = SimpleNamespace(addressable_devices_indices_map=lambda shape: {"far": None})
    with pytest.raises(InputError, match="none of this process's devices is in namespace"):
        DevicePlacement(elsewhere, 8, 32)
    one = SimpleNamespace(device_set=[SimpleNamespace(process_index=3)] * 2)
    assert board_of(one) is None, "one process is alone"  # type: ignore[arg-type]


def test_a_process_needs_the_rows_that_its_own_devices_hold() -> None:
    held = [
        (slice(2, 4), slice(0, 4)),
        (slice(2, 4), slice(4, 8)),
        (slice(6, 8), slice(0, 4)),
        None,
    ]
    sharding: Any = SimpleNamespace(
        addressable_devices_indices_map=lambda shape: dict(zip(jax.devices(), held, strict=False)),
        device_set=[SimpleNamespace(process_index=n) for n in (0, 0, 1, 3)],
        shard_shape=lambda shape: (2, 4),
        memory_kind=None,
    )
    found = DevicePlacement(sharding, 8, 8)
    assert (found.rows.tolist(), found.hosts, found.shards) == ([2, 3, 6, 7], 3, 4)
