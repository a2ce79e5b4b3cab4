"""Lightning: the rows of a config as a `LightningDataModule`.

    from jaxdata.clients import lightning as rows
    trainer.fit(model, datamodule=rows.datamodule("run.yaml"))
    return rows.loss(logits, batch)  # in training_step

Lightning divides the gradients of an update by its accumulated batches, and those of ranks by their
number, so a mean over a batch's targets would weigh each target by how few others its batch has.
The loss is over the batch's share of all targets of the update instead. The state lies in
Lightning's own checkpoints, once for all ranks, and goes on in the middle of an epoch.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import cross_entropy

from jaxdata.base.errors import InputError
from jaxdata.clients.agreement import Evaluation, Run, loader_of, module_of, refuse
from jaxdata.config import Config, load_config
from jaxdata.torch import Loader

_DIVISOR = "divisor"
_INSTALL = "pip install lightning; tried with 2.6.6"


def datamodule(run: Run, **overrides: Any) -> Any:
    """A `LightningDataModule` of a config; it evaluates on its `eval_split`, or each set of `eval`.

    Args:
        run: a config, as for `jaxdata.load`. A batch of it is that of one update:
            `loader.batch_size` counts the rows of all ranks and of all accumulated batches.
        overrides: fields of the config, nested or by dotted names.
    """
    theirs = module_of("lightning", _INSTALL).LightningDataModule
    return type("DataModule", (_Rows, theirs), {})(load_config(run, overrides))


def loss(logits: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """The losses of a batch's targets, over its share of those of the update.

    Args:
        logits: (batch, seq_len, vocabulary), each slot's for its target.
        batch: as `training_step` or `validation_step` is given it, in jaxdata's layout.
    """
    targets = batch["targets"].masked_fill(~batch["loss_mask"], -100)
    divisor: Any = batch.get(_DIVISOR, batch["loss_mask"].sum().clamp(min=1))
    divisor.used = True
    return torch.div(cross_entropy(logits.mT, targets.long(), reduction="sum"), divisor)


class _Rows:
    """What the data module has of a config."""

    trainer: Any

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config

    def train_dataloader(self) -> "Updates":
        """The batches of this rank, whose number Lightning accumulates for an update."""
        _check(self.trainer)
        return Updates(
            self._loader(None), self.trainer.accumulate_grad_batches, _ranks(self.trainer)[1]
        )

    def val_dataloader(self) -> Any:
        """The batches of this rank to evaluate on, the same ones each time; of sets by name."""
        scored = self._config.scored.items()
        sets = {name: Evaluation(self._loader(split)) for name, split in scored}
        return sets if self._config.eval else next(iter(sets.values()), [])

    def _loader(self, split: str | None) -> Any:
        rank, ranks = _ranks(self.trainer)
        given = {"rank": rank, "world_size": ranks, "long": True}
        return loader_of(Loader, self._config, split, **given)


class Updates:
    """Batches of updates, as Lightning iterates over them and saves where it is.

    Args:
        loader: of the rows of this rank, an update each.
        parts: batches that an update is cut into.
        ranks: that share an update.
    """

    def __init__(self, loader: Loader, parts: int, ranks: int) -> None:
        self.loader, self._parts, self._ranks = loader, parts, ranks
        self._before: dict[str, Any] = {}
        self._done = self._skipped = 0
        """parts of the update under way that were taken, and those before a state was"""

    def __len__(self) -> int:
        return len(self.loader) * self._parts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self.loader)
        while True:
            self._before = self.loader.get_state()
            batch = next(batches, None)
            if batch is None:
                return
            for number, part in enumerate(self._cut(batch)):
                self._done = number + 1
                if number >= self._skipped:
                    yield part
                    self._check(part[_DIVISOR])
            self._done = self._skipped = 0

    def _cut(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        if "loss_mask" not in batch or "targets" not in batch:
            raise InputError(
                f"these batches have {', '.join(batch)}: expected jaxdata's own layout, with "
                "targets and loss_mask (loader.layout: jaxdata)"
            )
        rows, parts = len(batch["loss_mask"]), self._parts
        if rows % parts:
            raise InputError(
                f"{rows} rows of a batch on each of {self._ranks} ranks are not divisible by "
                f"accumulate_grad_batches={parts}: set loader.batch_size to a multiple of "
                f"{parts * self._ranks}"
            )
        targets = batch["loss_mask"].sum()
        if self._ranks > 1:
            distributed.all_reduce(targets)
        share = (targets / (parts * self._ranks)).clamp(min=1e-9)
        cut = {
            name: value.chunk(parts) if isinstance(value, torch.Tensor) else [value] * parts
            for name, value in batch.items()
        }
        return [
            {name: value[part] for name, value in cut.items()} | {_DIVISOR: share.clone()}
            for part in range(parts)
        ]

    def _check(self, divisor: torch.Tensor) -> None:
        if self._parts * self._ranks > 1 and not hasattr(divisor, "used"):
            raise InputError(
                "training_step returns a loss of its own: a mean over a batch's "
                "targets, averaged over the batches and ranks of an update, weighs each target by "
                "how few others its batch has; let it return rows.loss(logits, batch), where rows "
                "is jaxdata.clients.lightning"
            )

    def state_dict(self) -> dict[str, Any]:
        """The state after what was trained on; Lightning keeps it in its checkpoints."""
        if 0 < self._done < self._parts:
            return {"state": self._before, "parts": self._done}
        return {"state": self.loader.get_state(), "parts": 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any number of ranks."""
        if state["parts"] >= self._parts:
            raise InputError(
                f"the checkpoint lies in the middle of an update, after {state['parts']} of its "
                f"batches, and accumulate_grad_batches={self._parts}: go on with the number it had"
            )
        self.loader.set_state(state["state"])
        self._done = self._skipped = state["parts"]


def _ranks(trainer: Any) -> tuple[int, int]:
    """The number of this process among those that share a batch, and how many they are."""
    given = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    return (given["rank"], given["num_replicas"]) if given else (0, 1)


def _check(trainer: Any) -> None:
    """Refuse what would silently train on other batches than the config says."""
    scheduler = module_of("lightning.pytorch.callbacks", _INSTALL).GradientAccumulationScheduler
    if any(isinstance(each, scheduler) for each in trainer.callbacks):
        raise InputError(
            "a GradientAccumulationScheduler changes the batches of an update: give ramps in the "
            "config (loader.batch_size: [[0, 256], [100_000, 512]]) and accumulate_grad_batches as "
            "a number"
        )
    fine = {"limit_train_batches": (1.0, None)}
    refuse(partial(getattr, trainer), _WRONG, "of Trainer with rows of a config", fine)


_WRONG = {
    "overfit_batches": "train on a config with few rows",
    "reload_dataloaders_every_n_epochs": "passes follow each other by themselves",
    "limit_train_batches": "end the run with max_steps",
}
