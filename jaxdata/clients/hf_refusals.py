"""What transformers' trainers would silently do wrong with a loader, refused in words."""

from __future__ import annotations

from typing import Any

import torch

from jaxdata.errors import InputError
from jaxdata.testing.trainer_check import trainer_proofs
from jaxdata.torch.loader import Loader

_LEAST_VERSION = (5, 11)
"""of transformers: those before divide losses by the targets of `labels`, one a row too few"""
_WANTED = ("documents", "last slot")
"""checks of the model before it trains"""


def rows_of(loader: Loader) -> int:
    """The rows of a batch that this process gets."""
    return len(next(iter(loader.sample().values())))


def refuse_loader(loader: Any, name: str) -> None:
    """Refuse what is no loader, or lays batches out for another trainer."""
    if not isinstance(loader, Loader):
        raise InputError(f"{name} mixes loaders and other datasets: give loaders only")
    batch = loader.deliver(loader.sample())
    if not (isinstance(batch, dict) and {"input_ids", "shift_labels"} <= set(batch)) and (
        not isinstance(batch, dict) or "completion_mask" not in batch
    ):
        raise InputError(
            f"{name} gives batches of another trainer's layout: make the loader with layout='hf'"
        )


def refuse_arguments(trainer: Any, loader: Loader) -> None:
    """Refuse what the Trainer would do silently to batches, or leave undone."""
    args = trainer.args
    wrong = {
        "auto_find_batch_size": "the loader has its own batch_size",
        "label_smoothing_factor": "it drops the last target of each row",
        "dataloader_num_workers": "give num_workers to the loader",
        "precompute_ref_log_probs": "that reads train_dataset, which is a loader",
        "ignore_data_skip": "the loader is never read to skip",
    }
    for name, why in wrong.items():
        if getattr(args, name, False):
            raise InputError(f"{name}={getattr(args, name)!r} with a loader: leave it out; {why}")
    if args.n_gpu > 1:
        raise InputError("several GPUs in one process would split packed rows: start with torchrun")
    if args.per_device_train_batch_size != rows_of(loader):
        raise InputError(
            f"per_device_train_batch_size={args.per_device_train_batch_size}, but the loader gives "
            f"{rows_of(loader)} rows to a process: set it to that"
        )


def refuse_epochs(args: Any, loader: Loader) -> None:
    """Refuse to train more than the one pass of a loader that has no other."""
    updates = -(-len(loader) // args.gradient_accumulation_steps)
    epochs = args.max_steps / updates if args.max_steps > 0 else args.num_train_epochs
    if epochs > 1 and not loader.reiterable:
        asked = (
            f"max_steps={args.max_steps}" if args.max_steps > 0 else f"num_train_epochs={epochs:g}"
        )
        raise InputError(
            f"{asked}, but the loader passes over its {len(loader.rows):,} rows once, in "
            f"{len(loader):,} batches ({updates:,} updates): make it with reiterable=True for more "
            "passes, give a mixture more epochs, or set num_train_epochs=1"
        )


def refuse_counts(trainer: Any, loader: Loader) -> None:
    """Refuse versions of transformers that divide by another number of targets than there are."""
    import transformers

    batch = loader.deliver(loader.sample())
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    if version < _LEAST_VERSION:
        raise InputError(
            f"transformers {transformers.__version__} counts the targets of labels, not those of "
            f"shift_labels: expected version {'.'.join(map(str, _LEAST_VERSION))} or later"
        )
    if trainer.args.world_size > 1 or "shift_labels" not in batch:
        return
    _, count = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
    targets = int((batch["shift_labels"] != -100).sum())
    if count is not None and int(count) != targets:
        raise InputError(
            f"transformers {transformers.__version__} divides the loss of a batch by {int(count)} "
            f"targets, and it has {targets}: use a later version"
        )


def refuse_model(trainer: Any, loader: Loader) -> None:
    """Refuse a model that lets documents see each other, or that drops targets."""
    if "segment_ids" not in loader.sample():
        return
    model, training = trainer.model, trainer.model.training

    def loss_of_batch(batch: Any) -> Any:
        with torch.no_grad():
            return model(**trainer._prepare_inputs(batch)).loss

    model.eval()
    checks = {"repeats", "masks", "padding", "slots", "last slot", "documents", "by hand"}
    proofs = list(trainer_proofs(loss_of_batch, loader, leave_out=checks - set(_WANTED)))
    model.train(training)
    if wrong := [proof.says for proof in proofs if not proof.holds]:
        raise InputError(
            f"{type(model).__name__} cannot train on packed rows as they are: {'; '.join(wrong)}. "
            "For models that ignore positions: layout={'hf': {'attention_mask': True}}; or "
            "strategy='pad'; check_model=False trains all the same"
        )
