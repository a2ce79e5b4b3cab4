"""What the device makes of a compact batch is what the host lays out, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.errors import InputError
from jaxdata.feed.device.expansion import expand
from jaxdata.rows import arrays as assembly
from jaxdata.rows import compact as compaction
from jaxdata.testing import assert_same_batches


def assemble(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(assembly.assemble(table, [rows], size or len(rows)))


def compact(table: Any, rows: np.ndarray, size: int | None = None) -> dict[str, np.ndarray]:
    return next(compaction.compact(table, [rows], size or len(rows)))


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    strategy=st.sampled_from(["best_fit", "concat", "crop", "pad"]),
    positions=st.sampled_from(["segment", "row"]),
    overlap=st.sampled_from([0, 5]),
    masked=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    extra=st.integers(0, 3),
)
def test_it_equals_the_host(
    lengths: list[int],
    strategy: str,
    positions: str,
    overlap: int,
    masked: bool,
    seed: int,
    extra: int,
) -> None:
    rng = np.random.default_rng(seed)
    docs = jaxdata.ArrayDocuments(
        [rng.integers(0, 60_000, n) for n in lengths],
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


@pytest.mark.parametrize("largest", [65_535, 65_536, 200_000])
def test_any_vocabulary(largest: int) -> None:
    docs = jaxdata.ArrayDocuments([[largest, 1, largest], [3, largest]])
    rows = jaxdata.pack(docs, seq_len=4)
    assert_same_batches(
        [expand(compact(rows.table, np.arange(1)))], [assemble(rows.table, np.arange(1))]
    )


def test_few_shapes_are_compiled() -> None:
    rng = np.random.default_rng(0)
    docs = jaxdata.ArrayDocuments([rng.integers(1, 99, n) for n in rng.integers(1, 40, 3_000)])
    rows = jaxdata.pack(docs, seq_len=64)
    widths = {compact(rows.table, np.arange(k, k + 8))["slots"].shape[1] for k in range(0, 900, 8)}
    assert len(widths) <= 3
    assert all(width & (width - 1) == 0 for width in widths)
    assert isinstance(expand(compact(rows.table, np.arange(8)))["inputs"], jax.Array)


MESHES = {"data": (4, 1), "data x model": (2, 2), "batch x sequence": (2, 2)}


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_the_same(name: str, num_workers: int) -> None:
    rng = np.random.default_rng(0)
    docs = jaxdata.ArrayDocuments([rng.integers(1, 99, n) for n in rng.integers(1, 80, 300)])
    rows = jaxdata.pack(docs, seq_len=32, overlap=4)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[name]), ("x", "y"))
    spec = PartitionSpec("x", "y" if name == "batch x sequence" else None)
    settings = {"batch_size": 8, "sharding": NamedSharding(mesh, spec), "num_workers": num_workers}
    on_device = list(jaxdata.Loader(rows, **settings, expand="device"))
    assert_same_batches(on_device, jaxdata.Loader(rows, batch_size=8))
    assert all(array.sharding == settings["sharding"] for array in on_device[0].values())


@pytest.mark.parametrize("expand", ["host", "device"])
def test_batches_are_in_the_memory_that_is_asked_for(expand: str) -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 40), seq_len=32)
    expected = next(jaxdata.Loader(rows, batch_size=4))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    for memory in ("device", "pinned_host"):
        sharding = NamedSharding(mesh, PartitionSpec("x", "y"), memory_kind=memory)
        batch = next(jaxdata.Loader(rows, batch_size=4, sharding=sharding, expand=expand))
        assert {array.sharding for array in batch.values()} == {sharding}
        assert_same_batches([batch], [expected])


@pytest.mark.parametrize("expand", ["host", "device"])
@pytest.mark.parametrize("name", MESHES)
def test_only_batches_are_sent(name: str, expand: str) -> None:
    """With jax_transfer_guard users find transfers that they did not ask for."""
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 40), seq_len=32)
    expected = next(jaxdata.Loader(rows, batch_size=4))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[name]), ("x", "y"))
    spec = PartitionSpec("x", "y" if name == "batch x sequence" else None)
    settings = {"sharding": NamedSharding(mesh, spec), "expand": expand, "prefetch": 0}
    one = jaxdata.Loader(rows, batch_size=4, **settings)
    with jax.transfer_guard("disallow"):
        batch = next(one)
    assert_same_batches([batch], [expected])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"expand": "gpu"}, "expand='gpu': expected 'host' or 'device'"),
        ({"expand": "device"}, "expand='device' makes arrays on devices: give sharding="),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0]]), seq_len=4)
    with pytest.raises(InputError) as caught:
        jaxdata.Loader(rows, batch_size=2, **settings)
    assert message in str(caught.value)


def test_transformed_rows_are_refused() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0]]), seq_len=4).map(dict)
    sharding = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(InputError, match="these were transformed: apply the function to the batch"):
        jaxdata.Loader(rows, batch_size=2, sharding=sharding, expand="device")
