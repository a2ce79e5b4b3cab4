"""transformers' `Trainer`, and TRL's `SFTTrainer` and `DPOTrainer`, on a loader of jaxdata's.

What these trainers would silently do wrong with such a loader is refused in words.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from jaxdata.base.errors import InputError, MissingExtra, StateMismatch
from jaxdata.clients.agreement import Run, check_seq_len, loader_of, measures, refuse
from jaxdata.config import load_config
from jaxdata.config.loading import open_data, unscored
from jaxdata.testing.trainer_check import trainer_proofs
from jaxdata.torch.loader import Loader, shard_of

_NOT_ASKED = ("repeats", "by hand", "nats", "weights")
"""checks that are not made before it trains: many losses, and such as may be meant otherwise"""
OWN_ORDER = "a loader has its own order"
_OWN_MASKS = "which targets have loss is in the loader's rows: convert the texts with their masks"
OWN_ROWS = "the loader's rows are packed, and reach the model as they are"
_WRONG = {
    "auto_find_batch_size": "the loader has its own batch_size",
    "label_smoothing_factor": "it drops the last target of each row",
    "dataloader_num_workers": "give num_workers to the loader",
    "dataloader_drop_last": "give drop_remainder to the loader",
    "data_seed": "give the seed to jaxdata.pack",
    "precompute_ref_log_probs": "that reads train_dataset, which is a loader",
    "ignore_data_skip": "the loader is never read to skip",
    "average_tokens_across_devices": "else targets of a process that has few of them count more",
    **dict.fromkeys(("group_by_length", "train_sampling_strategy", "shuffle_dataset"), OWN_ORDER),
    "accelerator_config.split_batches": "each process gets its own rows of a loader's batch",
    "accelerator_config.dispatch_batches": "each process reads its own rows of a loader's batch",
    "data_collator": "no collator sees a loader's batches; give the loader a layout of your own",
    **dict.fromkeys(("formatting_func", "packing", "eval_packing", "padding_free"), OWN_ROWS),
    "max_length": (
        "no row of a loader is cut, and these are longer: set max_length=None, and the length with "
        "pack(seq_len=…)"
    ),
    **dict.fromkeys(("completion_only_loss", "assistant_only_loss"), _OWN_MASKS),
}
"""arguments that change nothing with a loader, or something else than they say"""


def rows_of(loader: Loader) -> int:
    """The rows of a batch that this process gets."""
    return len(next(iter(loader.sample().values())))


def loaders_of(
    run: Run, *, rows: int, seq_len: int, trainer: str
) -> tuple[Loader, dict[str, Loader]]:
    """The training loader of a config, and those of the sets that it scores, by their names.

    Args:
        run: a config, as for `jaxdata.load`.
        rows: of a batch of each rank.
        seq_len: that the trainer is set to.
        trainer: how it calls that, for messages.
    """
    settings = load_config(run, {})
    check_seq_len(settings, seq_len, trainer)
    size = {"batch_size": rows * shard_of(None, None)[1], "layout": "hf"}
    data = open_data(settings)
    scored = {} if unscored(settings, data) else settings.scored
    return loader_of(Loader, settings, None, **size), {
        name: loader_of(Loader, settings, split, **size) for name, split in scored.items()
    }


def refuse_loader(loader: Any, name: str) -> None:
    """Refuse what is no loader, or lays batches out for another trainer."""
    if not isinstance(loader, Loader):
        raise InputError(f"{name} mixes loaders and other datasets: give loaders only")
    if loader.context_parallel > 1:
        raise InputError(
            f"{name} has context_parallel={loader.context_parallel}, an order of slots that the "
            "Trainer's models do not know: leave it out"
        )
    batch = loader.deliver(loader.sample())
    names = set(batch) if isinstance(batch, dict) else set()
    if not ({"input_ids", "shift_labels"} <= names or "completion_mask" in names):
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
    slots, several = batch["input_ids"].shape[-1], args.world_size > 1 and "shift_labels" in batch
    fine = {
        "train_sampling_strategy": (None, "random"),
        "max_length": (None, *range(slots, int(values.get("max_length") or 0) + 1)),
        "average_tokens_across_devices": (None, True) if several else (None, True, False),
        "data_seed": (None,),
        "completion_only_loss": (None,),
    }
    refuse(values.get, _WRONG, "with a loader", fine)
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
        raise InputError(
            f"max_steps={args.max_steps}, num_train_epochs={args.num_train_epochs:g}, but the "
            f"loader passes over its {len(loader.rows):,} rows once, in {len(loader):,} batches "
            f"({updates:,} updates): make it with reiterable=True for more passes, give a mixture "
            "more epochs, or set num_train_epochs=1"
        )


def refuse_model(trainer: Any, loader: Loader) -> None:
    """Refuse a model, or a loss, that lets documents see each other or drops or shifts targets."""
    if "segment_ids" not in loader.sample():
        return
    model, training = trainer.model, trainer.model.training
    counts = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None

    def loss_of_batch(batch: Any, times: int = 1) -> Any:
        """The loss in training, as if `times` as many targets were in the batches of an update."""
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
    if wrong := {proof.name: proof.says for proof in proofs if not proof.holds}:
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
    real = [each for each in model.parameters() if each.is_floating_point() and not each.is_meta]
    zeros = [weight for weight in real if weight.ndim > 1 and not weight.any()]
    with torch.no_grad():
        for weight in zeros:
            weight.normal_(std=0.02, generator=torch.Generator(weight.device).manual_seed(0))
        try:
            yield
        finally:
            for weight in zeros:
                weight.zero_()


try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError:
    raise MissingExtra("transformers", "transformers") from None

_STATE_FILE = "trainer_state.json"


_Trainer: Any = object
"""what `Jaxdata` stands before, of which type checkers know nothing"""


class Jaxdata(_Trainer):  # type: ignore[misc]
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
        named = _by_name(super().__init__, given, named)
        self._train_loader = _taken(named, "train_dataset", self)
        self._eval_loaders = _taken(named, "eval_dataset", self)
        self._checks_model, self._resumed_steps = check_model, 0
        self._eval_sums: torch.Tensor | None = None
        loader, args = self._train_loader, named.get("args")
        # Arguments that are for batches of loaders only, not of another evaluation dataset.
        others = named.get("eval_dataset") is not None and self._eval_loaders is None
        asked = {} if others else dict(named)
        if loader is not None and args is not None:
            args.per_device_train_batch_size = rows_of(loader)
            # Before the trainer looks at them, whose advice would be about its own datasets.
            refuse_arguments(args, loader, asked)
        super().__init__(**named)
        if loader is not None:
            if args is None:
                refuse_arguments(self.args, loader, asked)
            self.add_callback(JaxdataLoader(loader))

    def train(self, resume_from_checkpoint: Any = None, **named: Any) -> Any:
        """Train, as the trainer does; a checkpoint's loader state is restored first."""
        loader = self._train_loader
        if loader is None:
            return super().train(resume_from_checkpoint, **named)
        self._resumed_steps = 0
        if resume_from_checkpoint:
            path = resume_from_checkpoint
            path = get_last_checkpoint(self.args.output_dir) if path is True else path
            self._resumed_steps = _restore(loader, Path(path or ""), self.args)
        elif loader.next_row or loader.passes:
            raise InputError(
                f"the loader is at row {loader.next_row} of pass {loader.passes + 1}, and train() "
                "begins a run: call loader.reset(), or train(resume_from_checkpoint=…)"
            )
        refuse_epochs(self.args, loader)
        if self._checks_model and not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            refuse_model(self, loader)
        return super().train(resume_from_checkpoint, **named)

    def get_train_dataloader(self) -> Any:
        """The loader, as the trainer iterates it."""
        if self._train_loader is None:
            return super().get_train_dataloader()
        steps, self._resumed_steps = self._resumed_steps, 0
        return _Passes(self._train_loader, steps)

    def get_batch_samples(self, batches: Any, number: int, device: Any) -> tuple[Any, Any]:
        """The batches of an update, and the targets of all of them on all processes.

        The trainer's own count is of `labels`, before transformers 5.11.
        """
        samples, count = super().get_batch_samples(batches, number, device)
        if self._train_loader is not None and count is not None and "shift_labels" in samples[0]:
            targets = sum((batch["shift_labels"] != -100).sum() for batch in samples)
            count = self.accelerator.reduce(targets.to(device), "sum")
        return samples, count

    def evaluate(self, eval_dataset: Any = None, *given: Any, **named: Any) -> Any:
        """Evaluate, on a loader too, of which TRL would make a dataset."""
        if not isinstance(eval_dataset, Loader):
            return super().evaluate(eval_dataset, *given, **named)
        refuse_loader(eval_dataset, "eval_dataset")
        kept, self._eval_loaders = self._eval_loaders, eval_dataset
        try:
            return super().evaluate(None, *given, **named)
        finally:
            self._eval_loaders = kept

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """An evaluation loader, from its first row."""
        chosen: Any = self._eval_loaders
        if isinstance(chosen, Mapping):
            chosen = chosen.get(eval_dataset) if isinstance(eval_dataset, str) else None
        if not isinstance(chosen, Loader):
            return super().get_eval_dataloader(eval_dataset)
        chosen.reset()
        return _Passes(chosen)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """The trainer's own; in evaluation its sum over targets is kept too."""
        targets = inputs.get("shift_labels")
        found = super().compute_loss(model, inputs, *given, **named)
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
            loop = super().evaluation_loop
            found = loop(dataloader, *given, metric_key_prefix=metric_key_prefix, **named)
            total, count = self.accelerator.reduce(self._eval_sums, "sum").tolist()
        finally:
            self._eval_sums = None
        if isinstance(dataloader, _Passes) and count:
            found.metrics[f"{metric_key_prefix}_loss"] = total / count
        return found

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        """Log, with what the loader has delivered."""
        if self._train_loader is not None and "loss" in logs:
            logs = {**logs, **measures(self._train_loader)}
        super().log(logs, *given, **named)


