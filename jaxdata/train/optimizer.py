"""AdamW with warm-up and cosine decay, and the jitted step that uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdata.train.loss import cross_entropy, mean_loss
from jaxdata.train.model import forward, init_params
from jaxdata.train.settings import ModelSettings, OptimizerSettings

State = dict[str, Any]  # "params", "optimizer": the model's part of a checkpoint
Step = Callable[[State, Mapping[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


def make_optimizer(settings: OptimizerSettings, steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of `steps` steps; a run shorter than its warm-up only warms up."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0 if settings.warmup_steps else settings.learning_rate,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=max(steps, settings.warmup_steps + 1),
        end_value=settings.learning_rate * settings.final_fraction,
    )
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optax.adamw(
            rate,
            b1=settings.beta1,
            b2=settings.beta2,
            weight_decay=settings.weight_decay,
            mask=_matrices,
        ),
    )


def _matrices(params: Any) -> Any:
    """True for weights with decay: all except the scales of the norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "norm", params)


def init_state(
    seed: int, model: ModelSettings, vocab_size: int, optimizer: optax.GradientTransformation
) -> State:
    """The params and optimizer state of step 0, a function of the seed alone."""
    params = init_params(jax.random.key(seed), model, vocab_size)
    return {"params": params, "optimizer": optimizer.init(params)}


def make_step(
    model: ModelSettings, optimizer: optax.GradientTransformation, replicated: jax.sharding.Sharding
) -> Step:
    """The jitted `step(state, batch) -> state, metrics`; it consumes the given state.

    The batch is sharded over devices and the state is not, so XLA sums gradients over devices. The
    mean is over the targets of the global batch, however they are divided among devices.
    """

    @partial(jax.jit, donate_argnums=0, out_shardings=replicated)
    def step(state: State, batch: Mapping[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
        def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
            nats_BxL = cross_entropy(forward(params, batch, model), batch["targets"])
            return mean_loss(nats_BxL, batch["loss_mask"])

        (loss, targets), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        updates, moments = optimizer.update(gradients, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        metrics = {
            "loss": loss,
            "targets": targets,
            "gradient_norm": jnp.asarray(optax.global_norm(gradients)),
        }
        return {"params": params, "optimizer": moments}, metrics

    return step
