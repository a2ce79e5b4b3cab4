"""A loop in JAX with Orbax, on all devices: stopped anywhere, it goes on to the same losses.

python tools/examples/jax_loop.py data/mine runs/jax 100
"""

import sys
from pathlib import Path

import jax
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxdata

path, output, steps = sys.argv[1], Path(sys.argv[2]).absolute(), int(sys.argv[3])
dataset = jaxdata.open_dataset(path)
names = dataset.splits["train"]
packed = {name: jaxdata.pack(dataset.source("train", name), seq_len=128) for name in names}
mesh = Mesh(jax.devices(), ("data",), axis_types=(AxisType.Auto,))
sharding, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
loader = jaxdata.Loader(jaxdata.mix(packed), batch_size=8, sharding=sharding)


def loss_of(params, batch):
    x = params["tokens"][batch["inputs"]] + params["places"][batch["positions"]]
    q, k, v = ((x @ each)[:, :, None] for each in params["qkv"])
    mask = jaxdata.feed.device.attention_mask(batch["segment_ids"])
    x += jax.nn.dot_product_attention(q, k, v, mask=mask)[:, :, 0]
    logits = x @ params["tokens"].T
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()


@jax.jit
def train(state, batch):
    loss, gradient = jax.value_and_grad(loss_of)(state["params"], batch)
    updates, moments = adam.update(gradient, state["moments"])
    return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss


adam, key = optax.adam(1e-3), jax.random.key(0)
shapes = {"tokens": (len(dataset.token_bytes), 64), "places": (128, 64), "qkv": (3, 64, 64)}
params = {name: 0.1 * jax.random.normal(key, shape) for name, shape in shapes.items()}
state = jax.device_put({"params": params, "moments": adam.init(params)}, everywhere)
with ocp.CheckpointManager(output, options=ocp.CheckpointManagerOptions(50)) as checkpoints:
    if (newest := checkpoints.latest_step()) is not None:
        parts = {"state": ocp.args.StandardRestore(state), "data": jaxdata.LoaderRestore(loader)}
        state = checkpoints.restore(newest, args=ocp.args.Composite(**parts))["state"]
    for step in range(loader.step, steps):
        state, loss = train(state, next(loader))
        print(f"step {step}  loss {float(loss):.9f}")
        parts = {"state": ocp.args.StandardSave(state), "data": jaxdata.LoaderSave(loader)}
        checkpoints.save(step + 1, args=ocp.args.Composite(**parts), force=step + 1 == steps)
