"""Online data mixing: Exp3 with the loss of a source as its reward (arXiv:2312.02406, algorithm 1).

python tools/examples/odm.py data/mine runs/odm.npz 100
"""

import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import jaxdata


class OnlineDataMixing:
    """The probability of each of K sources, by rewards R that were smoothed with `alpha`.

    e(t) = min(1/K, sqrt(ln K / (K t)))
    R_i  = alpha R_i + (1 - alpha) loss_i / p_i(t), where source i was in the batch
    p_i(t+1) = (1 - K e(t+1)) exp(e(t) R_i) / sum_j exp(e(t) R_j) + e(t+1)
    """

    def __init__(self, sources, alpha=0.9, t=1, rewards=None, p=None):
        self.alpha, self.t = alpha, t
        self.rewards = rewards or [0.0] * sources
        self.p = p or [1 / sources] * sources

    def least(self, t):
        return min(1 / len(self.p), math.sqrt(math.log(len(self.p)) / (len(self.p) * t)))

    def update(self, sums, counts):
        for i, (total, count) in enumerate(zip(sums, counts, strict=True)):
            if count:
                reward = float(total / count) / self.p[i]
                self.rewards[i] = self.alpha * self.rewards[i] + (1 - self.alpha) * reward
        powers = [math.exp(self.least(self.t) * reward) for reward in self.rewards]
        self.t += 1
        least, share = self.least(self.t), [each / sum(powers) for each in powers]
        self.p = [(1 - len(share) * least) * each + least for each in share]
        return self.p


def main(dataset, output, steps):
    names = dataset.splits["train"]
    rows = {name: jaxdata.pack(dataset.source("train", name), seq_len=128) for name in names}
    mixed = jaxdata.mix(rows, weights=dict.fromkeys(rows, 1), on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=8, prefetch=0, extras=["source"])  # at once
    policy, random = OnlineDataMixing(len(rows)), np.random.default_rng(0)
    tokens = random.normal(0, 0.1, (len(dataset.token_bytes), 32))
    params = {"in": tokens, "out": np.zeros_like(tokens.T)}
    if output.exists():
        params = dict(np.load(output))
        policy_state, loader_state = json.loads(str(params.pop("state")))
        policy = OnlineDataMixing(len(rows), **policy_state)
        loader.set_state(loader_state)

    def loss_of(params, batch):
        logits = params["in"][batch["inputs"]] @ params["out"]
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum(), nats

    gradient_of = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    for step in range(loader.step, steps):
        batch = next(loader)
        (loss, nats), gradient = gradient_of(params, batch)
        params = {name: params[name] - 0.5 * gradient[name] for name in params}
        p = policy.update(*jaxdata.losses_by_source(batch, nats, sources=len(rows)))
        loader.reweigh(dict(zip(loader.source_names, p, strict=True)))
        print(f"step {step}  loss {float(loss):.9f}  {[round(each, 4) for each in p]}")
        state = json.dumps([vars(policy), loader.get_state()])
        np.savez(part := output.with_suffix(".tmp.npz"), state=state, **params)
        part.rename(output)


if __name__ == "__main__":
    main(jaxdata.open_dataset(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
