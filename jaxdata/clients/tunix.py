"""Tunix: the rows of a config for a `PeftTrainer`, by its data hooks.

    from jaxdata.clients import tunix
    trainer = PeftTrainer(model, optimizer, config)
    trainer.train(*tunix.attach(trainer, "run.yaml"))

Tunix's own loss shifts inputs, which drops the last target of each document of a packed row, and
its own resuming reads all that was trained on again. Both are replaced: the state lies in the
metadata of Tunix's checkpoints, and fits any number of processes. Where gradients are accumulated,
Tunix averages those of micro-batches; so the loss of each is over its share of the step's targets.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp

from jaxdata.base.errors import InputError
from jaxdata.clients.agreement import Run, check_vocabulary, loader_of, measures
from jaxdata.config import load_config
from jaxdata.feed.device import attention_mask
from jaxdata.feed.loader import Loader

_STATE = "jaxdata"


def attach(
    trainer: Any,
    run: Run,
    *,
    sharding: jax.sharding.Sharding | None = None,
    log_every: int = 100,
    **overrides: Any,
) -> tuple[Any, Any]:
    """Make a trainer train on a config, and evaluate on its `eval_split`; call it once restored.

    Args:
        trainer: a `PeftTrainer`, or one made of it.
        run: a config, as for `jaxdata.load`. A batch is that of one call of the model:
            `loader.batch_size` counts the rows before gradients are accumulated. All targets of
            a step weigh the same, in whichever of its batches they are.
        sharding: of (batch, seq); required with several processes.
        log_every: batches between two records of tokens by source in the trainer's metrics.
        overrides: fields of the config, nested or by dotted names.

    Returns:
        What `trainer.train` takes as its datasets.
    """
    settings = load_config(run, overrides)
    if sharding is None and jax.process_count() > 1:
        raise InputError(
            f"{jax.process_count()} processes and no sharding: each would train on whole batches; "
            "give sharding=NamedSharding(mesh, PartitionSpec(<axes of the batch>))"
        )
    sizes = getattr(trainer.model, "config", None)
    check_vocabulary(settings, getattr(sizes, "vocab_size", None), "the model's vocab_size")
    train, evaluation = (
        loader_of(Loader, settings, split, sharding=sharding)
        for split in (None, settings.scored_split)
    )
    hooks = Hooks(trainer, train, evaluation, log_every)
    trainer.with_gen_model_input_fn(model_input)
    trainer.with_loss_fn(loss)
    trainer.with_data_hooks(hooks)
    return (), (hooks,)  # a dataset that is empty would not be evaluated


class Hooks:
    """Tunix's data hooks: they deliver batches, and say where they are for its checkpoints."""

    def __init__(self, trainer: Any, train: Loader, evaluation: Loader, log_every: int) -> None:
        self.train, self.evaluation = train, evaluation
        self._log_every = log_every
        self._accumulated = trainer.config.gradient_accumulation_steps or 1
        self._step: list[Any] = []
        """batches of the step under way that are still to come"""
        self._own_metadata = trainer.custom_checkpoint_metadata
        self._fetched = (-1, train.get_state())
        trainer.custom_checkpoint_metadata = lambda: self.metadata(trainer)
        saved: Mapping[str, Any] = getattr(trainer, "_restored_custom_metadata", None) or {}
        if _STATE in saved:
            self.train.set_state(saved[_STATE])
        else:
            self.train.seek(step=trainer.iter_steps)

    def load_next_train_batch(self, trainer: Any) -> Any:
        """The next batch; None at the end, which ends the training."""
        if self._step:
            return self._step.pop(0)
        self._fetched = (trainer.iter_steps, self.train.get_state())
        if self._log_every and trainer.iter_steps % self._log_every == 0:
            log = partial(trainer.metrics_logger.log, trainer.metrics_prefix)
            for name, value in measures(self.train).items():
                log(name, value, "train", trainer.train_steps)
        to_the_end = iter(lambda: next(self.train, None), None)
        step = list(islice(to_the_end, self._accumulated))
        if self._accumulated > 1 and step:
            shares = _shares([batch["loss_mask"] for batch in step])
            step = [batch | {"divisor": share} for batch, share in zip(step, shares, strict=True)]
        self._step = step
        return self._step.pop(0) if self._step else None

    def load_next_eval_batch(self, trainer: Any) -> Any:  # noqa: ARG002 - Tunix's
        """The next batch of an evaluation; None at its end, and then the first again."""
        batch = next(self.evaluation, None)
        if batch is None:
            self.evaluation.reset()
        return batch

    def metadata(self, trainer: Any) -> dict[str, Any]:
        """The trainer's own metadata, and the state after what was trained on.

        A trainer that is at its last step has fetched one batch more.
        """
        at, before = self._fetched
        state = before if trainer.iter_steps == at else self.train.get_state()
        return {**self._own_metadata(), _STATE: state}


def model_input(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `loss`: documents of a row do not see each other."""
    seen = attention_mask(batch["segment_ids"])[:, 0]
    names = ("inputs", "targets", "loss_mask", "positions")
    divisor = batch["divisor"].max() if "divisor" in batch else batch["loss_mask"].sum()
    return {**{name: batch[name] for name in names}, "attention_mask": seen, "divisor": divisor}


@jax.jit
def _shares(masks: Sequence[jax.Array]) -> list[jax.Array]:
    """The targets of a micro-batch on average, for each row of each, sharded like them."""
    mean = sum(mask.sum() for mask in masks) / len(masks)
    return [jnp.full_like(mask[:, 0], mean, jnp.float32) for mask in masks]


def loss(
    model: Any,
    inputs: jax.Array,
    targets: jax.Array,
    loss_mask: jax.Array,
    positions: jax.Array,
    attention_mask: jax.Array,
    divisor: jax.Array,
) -> jax.Array:
    """The losses of a batch's targets, the last of each row and document included, over `divisor`.

    That is their number, or, of a micro-batch, how many those of its step have on average.
    """
    logits, _ = model(inputs, positions, None, attention_mask)
    nats = -jax.nn.log_softmax(logits.astype(jnp.float32))
    costs = jnp.take_along_axis(nats, targets[..., None], -1)[..., 0]
    return jnp.sum(costs * loss_mask) / jnp.where(divisor > 0, divisor, 1)
