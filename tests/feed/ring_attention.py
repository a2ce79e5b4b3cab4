"""Ring attention, by which context parallelism is proved.

`python -m tests.feed.parts.ring_attention`

Each device has a part of the slots of its rows, and the keys and values go round. Which slots it
has it knows from its number alone, as kernels do: chunks *i* and *2n - 1 - i*. Prints, as JSON, how
far losses and gradients of what a loader delivers are from those of one device.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.feed.context_parallel import in_row_order
from jaxdata.testing import distinct_documents

PARTS, SEQ_LEN, WIDTH = 4, 32, 4


def parameters() -> Any:
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"embed": (64, WIDTH), "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}
    made = {
        name: jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    return made | {"out": jax.random.normal(keys[4], (WIDTH, 64))}


def projected(weights: Any, batch: Any) -> tuple[Any, Any, Any]:
    x = weights["embed"][batch["inputs"] % 64] + jnp.sin(batch["positions"])[..., None]
    return x @ weights["q"], x @ weights["k"], x @ weights["v"]


def summed(weights: Any, attended: Any, batch: Any) -> tuple[Any, Any]:
    logits = jax.nn.log_softmax(attended @ weights["out"])
    losses = -jnp.take_along_axis(logits, batch["targets"][..., None] % 64, -1)[..., 0]
    return (losses * batch["loss_mask"]).sum(), batch["loss_mask"].sum()


def scores(q: Any, k: Any, slot_q: Any, slot_k: Any, ids_q: Any, ids_k: Any, apart: bool) -> Any:
    seen = jnp.broadcast_to((slot_q[:, None] >= slot_k)[None], (*ids_q.shape, slot_k.shape[0]))
    if apart:
        seen = seen & (ids_q[:, :, None] == ids_k[:, None, :])
    return jnp.where(seen, jnp.einsum("bqw,bkw->bqk", q, k), -jnp.inf)


def of_one_device(weights: Any, batch: Any, apart: bool) -> Any:
    q, k, v = projected(weights, batch)
    slot, ids = jnp.arange(SEQ_LEN), batch["segment_ids"]
    attended = jax.nn.softmax(scores(q, k, slot, slot, ids, ids, apart)) @ v
    total, count = summed(weights, attended, batch)
    return total / count


def of_ring(mesh: Mesh, apart: bool) -> Any:
    def local(weights: Any, batch: Any) -> Any:
        part, half = jax.lax.axis_index("context"), SEQ_LEN // PARTS // 2

        def slots(part: Any) -> Any:
            chunks = jnp.stack([part, 2 * PARTS - 1 - part])
            return (chunks[:, None] * half + jnp.arange(half)).ravel()

        q, k, v = projected(weights, batch)
        ids = batch["segment_ids"]
        top = jnp.full(ids.shape, -jnp.inf)
        total, found = jnp.zeros(ids.shape), jnp.zeros_like(q)
        held = (k, v, ids)
        for turn in range(PARTS):
            k, v, ids_k = held
            owner = (part - turn) % PARTS
            given = scores(q, k, slots(part), slots(owner), ids, ids_k, apart)
            higher = jnp.maximum(top, given.max(axis=-1))
            safe = jnp.where(jnp.isinf(higher), 0.0, higher)
            weight = jnp.exp(given - safe[..., None])
            old = jnp.exp(top - safe)
            total = total * old + weight.sum(axis=-1)
            found = found * old[..., None] + weight @ v
            top = higher
            held = jax.lax.ppermute(held, "context", [(i, (i + 1) % PARTS) for i in range(PARTS)])
        total_loss, count = summed(weights, found / total[..., None], batch)
        axes = ("data", "context")
        return jax.lax.psum(total_loss, axes) / jax.lax.psum(count, axes)

    cut = PartitionSpec("data", "context")
    return jax.shard_map(
        local, mesh=mesh, in_specs=(PartitionSpec(), cut), out_specs=PartitionSpec()
    )


def main() -> None:
    documents = distinct_documents([40, 9, 5, 30, 17, 3, 21, 12, 28, 60, 7, 14])
    mesh = Mesh(np.array(jax.devices()).reshape(2, PARTS), ("data", "context"))
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
    weights, found = parameters(), []
    rings = [jax.jit(jax.value_and_grad(of_ring(mesh, apart))) for apart in (False, True)]
    for apart, parts, expand in (
        (False, PARTS, "host"),
        (True, PARTS, "host"),
        (True, PARTS, "device"),
        (True, 1, "host"),
        (False, 1, "host"),
    ):
        rows = jaxdata.pack(
            jaxdata.ArrayDocuments(documents),
            seq_len=SEQ_LEN,
            positions="segment" if apart else "row",
        )
        make = partial(jaxdata.Loader, rows, batch_size=4)
        plain, cut = (
            next(make()),
            next(make(sharding=sharding, context_parallel=parts, expand=expand)),
        )
        back = {name: in_row_order(np.asarray(array), parts) for name, array in cut.items()}
        alone = jax.jit(jax.value_and_grad(partial(of_one_device, apart=apart)))
        one, ring = alone(weights, plain), rings[apart](weights, cut)
        gap = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max() / jnp.abs(a).max()), one, ring)
        found.append(
            {
                "documents apart": apart,
                "context_parallel": parts,
                "expand": expand,
                "loss": abs(float(ring[0] - one[0])),
                "gradients": max(jax.tree.leaves(gap)),
                "undone": all((back[name] == plain[name]).all() for name in plain),
                "sharded": cut["inputs"].addressable_shards[0].data.shape,
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
