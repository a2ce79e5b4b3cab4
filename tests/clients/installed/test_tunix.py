"""Tunix's own `PeftTrainer`, Llama and checkpoints on the rows of a config."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.clients import tunix
from jaxdata.testing import check_trainer
from tests.clients.installed.promises import Promises, Steps, held, join_jax, needs
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, mean_by_hand

peft_trainer = needs("tunix.sft.peft_trainer", "tunix")
from flax import nnx  # noqa: E402 - after what it comes with was found
from tunix.models.llama3.model import Llama3, ModelConfig  # noqa: E402


def model() -> Any:
    sizes = {"num_layers": 1, "vocab_size": VOCAB, "embed_dim": 32, "hidden_dim": 32}
    sizes |= {"num_heads": 2, "head_dim": 16, "num_kv_heads": 1}
    return Llama3(ModelConfig(**sizes, rope_theta=10_000, norm_eps=1e-5), rngs=nnx.Rngs(0))


@nnx.jit
def logits(one: Any, tokens: Any, positions: Any, ids: Any) -> Any:
    """Of a document in a row of its own."""
    return one(tokens, positions, None, np.tri(SEQ_LEN, dtype=bool)[None])[0]


class Noted(peft_trainer.hooks.TrainingHooks):  # type: ignore[misc, name-defined]
    """Tunix's training hooks: losses as it reports them, and those by hand."""

    def __init__(self, native: Any) -> None:
        self.native, self.seen = native, Steps()

    def on_train_step_start(self, trainer: Any) -> None:
        if self.native is not None:
            found = mean_by_hand(lambda *row: logits(trainer.model, *row), next(self.native))
            self.seen.by_hand.append(found)

    def on_train_step_end(self, trainer: Any, step: int, loss: Any) -> None:
        self.seen.losses.append(float(loss))

    def _nothing(self, *_: Any) -> None:
        pass

    on_train_start = on_train_end = on_eval_step_start = on_eval_step_end = _nothing


class Trainer(peft_trainer.PeftTrainer):  # type: ignore[misc, name-defined]
    """Notes what it trains on."""

    def _prepare_inputs(self, batch: Any) -> Any:
        if self._mode == "train":
            self.training_hooks.seen.tokens.append(held(jax.numpy.asarray(batch["inputs"])))
        return batch


def train(run: Any, folder: Path, steps: int, native: Any = None, sharding: Any = None) -> Steps:
    every = ocp.CheckpointManagerOptions(save_interval_steps=3)
    saves = {"checkpoint_root_directory": str(folder), "checkpointing_options": every}
    config = peft_trainer.TrainingConfig(eval_every_n_steps=100, max_steps=steps, **saves)
    one = model()
    if sharding is not None:
        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        nnx.update(one, jax.device_put(nnx.state(one), everywhere))
    trainer = Trainer(one, optax.adam(1e-2), config)
    trainer.with_training_hooks(Noted(native))
    trainer.train(*tunix.attach(trainer, run, sharding=sharding))
    seen: Steps = trainer.training_hooks.seen
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join_jax(number, ranks, port)
    mesh = Mesh(np.array(jax.devices())[:, None], ("fsdp", "tp"))
    with mesh:
        return train(run, folder, 6, sharding=NamedSharding(mesh, PartitionSpec("fsdp")))


class TestTunix(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    def test_accumulated_gradients_are_those_of_the_batch(self, data: Any) -> None:
        """A step on a batch, and on as many rows in micro-batches of quite unequal targets."""
        uneven = {**data, "pack": {"seq_len": SEQ_LEN, "strategy": "pad"}}

        def updated(micro: int, loss: Any = None) -> tuple[Any, float]:
            asked = {"max_steps": 1, "gradient_accumulation_steps": micro}
            config = peft_trainer.TrainingConfig(eval_every_n_steps=100, **asked)
            trainer = peft_trainer.PeftTrainer(one := model(), optax.sgd(1.0), config)
            before = jax.tree.leaves(nnx.state(one, nnx.Param))
            trainer.with_training_hooks(noted := Noted(None))
            given = tunix.attach(trainer, uneven, **{"loader.batch_size": ROWS // micro})
            if loss is not None:
                trainer.with_loss_fn(loss)
            trainer.train(*given)
            after = jax.tree.leaves(nnx.state(one, nnx.Param))
            changes = [(new - old).ravel() for new, old in zip(after, before, strict=True)]
            return np.concatenate(changes), float(np.mean(noted.seen.losses))

        def mean(
            one: Any,
            inputs: Any,
            targets: Any,
            loss_mask: Any,
            positions: Any,
            attention_mask: Any,
            divisor: Any,
        ) -> Any:
            given = inputs, targets, loss_mask, positions, attention_mask
            return tunix.loss(one, *given, divisor=loss_mask.sum())

        whole, loss = updated(1)
        for micro in (2, 8):
            found, micro_loss = updated(micro)
            assert np.linalg.norm(found - whole) < 1e-5 * np.linalg.norm(whole)  # float32
            assert micro_loss == pytest.approx(loss, rel=1e-5)
        assert np.linalg.norm(updated(8, mean)[0] - whole) > 0.1 * np.linalg.norm(whole)

    def test_check_trainer_passes(self, data: Any) -> None:
        one = model()

        @jax.jit
        def loss(batch: Any) -> Any:
            return tunix.loss(one, **tunix.model_input(batch))

        on_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        check_trainer(loss, jaxdata.load(data, sharding=on_device))
