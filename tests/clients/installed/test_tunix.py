"""Tunix's own `PeftTrainer`, Llama and checkpoints on the rows of a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.clients import tunix
from jaxdata.testing import check_trainer
from tests.clients.hand import mean_by_hand
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB

peft_trainer = pytest.importorskip("tunix.sft.peft_trainer")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from tunix.models.llama3.model import Llama3, ModelConfig


def model() -> Any:
    config = ModelConfig(
        num_layers=1, vocab_size=VOCAB, embed_dim=32, hidden_dim=32, num_heads=2, head_dim=16,
        num_kv_heads=1, rope_theta=10_000, norm_eps=1e-5,
    )
    return Llama3(config, rngs=nnx.Rngs(0))


class Recorded(peft_trainer.hooks.TrainingHooks):
    def __init__(self, native):
        self.native, self.by_hand, self.losses = native, [], []
    def on_train_step_start(self, t):
        if self.native is not None:
            def logits(tokens, positions, ids):
                seen = (ids[:,:,None]==ids[:,None,:]) & np.tri(SEQ_LEN, dtype=bool)
                return t.model(jnp.asarray(tokens), jnp.asarray(positions), None, jnp.asarray(seen))[0]
            self.by_hand.append(mean_by_hand(logits, next(self.native)))
    def on_train_step_end(self, t, step, loss):
        self.losses.append((step, loss))
    def on_train_start(self, t): pass
    def on_train_end(self, t): pass
    def on_eval_step_start(self, t): pass
    def on_eval_step_end(self, t, l): self.eval = l


def trained(run, folder, steps, native=None):
    options = ocp.CheckpointManagerOptions(save_interval_steps=3, max_to_keep=9)
    config = peft_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=steps,
        checkpoint_root_directory=str(folder) if folder else None, checkpointing_options=options)
    t = peft_trainer.PeftTrainer(model(), optax.adam(1e-2), config)
    r = Recorded(native)
    t.with_training_hooks(r)
    t.train(*tunix.attach(t, run))
    return t, r

def test_it(run, tmp_path):
    import time
    a=time.time()
    t, r = trained(run, tmp_path/"a", 6, jaxdata.load(run))
    print(r.losses, r.by_hand, np.array([float(l) for _,l in r.losses])-r.by_hand, time.time()-a)
    trained(run, tmp_path/"b", 3)
    u, s = trained(run, tmp_path/"b", 6)
    print(s.losses, s.losses==r.losses[3:], time.time()-a)
