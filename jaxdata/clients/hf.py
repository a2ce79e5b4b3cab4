"""transformers' `Trainer`, and TRL's `SFTTrainer` and `DPOTrainer`, on a loader of jaxdata's.

`class MyTrainer(Jaxdata, SFTTrainer)` is the same trainer, whose `train_dataset` may be a
`jaxdata.torch.Loader` with `layout="hf"`: batches reach the model as they are, nothing is dropped,
packed again, shuffled again or read ahead, and every checkpoint has the loader's state.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from jaxdata.clients.hf_refusals import (
    refuse_arguments,
    refuse_counts,
    refuse_epochs,
    refuse_loader,
    refuse_model,
    rows_of,
)
from jaxdata.errors import InputError, MissingExtra, StateMismatch
from jaxdata.torch.loader import Loader

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError:
    raise MissingExtra("transformers", "transformers") from None

_STATE_FILE = "trainer_state.json"


class Jaxdata:
    """Put it before a trainer: `class MyTrainer(Jaxdata, Trainer)`.

    `train_dataset` and `eval_dataset` (or its values, where it is a dict) may be a
    `jaxdata.torch.Loader(..., layout="hf")`, for `DPOTrainer` one of `jaxdata.pairs`. Then:

    * `per_device_train_batch_size` is set to the loader's; an epoch is a pass over its rows. More
      than one need a loader with `reiterable=True`.
    * The state of the loader is in each checkpoint's `trainer_state.json`, and
      `train(resume_from_checkpoint=…)` goes on behind it, on any number of processes with the
      same global batch.
    * Logs have the loader's `scalars()`, under `data/`.
    * `eval_loss` is the mean over all targets, whatever the batches.
    * Before it trains, `compute_loss` is asked whether documents see each other, targets are
      shifted or dropped, and all of them count alike (`check_model=False` leaves that out; so do
      DPO and wrapped models).

    Raises:
        InputError: the loader or an argument is one that would train something else silently.
        StateMismatch: the checkpoint is of another run, or has no state of a loader.
    """

    def __init__(self, *given: Any, check_model: bool = True, **named: Any) -> None:
        parent: Any = super()
        named = _by_name(parent.__init__, given, named)
        self._train_loader = _taken(named, "train_dataset", self)
        self._eval_loaders = _taken(named, "eval_dataset", self)
        self._checks_model, self._resumed_steps = check_model, 0
        self._eval_sums: torch.Tensor | None = None
        if self._train_loader is not None and named.get("args") is not None:
            named["args"].per_device_train_batch_size = rows_of(self._train_loader)
            # Before the trainer looks at them, whose advice would be about its own datasets.
            refuse_arguments(named["args"], self._train_loader, self._for_loaders(named))
        parent.__init__(**named)
        if self._train_loader is not None:
            if named.get("args") is None:
                refuse_arguments(_any(self).args, self._train_loader, self._for_loaders(named))
            self.add_callback(JaxdataLoader(self._train_loader))  # type: ignore[attr-defined]

    def _for_loaders(self, named: dict[str, Any]) -> dict[str, Any]:
        """Arguments that are for batches of loaders only, not of another evaluation dataset."""
        others = named.get("eval_dataset") is not None and self._eval_loaders is None
        return {} if others else named

    def train(self, resume_from_checkpoint: Any = None, **named: Any) -> Any:
        """Train, as the trainer does; a checkpoint's loader state is restored first."""
        loader, trainer = self._train_loader, _any(self)
        if loader is None:
            return _any(super()).train(resume_from_checkpoint, **named)
        self._resumed_steps = 0
        if resume_from_checkpoint:
            path = resume_from_checkpoint
            path = get_last_checkpoint(trainer.args.output_dir) if path is True else path
            self._resumed_steps = _restore(loader, Path(path or ""), trainer.args)
        elif loader.next_row or loader.passes:
            raise InputError(
                f"the loader is at row {loader.next_row} of pass {loader.passes + 1}, and train() "
                "begins a run: call loader.reset(), or train(resume_from_checkpoint=…)"
            )
        refuse_epochs(trainer.args, loader)
        refuse_counts(trainer, loader)
        if self._checks_model and not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            refuse_model(trainer, loader)
        return _any(super()).train(resume_from_checkpoint, **named)

    def get_train_dataloader(self) -> Any:
        """The loader, as the trainer iterates it."""
        if self._train_loader is None:
            return _any(super()).get_train_dataloader()
        steps, self._resumed_steps = self._resumed_steps, 0
        return _Passes(self._train_loader, steps)

    def evaluate(self, eval_dataset: Any = None, *given: Any, **named: Any) -> Any:
        """Evaluate, on a loader too."""
        if not isinstance(eval_dataset, Loader):
            return _any(super()).evaluate(eval_dataset, *given, **named)
        refuse_loader(eval_dataset, "eval_dataset")
        kept, self._eval_loaders = self._eval_loaders, eval_dataset
        try:
            return _any(super()).evaluate(None, *given, **named)
        finally:
            self._eval_loaders = kept

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """An evaluation loader, from its first row."""
        loaders: Any = self._eval_loaders
        chosen = loaders
        if isinstance(loaders, Mapping):
            chosen = loaders.get(eval_dataset) if isinstance(eval_dataset, str) else None
        if not isinstance(chosen, Loader):
            return _any(super()).get_eval_dataloader(eval_dataset)
        chosen.reset()
        return _Passes(chosen)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """The trainer's own; in evaluation its sum over targets is kept too."""
        targets = inputs.get("shift_labels")
        found = _any(super()).compute_loss(model, inputs, *given, **named)
        if self._eval_sums is not None and targets is not None:
            loss = found[0] if isinstance(found, tuple) else found
            count = (targets != -100).sum()
            total = torch.where(count > 0, loss.detach() * count, 0.0)
            self._eval_sums = self._eval_sums.to(loss.device) + torch.stack([total, count]).double()
        return found

    def evaluation_loop(
        self, dataloader: Any, *given: Any, metric_key_prefix: str = "eval", **named: Any
    ) -> Any:
        """The trainer's own, with a loss that is the mean over targets, not over batches."""
        self._eval_sums = torch.zeros(2, dtype=torch.float64)
        try:
            loop = _any(super()).evaluation_loop
            found = loop(dataloader, *given, metric_key_prefix=metric_key_prefix, **named)
            total, count = _any(self).accelerator.reduce(self._eval_sums, "sum").tolist()
        finally:
            self._eval_sums = None
        if isinstance(dataloader, _Passes) and count:
            found.metrics[f"{metric_key_prefix}_loss"] = total / count
        return found

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        """Log, with what the loader has delivered."""
        if self._train_loader is not None and "loss" in logs:
            scalars = self._train_loader.scalars().items()
            logs = {**logs, **{f"data/{name}": value for name, value in scalars}}
        _any(super()).log(logs, *given, **named)


