"""Batches on devices, laid out there as on the host; and what processes see of each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import DevicePlacement, board_of, check_wide, expand
from jaxdata.rows import arrays
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.testing import assert_same_batches
from tests.test_conservation import Case, cases


def assemble(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(arrays.assemble(table, [rows], size or len(rows)))


def compact(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(arrays.compact(table, [rows], size or len(rows)))


@settings(max_examples=5)
@given(cases((*STRATEGIES,)), st.integers(0, 3), st.sampled_from([0, 65_000]))
def test_it_equals_the_host(case: Case, extra: int, least: int) -> None:
    """Also of tokens that take more than 16 bits."""
    docs = jaxdata.ArrayDocuments([each + least for each in case.documents], case.masks)
    rows = jaxdata.pack(docs, **case.settings | {"multiple": 1})
    assume(len(rows))
    some = np.arange(min(len(rows), 4))
    on_host = assemble(rows.table, some, 4 + extra)
    positions = case.settings["positions"]
    on_device = expand(compact(rows.table, some, 4 + extra), positions=positions)
    assert_same_batches([on_device], [on_host])


def test_a_compact_batch_is_an_eighth() -> None:
    docs = jaxdata.ArrayDocuments([np.arange(n) for n in range(8, 20_000, 200)])
    rows, some = jaxdata.pack(docs, seq_len=2048), np.arange(64)
    full, small = assemble(rows.table, some), compact(rows.table, some)
    assert sum(a.nbytes for a in small.values()) < sum(a.nbytes for a in full.values()) / 8
    assert small["tokens"].dtype == np.uint16


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
    for how in ("host", "device"):
        settings = {"sharding": sharding, "expand": how, "prefetch": 0}
        one = jaxdata.Loader(rows, batch_size=8, **settings)
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
