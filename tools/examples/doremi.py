"""Batches weighed by the excess loss over a reference, as DoReMi's loss is (arXiv:2305.10429).

python tools/examples/doremi.py data/mine runs/doremi.npz 100  # trains the reference first
"""

import json
import math
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax

import jaxdata


class ExcessLoss:
    """The weights a of K sources, by their loss beyond the reference's.

    l_i = sum of max(loss - reference, 0) over the targets of source i, / their number
    a_i = (1 - c) a_i exp(eta l_i) / sum_j a_j exp(eta l_j) + c / K
    """

    def __init__(self, sources, eta=1.0, c=1e-3, a=None, excess=None, total=None):
        self.eta, self.c, self.a = eta, c, a or [1 / sources] * sources
        self.excess = excess or [0.0] * sources  # of a source that is in no batch: the last
        self.total = total or [0.0] * sources

    def update(self, sums, counts):
        found = zip(sums, counts, self.excess, strict=True)
        self.excess = [float(s / n) if n else last for s, n, last in found]
        grown = [a * math.exp(self.eta * e) for a, e in zip(self.a, self.excess, strict=True)]
        self.a = [(1 - self.c) * each / sum(grown) + self.c / len(grown) for each in grown]
        self.total = [t + a for t, a in zip(self.total, self.a, strict=True)]
        return self.a


@jax.jit
@partial(jax.value_and_grad, has_aux=True)
def loss_of(params, batch):
    logits = params["in"][batch["inputs"]] @ params["out"]
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum(), nats


def train(dataset, output, steps, reference=None):
    names = dataset.splits["train"]
    rows = {name: jaxdata.pack(dataset.source("train", name), seq_len=128) for name in names}
    mixed = jaxdata.mix(rows, weights=dict.fromkeys(rows, 1), on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=8, extras=["source"])
    policy, random = ExcessLoss(len(rows)), np.random.default_rng(0)
    tokens = random.normal(0, 0.1, (len(dataset.token_bytes), 32))
    params = {"in": tokens, "out": np.zeros_like(tokens.T)}
    if output.exists():
        params = dict(np.load(output))
        policy_state, loader_state = json.loads(str(params.pop("state")))
        policy = ExcessLoss(len(rows), **policy_state)
        loader.set_state(loader_state)
    for step in range(loader.step, steps):
        batch = next(loader)
        (loss, nats), gradient = loss_of(params, batch)
        if reference is not None:
            excess = np.maximum(nats - loss_of(reference, batch)[0][1], 0)
            a = policy.update(*jaxdata.losses_by_source(batch, excess, sources=len(rows)))
            loader.reweigh(dict(zip(loader.source_names, a, strict=True)))
            print(f"step {step}  loss {float(loss):.9f}  {[round(each, 4) for each in a]}")
        params = {name: params[name] - 0.5 * gradient[name] for name in params}
        state = json.dumps([vars(policy), loader.get_state()])
        np.savez(part := output.with_suffix(".tmp.npz"), state=state, **params)
        part.rename(output)
    return params, policy.total


if __name__ == "__main__":
    data, output, steps = jaxdata.open_dataset(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    first, _ = train(data, output.with_suffix(".reference.npz"), 20)
    print("mean weights", np.divide(train(data, output, steps, first)[1], steps))