def without_collators(base: type[Any]) -> type[Any]:
    """A trainer class on loaders, of one whose program always gives it collators of its own."""

    class OnLoaders(Jaxdata, base):  # type: ignore[misc]
        def __init__(self, **named: Any) -> None:
            super().__init__(
                **{name: one for name, one in named.items() if not name.endswith("data_collator")}
            )

    OnLoaders.__name__ = base.__name__
    return OnLoaders


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
    """A stand-in for the `DataLoader` of the Trainer and of accelerate's `skip_first_batches`."""

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


def _taken(named: dict[str, Any], name: str, trainer: Any) -> Any:
    """The loader given as an argument; a dataset of one row, which is never read, is left there."""
    given = named.get(name)
    loaders = list(given.values()) if isinstance(given, Mapping) else [given]
    if not any(isinstance(each, Loader) for each in loaders):
        return None
    for loader in loaders:
        refuse_loader(loader, name)
    classes = {each.__name__ for each in type(trainer).__mro__}
    unread: Any = [{"input_ids": [0, 0], "labels": [0, 0]}]
    if classes & {"SFTTrainer", "DPOTrainer"}:
        from datasets import Dataset

        pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
        unread = Dataset.from_list([pair] if "DPOTrainer" in classes else unread)
    named[name] = dict.fromkeys(given, unread) if isinstance(given, Mapping) else unread
    return given


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
    done = int(saved["global_step"] % updates * args.gradient_accumulation_steps)
    if done != loader.step % len(loader):
        raise StateMismatch(
            f"{file} is {done} batches into an epoch by the Trainer's count and {loader.step} by "
            "the loader's: keep gradient_accumulation_steps and, after the first epoch, the "
            "loader's batch_size as they were"
        )
    return done
