"""Batches on devices: which rows and slots each holds, and what processes see of each other."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import DevicePlacement, board_of, check_wide
from jaxdata.feed.layouts import head_tail, in_row_order
from jaxdata.testing import assert_same_batches, distinct_documents

LENGTHS = [40, 9, 5, 30, 17, 3, 21, 12, 28, 60, 7, 14]
DOCS = jaxdata.ArrayDocuments(
    distinct_documents(LENGTHS), side={"weight": [np.arange(n, dtype=np.float32) for n in LENGTHS]}
)
ROWS = jaxdata.pack(DOCS, seq_len=32)
MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
MESHES = {"data, two axes": PartitionSpec(("x", "y")), "data x model": PartitionSpec("x")}
MESHES |= {"batch x sequence": PartitionSpec("x", "y"), "sequence": PartitionSpec(None, "x")}


@pytest.mark.parametrize("name", MESHES)
def test_a_loader_delivers_the_same_where_it_is_asked_for(name: str) -> None:
    """With jax_transfer_guard users find transfers that they did not ask for."""
    memory = "pinned_host" if name == "data x model" else "device"
    sharding = NamedSharding(MESH, MESHES[name], memory_kind=memory)
    expected = list(jaxdata.Loader(ROWS, batch_size=4))
    one = jaxdata.Loader(ROWS, batch_size=4, sharding=sharding, prefetch=0)
    with jax.transfer_guard("disallow"):
        first = next(one)
    assert {array.sharding for array in first.values()} == {sharding}
    assert_same_batches([first, *one], expected)


def test_arrays_of_64_bits_are_refused_where_jax_has_32() -> None:
    check_wide({"document": np.int32, "weight": np.float32, "kind": np.uint8})
    with pytest.raises(InputError) as caught:
        check_wide({"kind": np.int8, "document": np.int64})
    assert str(caught.value) == (
        "'document' needs 64 bits, since a source has more than 2^31 documents, but JAX is set to "
        "32: set JAX_ENABLE_X64=1, or remove it from extras"
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
    places = [(2, 4, 0, 4), (2, 4, 4, 8), (6, 8, 0, 4)]
    held = [*((slice(a, b), slice(c, d)) for a, b, c, d in places), None]
    sharding: Any = SimpleNamespace(shard_shape=lambda shape: (2, 4), memory_kind=None)
    on_devices = dict(zip(jax.devices(), held, strict=False))
    sharding.addressable_devices_indices_map = lambda shape: on_devices
    sharding.device_set = [SimpleNamespace(process_index=n) for n in (0, 0, 1, 3)]
    found = DevicePlacement(sharding, 8, 8)
    assert (found.rows.tolist(), found.hosts, found.shards) == ([2, 3, 6, 7], 3, 4)


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, 1, -1]))
def test_part_i_holds_a_chunk_of_the_head_and_one_of_the_tail_and_it_is_undone(
    parts: int, size: int, axis: int
) -> None:
    slots = np.arange(2 * parts * size)
    chunks = slots.reshape(2 * parts, size)
    order = [[part, 2 * parts - 1 - part] for part in range(parts)] if parts > 1 else [0, 1]
    array = np.stack([slots, slots + 100], axis=1 if axis == 0 else 0)
    found = head_tail(array, parts, axis)
    assert found.tolist() == np.take(array, chunks[np.ravel(order)].ravel(), axis).tolist()
    assert in_row_order(found, parts, axis).tolist() == array.tolist()
    assert head_tail(np.arange(3), 1).tolist() == [0, 1, 2], "one part has any number of slots"


@pytest.mark.parametrize("layout", ["jaxdata", {"hf": {"attention_mask": True}}, "megatron"])
def test_every_array_with_slots_is_ordered_and_nothing_else(layout: Any) -> None:
    given = {"batch_size": 4, "layout": layout, "extras": ("source", "weight"), "prefetch": 0}
    plain = next(jaxdata.Loader(ROWS, **given))
    ours = next(jaxdata.Loader(ROWS, **given, context_parallel=4))
    assert ours.keys() == plain.keys()
    for name, array in ours.items():
        assert array.dtype == plain[name].dtype
        back = array
        for axis in [axis for axis, size in enumerate(array.shape) if size == 32]:
            back = in_row_order(back, 4, axis)
        assert back.tobytes() == plain[name].tobytes(), name
        assert array.ndim == 0 or (array != plain[name]).any() or name == "source"


def test_a_device_on_the_axis_of_slots_has_its_two_chunks() -> None:
    sharding = NamedSharding(MESH, PartitionSpec("x", "y"))
    given = {"batch_size": 4, "extras": ("document", "weight"), "prefetch": 0}
    plain = next(jaxdata.Loader(ROWS, **given))
    ours = next(jaxdata.Loader(ROWS, **given, sharding=sharding, context_parallel=2))
    for name, array in ours.items():
        for shard in array.addressable_shards:
            rows, part = shard.index[0], (shard.index[1].start or 0) // 16
            chunks = plain[name][rows].reshape(2, 4, 8)[:, [part, 3 - part]]
            assert np.asarray(shard.data).tobytes() == chunks.tobytes(), name


def flat(batch: Any) -> Any:
    return batch["inputs"].reshape(-1)


STARTS = {"megatron": {"cu_seqlens": True}}


REFUSED: list[Any] = [
    (3, "jaxdata", "choose a seq_len that is a multiple of 6"),
    (0, "jaxdata", "context_parallel=0: expected at least 1"),
    (2, STARTS, "cu_seqlens with context_parallel=2: they say where documents begin in a row"),
    (2, flat, "'' has shape (128,), of which no axis after the"),
]


@pytest.mark.parametrize(("parts", "layout", "message"), REFUSED)
def test_what_makes_no_sense_in_another_order_is_refused(
    parts: int, layout: Any, message: str
) -> None:
    given = {"context_parallel": parts, "layout": layout, "prefetch": 0}
    opened = partial(jaxdata.Loader, ROWS, batch_size=4, **given)
    with pytest.raises(InputError) as caught:
        next(opened()) if layout is flat else opened()  # a function's arrays are not known before
    assert message in str(caught.value)
