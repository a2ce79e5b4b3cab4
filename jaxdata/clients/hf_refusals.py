"""What transformers' trainers would silently do wrong with a loader, refused in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from jaxdata.errors import InputError
from jaxdata.testing.trainer_check import trainer_proofs
from jaxdata.torch.loader import Loader

_LEAST_VERSION = (5, 11)
"""of transformers: those before divide losses by the targets of `labels`, one a row too few"""
_NOT_ASKED = ("repeats", "by hand", "nats", "weights")
"""checks that are not made before it trains: many losses, and such as may be meant otherwise"""
_OWN_ORDER = "a loader has its own order"
_OWN_MASKS = "which targets have loss is in the loader's rows: convert the texts with their masks"
_OWN_ROWS = "the loader's rows are packed, and reach the model as they are"
_WRONG = {
    "auto_find_batch_size": "the loader has its own batch_size",
    "label_smoothing_factor": "it drops the last target of each row",
    "dataloader_num_workers": "give num_workers to the loader",
    "dataloader_drop_last": "give drop_remainder to the loader",
    "data_seed": "give the seed to jaxdata.pack",
    "precompute_ref_log_probs": "that reads train_dataset, which is a loader",
    "ignore_data_skip": "the loader is never read to skip",
    "average_tokens_across_devices": (
        "each process would divide by its own targets, so that those of a process with few of them "
        "count more"
    ),
    "group_by_length": _OWN_ORDER,
    "train_sampling_strategy": _OWN_ORDER,
    "shuffle_dataset": _OWN_ORDER,
    "accelerator_config.split_batches": "each process gets its own rows of a loader's batch",
    "accelerator_config.dispatch_batches": "each process reads its own rows of a loader's batch",
    "data_collator": "no collator sees a loader's batches; give the loader a layout of your own",
    "formatting_func": _OWN_ROWS,
    "packing": _OWN_ROWS,
    "eval_packing": _OWN_ROWS,
    "padding_free": _OWN_ROWS,
    "max_length": (
        "no row of a loader is cut, and these are longer: set max_length=None, and the length with "
        "pack(seq_len=…)"
    ),
    "completion_only_loss": _OWN_MASKS,
    "assistant_only_loss": _OWN_MASKS,
}
"""arguments that change nothing with a loader, or something else than they say"""


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


def refuse_arguments(args: Any, loader: Loader, given: Mapping[str, Any]) -> None:
    """Refuse what the Trainer would do silently to batches, or leave undone.

    Args:
        args: the trainer's arguments.
        loader: what it trains on.
        given: the other arguments of its constructor.
    """
    values = {**given, **vars(args)}
    for name in ("split_batches", "dispatch_batches"):
        values[f"accelerator_config.{name}"] = getattr(args.accelerator_config, name, None)
    batch = loader.deliver(loader.sample())
    slots = batch["input_ids"].shape[-1]
    several = args.world_size > 1 and "shift_labels" in batch
    harmless = {
        "train_sampling_strategy": ("random",),
        "max_length": (None, *range(slots, int(values.get("max_length") or 0) + 1)),
        "average_tokens_across_devices": (True,) if several else (True, False),
        "data_seed": (None,),
        "completion_only_loss": (None,),
    }
    for name, why in _WRONG.items():
        value = values.get(name, harmless.get(name, (None,))[0])
        fine = value in harmless[name] if name in harmless else not value
        if not fine:
            shown = f"={value!r}" if isinstance(value, bool | int | float | str) else ""
            raise InputError(f"{name}{shown} with a loader: leave it out; {why}")
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
    """Refuse a model, or a loss, that lets documents see each other or drops or shifts targets."""
    if "segment_ids" not in loader.sample():
        return
    model, training = trainer.model, trainer.model.training
    counts = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None

    def loss_of_batch(batch: Any, times: int = 1) -> Any:
        """As it trains; as if `times` as many targets were in the batches of an update."""
        inputs = trainer._prepare_inputs(batch)
        targets = (inputs["shift_labels"] != -100).sum() * times if counts else None
        with torch.no_grad(), trainer.compute_loss_context_manager():
            return trainer.compute_loss(model, inputs, num_items_in_batch=targets)

    model.eval()
    with _no_weights_of_zeros(model):
        proofs = list(trainer_proofs(loss_of_batch, loader, leave_out=_NOT_ASKED))
        batch = loader.deliver(loader.sample())
        whole, half = (float(loss_of_batch(batch, times)) for times in (1, 2))
    model.train(training)
    getattr(trainer, "_metrics", {}).get("eval", {}).clear()  # TRL's, of the losses asked here
    wrong = {proof.name: proof.says for proof in proofs if not proof.holds}
    if wrong:
        advice = (
            " For models that ignore positions: layout={'hf': {'attention_mask': True}}; or "
            "strategy='pad';"
        )
        raise InputError(
            f"{type(model).__name__} cannot train on packed rows as they are: "
            f"{'; '.join(wrong.values())}.{advice if 'documents' in wrong else ''} "
            "check_model=False trains all the same"
        )
    batches = trainer.args.gradient_accumulation_steps * trainer.args.world_size
    if batches > 1 and abs(half / whole - 0.5) > 0.05:
        raise InputError(
            f"the loss of a batch is not divided by the targets of all {batches} batches of an "
            "update, so that targets in a batch with few of them count more: divide by the "
            "num_items_in_batch that compute_loss_func and the model's forward are given, or "
            "accumulate nothing, on one process"
        )


@contextmanager
def _no_weights_of_zeros(model: Any) -> Iterator[None]:
    """Put random numbers where all are zero: a head that begins so has the same loss for all."""
    zeros = [
        weight
        for weight in model.parameters()
        if weight.ndim > 1 and weight.is_floating_point() and not weight.is_meta
        if not weight.any()
    ]
    with torch.no_grad():
        for weight in zeros:
            random = torch.Generator(weight.device).manual_seed(0)
            weight.normal_(std=0.02, generator=random)
        try:
            yield
        finally:
            for weight in zeros:
                weight.zero_()
