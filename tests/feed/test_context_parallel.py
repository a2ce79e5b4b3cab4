"""The order of slots for context parallelism: undone to the bit, and what each device holds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.context_parallel import head_tail, in_row_order
from jaxdata.testing import distinct_documents

LENGTHS = [40, 9, 5, 30, 17, 3, 21, 12, 28, 60, 7, 14]
DOCS = jaxdata.ArrayDocuments(
    distinct_documents(LENGTHS), side={"weight": [np.arange(n, dtype=np.float32) for n in LENGTHS]}
)
ROWS = jaxdata.pack(DOCS, seq_len=32)


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


PARTS, WIDTH = 4, 4
WIDTHS = {"embed": (64, WIDTH), **dict.fromkeys("qkv", (WIDTH, WIDTH)), "out": (WIDTH, 64)}
CHANCE = np.random.default_rng(0)
WEIGHTS = {name: CHANCE.normal(size=shape).astype("float32") for name, shape in WIDTHS.items()}


def loss_of(weights: Any, batch: Any, by_document: bool, gathered: Any, slots: Any) -> Any:
    """Of attention; `gathered` brings the keys of all devices, whose slots are `slots[1]`."""
    x = weights["embed"][batch["inputs"] % 64] + jnp.sin(batch["positions"])[..., None]
    ids, own = batch["segment_ids"], slots[0]
    k, v, all_ids = gathered(x @ weights["k"]), gathered(x @ weights["v"]), gathered(ids)
    seen = (own[:, None] >= slots[1])[None]
    if by_document:
        seen = seen & (ids[:, :, None] == all_ids[:, None, :])
    scores = jnp.where(seen, jnp.einsum("bqw,bkw->bqk", x @ weights["q"], k), -jnp.inf)
    logits = jax.nn.log_softmax(jax.nn.softmax(scores) @ v @ weights["out"])
    losses = -jnp.take_along_axis(logits, batch["targets"][..., None] % 64, -1)[..., 0]
    return (losses * batch["loss_mask"]).sum(), batch["loss_mask"].sum()


def whole(weights: Any, batch: Any, by_document: bool) -> Any:
    slots = jnp.arange(32)
    total, count = loss_of(weights, batch, by_document, lambda array: array, (slots, slots))
    return total / count


def cut(mesh: Mesh, by_document: bool) -> Any:
    """The same where each device knows its slots from its number alone, as kernels do."""

    def slots(part: Any) -> Any:
        chunks = jnp.stack([part, 2 * PARTS - 1 - part])
        return (chunks[:, None] * 4 + jnp.arange(4)).ravel()

    def local(weights: Any, batch: Any) -> Any:
        def gathered(array: Any) -> Any:
            return jax.lax.all_gather(array, "context", axis=1, tiled=True)

        every = jnp.concatenate([slots(part) for part in range(PARTS)])
        places = slots(jax.lax.axis_index("context")), every
        sums = loss_of(weights, batch, by_document, gathered, places)
        total, count = jax.lax.psum(sums, "context")
        return total / count

    spec = PartitionSpec(None, "context")
    return jax.shard_map(
        local, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=PartitionSpec()
    )


@pytest.mark.slow
@pytest.mark.parametrize("by_document", [False, True])
def test_devices_have_the_loss_and_gradients_of_one_only_in_this_order(by_document: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:PARTS]), ("context",))
    sharding = NamedSharding(mesh, PartitionSpec(None, "context"))
    rows = jaxdata.pack(DOCS, seq_len=32, positions="segment" if by_document else "row")
    one = jax.value_and_grad(whole)(WEIGHTS, next(jaxdata.Loader(rows, batch_size=4)), by_document)
    ring = jax.jit(jax.value_and_grad(cut(mesh, by_document)))
    for parts in (PARTS, 1):
        given = {"sharding": sharding, "context_parallel": parts}
        found = ring(WEIGHTS, next(jaxdata.Loader(rows, batch_size=4, **given)))
        close = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-5), one, found)
        assert all(jax.tree.leaves(close)) == (parts == PARTS)


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
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "context"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"context_parallel": 3}, "choose a seq_len that is a multiple of 6"),
        ({"context_parallel": 0}, "context_parallel=0: expected at least 1"),
        (
            {"context_parallel": 2, "layout": {"megatron": {"cu_seqlens": True}}},
            "cu_seqlens with context_parallel=2: they say where documents begin in a row",
        ),
        (
            {"context_parallel": 2, "layout": flat},
            "context_parallel=2: '' has shape (128,), of which no axis after the first is the",
        ),
    ],
)
def test_what_makes_no_sense_in_another_order_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        next(jaxdata.Loader(ROWS, batch_size=4, prefetch=0, **given))
    assert message in str(caught.value)