class JaxdataLoader(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Puts the state of a loader into every `trainer_state.json`, under the name of this class."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"loader": self._loader.get_state()}}


class _Batches(IterableDataset[Any]):
    """The passes of a loader; before the first of them, what is skipped of it when resuming."""

    def __init__(self, loader: Loader, done: int) -> None:
        self._loader, self._done = loader, done

    def __len__(self) -> int:
        return len(self._loader.rows)

    def __iter__(self) -> Iterator[Any]:
        done, self._done = self._done, 0
        # Accelerate throws away as many batches as the Trainer has trained of this epoch. (A
        # generator that yields from a loader would close it.)
        return chain(repeat({}, done), self._loader)


class _Passes:
    """What the Trainer takes for a `DataLoader`, and accelerate's `skip_first_batches` too."""

    batch_size = prefetch_factor = None
    drop_last = False

    def __init__(self, loader: Loader, done: int = 0) -> None:
        self.dataset, self._loader = _Batches(loader, done), loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


def _by_name(function: Any, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, all by name."""
    signature = inspect.signature(function)
    signature.bind_partial(*given, **named)  # raises what the call would raise
    parameters = list(signature.parameters.values())[: len(given)]
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise InputError(f"{function.__qualname__} takes *args: give all its arguments by name")
    return {**{each.name: value for each, value in zip(parameters, given, strict=True)}, **named}


def _any(something: Any) -> Any:
    """The same, for type checkers: this class stands before a trainer."""
    return something


def _taken(named: dict[str, Any], name: str, trainer: Any) -> Any:
    """The loader given as an argument; a dataset of one row, which is never read, is left there."""
    given = named.get(name)
    loaders = list(given.values()) if isinstance(given, Mapping) else [given]
    if not any(isinstance(each, Loader) for each in loaders):
        return None
    for loader in loaders:
        refuse_loader(loader, name)
    row = _one_row(trainer)
    named[name] = dict.fromkeys(given, row) if isinstance(given, Mapping) else row
    return given


def _one_row(trainer: Any) -> Any:
    names = {each.__name__ for each in type(trainer).__mro__}
    if not names & {"SFTTrainer", "DPOTrainer"}:
        return [{"input_ids": [0, 0], "labels": [0, 0]}]
    from datasets import Dataset

    if "DPOTrainer" in names:
        return Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    return Dataset.from_list([{"input_ids": [0, 0], "labels": [0, 0]}])


def _restore(loader: Loader, checkpoint: Path, args: Any) -> int:
    """Restore a loader from a checkpoint; the batches that the Trainer will skip of this epoch."""
    file = checkpoint / _STATE_FILE
    if not file.is_file():
        raise InputError(f"resume_from_checkpoint={str(checkpoint)!r} has no {_STATE_FILE}")
    saved = json.loads(file.read_bytes())
    try:
        state = saved["stateful_callbacks"][JaxdataLoader.__name__]["attributes"]["loader"]
    except (KeyError, TypeError):
        raise StateMismatch(
            f"{file} has no state of a loader: it was saved by a trainer without one"
        ) from None
    loader.set_state(state)
    updates = -(-len(loader) // args.gradient_accumulation_steps)
    done = saved["global_step"] % updates * args.gradient_accumulation_steps
    if done != loader.step % len(loader):
        raise StateMismatch(
            f"{file} is {done} batches into an epoch by the Trainer's count and {loader.step} by "
            "the loader's: keep gradient_accumulation_steps and, after the first epoch, the "
            "loader's batch_size as they were"
        )
    return int(done)
