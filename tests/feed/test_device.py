"""Batches on devices, laid out there as on the host; and what processes see of each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import DevicePlacement, board_of, check_wide, expand
from jaxdata.rows import arrays
from jaxdata.testing import assert_same_batches


def assemble(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(arrays.assemble(table, [rows], size or len(rows)))


def compact(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(arrays.compact(table, [rows], size or len(rows)))


@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    strategy=st.sampled_from(["best_fit", "concat", "crop", "pad"]),
    positions=st.sampled_from(["segment", "row"]),
    overlap=st.sampled_from([0, 5]),
    masked=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    extra=st.integers(0, 3),
    largest=st.sampled_from([65_535, 65_536, 200_000]),
)
def test_it_equals_the_host(
    lengths: list[int],
    strategy: str,
    positions: str,
    overlap: int,
    masked: bool,
    seed: int,
    extra: int,
    largest: int,
) -> None:
    rng = np.random.default_rng(seed)
    docs = jaxdata.ArrayDocuments(
        [np.append(rng.integers(0, 60_000, n - 1), largest) for n in lengths],
        [rng.integers(0, 2, n) for n in lengths] if masked else None,
    )
    rows = jaxdata.pack(
        docs,
        seq_len=16,
        strategy=strategy,
        positions=positions,
        overlap=overlap if strategy in ("best_fit", "pad") else 0,
    )
    some = np.arange(min(len(rows), 4))
    on_host = assemble(rows.table, some, 4 + extra)
    on_device = expand(compact(rows.table, some, 4 + extra), positions=positions)
    assert_same_batches([on_device], [on_host])


def test_a_compact_batch_is_an_eighth() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6, 1, 2_000).astype(int).clip(8, 20_000)
    docs = jaxdata.ArrayDocuments([rng.integers(0, 60_000, n) for n in lengths])
    rows = jaxdata.pack(docs, seq_len=2048)
    some = np.arange(64)
    full, small = assemble(rows.table, some), compact(rows.table, some)
    assert sum(a.nbytes for a in small.values()) < sum(a.nbytes for a in full.values()) / 8
    assert small["tokens"].dtype == np.uint16


MESHES = {"data": (4, 1), "batch x sequence": (2, 2)}


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("memory", ["device", pytest.param("pinned_host", marks=pytest.mark.slow)])
def test_a_loader_delivers_the_same_where_it_is_asked_for(name: str, memory: str) -> None:
    """With jax_transfer_guard users find transfers that they did not ask for."""
    rng = np.random.default_rng(0)
    docs = jaxdata.ArrayDocuments([rng.integers(1, 99, n) for n in rng.integers(1, 80, 300)])
    rows = jaxdata.pack(docs, seq_len=32, overlap=4)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[name]), ("x", "y"))
    spec = PartitionSpec("x", "y" if name == "batch x sequence" else None)
    sharding = NamedSharding(mesh, spec, memory_kind=memory)
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
