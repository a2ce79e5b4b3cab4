"""The run of `jaxdata train` in torch, to hold side by side: same rows, weights and steps.

For one device. It keeps no checkpoints and scores nothing; its log is that of `jaxdata train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from jaxdata.base.seeds import derive
from jaxdata.config import Config, open_data
from jaxdata.config.train_section import OptimizerSettings, TrainSettings
from jaxdata.torch.loader import load
from jaxdata.train.log import RunLog
from jaxdata.train.model import init_state, make_optimizer
from jaxdata.train.trainer import Progress
from tests.torch.model import Params, as_params, forward, mean_loss

__all__ = ["Twin", "learning_rate"]


class Twin:
    """One run from its first step.

    Args:
        config: what `jaxdata train` would be given.
        device: where to train; None for a GPU where torch finds one.
        say: is told what goes on.
    """

    def __init__(
        self, config: Config, device: str | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._settings: TrainSettings = config.train
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.loader = load(config, device=chosen, loader={"layout": "jaxdata"})
        self.steps = min(self._settings.steps or len(self.loader), len(self.loader))
        vocabulary = len(open_data(config).token_bytes)
        self.weights = _first_weights(config, vocabulary, self.steps)
        self.params = as_params(self.weights, torch.device(chosen))
        self._optimizer = _make_optimizer(self.params, self._settings.optimizer)
        self._say = say
        self._log = RunLog(Path(self._settings.output) / "log-torch.jsonl")

    def run(self) -> None:
        """Train to the last step."""
        waited = lambda: float(self.loader.wait_seconds)  # noqa: E731 - as Progress asks for it
        progress = Progress(self._log, self._say, waited, self.steps)
        for step, batch in enumerate(islice(self.loader, self.steps)):
            if not step:
                self._compare(batch)
                progress.restart_clock()
            progress.add(step, self._step(step, batch), None)
            if step + 1 == self.steps or not (step + 1) % self._settings.log_every or not step:
                progress.flush()
        self.loader.close()
        self._log.close()

    def _step(self, step: int, batch: Any) -> dict[str, torch.Tensor]:
        loss, targets = mean_loss(forward(self.params, batch, self._settings.model), batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            list(_leaves(self.params)), self._settings.optimizer.clip_norm
        )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._settings.optimizer, step, self.steps)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {"loss": loss.detach(), "targets": targets, "gradient_norm": norm}

    def _compare(self, batch: Any) -> None:
        """Say the loss of the first step beside that of JAX, for the same weights."""
        with torch.no_grad():
            loss, _ = mean_loss(forward(self.params, batch, self._settings.model), batch)
        there = jax_loss(self.weights, batch, self._settings)
        self._log.write({"event": "first loss", "torch": float(loss), "jax": there})
        self._say(f"loss of the first step: {float(loss):.6f} in torch, {there:.6f} in JAX")


def jax_loss(weights: Any, batch: Any, settings: TrainSettings) -> float:
    """The loss of `jaxdata.train` for a batch of tensors."""
    from jaxdata.train import model as jax_losses
    from jaxdata.train import model as jax_model

    arrays = {name: value.numpy(force=True) for name, value in batch.items()}
    logits = jax_model.forward(weights, arrays, settings.model)
    nats = jax_losses.cross_entropy(logits, arrays["targets"])
    loss, _ = jax_losses.mean_loss(nats, arrays["loss_mask"])
    return float(loss)


def learning_rate(settings: OptimizerSettings, step: int, steps: int) -> float:
    """The rate of a step: a linear warm-up and a cosine down, as the JAX trainer's."""
    peak, warm = settings.learning_rate, settings.warmup_steps
    if step < warm:
        return peak * step / warm
    done = min((step - warm) / (max(steps, warm + 1) - warm), 1.0)
    final = settings.final_fraction
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)


def _first_weights(config: Config, vocabulary: int, steps: int) -> Any:
    seed = derive(config.seed, "model") >> 1
    optimizer = make_optimizer(config.train.optimizer, steps)
    return init_state(seed, config.train.model, vocabulary, optimizer)["params"]


def _make_optimizer(params: Params, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW; the scales of norms do not decay."""
    named = dict(_named(params))
    norms = [tensor for name, tensor in named.items() if name.endswith("norm")]
    matrices = [tensor for name, tensor in named.items() if not name.endswith("norm")]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
    )


def _named(params: Params, above: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in params.items():
        if isinstance(value, dict):
            yield from _named(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _leaves(params: Params) -> Iterator[torch.Tensor]:
    return (tensor for _, tensor in _named(params))
