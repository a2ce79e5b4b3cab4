"""What clients share: a config's loader for a trainer, what both have to agree on, pairs.

Trainers whose attention knows no documents get rows that are causal as a whole.
"""

import importlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.config import Config, build_rows, load_config, loader_arguments, open_data
from jaxdata.feed.layouts import long
from jaxdata.feed.loader import BatchIterator
from jaxdata.rows.table import Batch

Run = str | Path | Mapping[str, Any] | Config
"""a config as `jaxdata.load` takes it"""


def module_of(name: str, how: str) -> Any:
    """A module of a trainer; raises InputError, with `how` to get it, where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        package = name.partition(".")[0]
        if (missing.name or "").partition(".")[0] != package:
            raise
        raise InputError(f"{package} is not installed: {how}") from None


def loader_of(make: Callable[..., Any], run: Config, split: str | None, **chosen: Any) -> Any:
    """The loader of a config, made by a class, with the arguments that a trainer chooses."""
    if run.loader.context_parallel > 1:
        raise InputError(
            f"loader.context_parallel={run.loader.context_parallel}, but this trainer takes the "
            "slots of a row in their order, and cuts rows for context parallelism itself: remove it"
        )
    return make(build_rows(run, split), **{**loader_arguments(run, split), **chosen})


class Evaluation:
    """An iterable of the same batches each time, however many of them were read."""

    def __init__(self, loader: BatchIterator) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> BatchIterator:
        self.loader.reset()
        return self.loader


def measures(loader: BatchIterator) -> dict[str, float]:
    """What a trainer's own log says of its data: tokens and epochs by source, seconds waited."""
    return {f"data/{name}": value for name, value in loader.scalars().items()}


def check_seq_len(config: Config, trained: int, trainer: str) -> None:
    """Refuse rows of another length than the trainer's sequences."""
    if config.pack.seq_len != trained:
        raise InputError(
            f"the config packs rows of pack.seq_len={config.pack.seq_len}, but {trainer} is "
            f"{trained}: set pack.seq_len to {trained}, or {trainer} to {config.pack.seq_len}"
        )


def check_vocabulary(config: Config, trained: int | None, trainer: str) -> None:
    """Refuse a model whose vocabulary, if known, lacks ids of the data: jax clips them silently."""
    if trained is None:
        return
    dataset = open_data(config)
    try:
        held = int((getattr(dataset, "manifest", None) or dataset).tokenizer.vocab_size)
    except InputError:  # nobody knows what other tools' data were encoded with
        return
    if held > trained:
        raise InputError(
            f"the data has ids below {held:,}, but {trainer} is {trained:,}: ids from {trained:,} "
            f"on have no embedding; set it to at least {held:,}, or give the data it was made for"
        )


def check_alone(batch: Batch, trainer: str) -> None:
    """Refuse rows of several documents."""
    if np.any(batch["segment_ids"] > 1):
        raise InputError(
            f"{trainer}'s attention is causal over the whole row, and these rows hold several "
            "documents, which would attend to those before them: pack with strategy='pad', or "
            "give across_documents=True to train so"
        )


def refuse(
    value_of: Callable[[str], Any],
    wrong: Mapping[str, str],
    where: str,
    fine: Mapping[str, Sequence[Any]] = {},
) -> None:
    """Refuse settings that change nothing with a loader, or something else than they say.

    Args:
        value_of: a setting's value, by its name.
        wrong: what is wrong with each setting.
        where: what it disagrees with, for the message.
        fine: values that a setting may have, the one to give first; else what is false.
    """
    for name, why in wrong.items():
        value, allowed = value_of(name), fine.get(name)
        if value not in allowed if allowed else value:
            remedy = "leave it out" if not allowed or allowed[0] is None else f"give {allowed[0]}"
            shown = f"={value!r}" if isinstance(value, bool | int | float | str | list) else ""
            raise InputError(f"{name}{shown} {where}: {remedy}; {why}")


def pairs(batch: Batch, trainer: str, across_documents: bool) -> tuple[Any, Any]:
    """The layout `(inputs, targets)`, int64; targets are -1 where there is no loss.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 0]), "targets": a([6, 7, 0]), "segment_ids": a([1, 1, 0]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, False])}
    >>> [array.tolist() for array in pairs(batch, "nanoGPT", False)]
    [[5, 6, 0], [6, -1, -1]]
    """
    if not across_documents:
        check_alone(batch, trainer)
    return long(batch["inputs"]), long(np.where(batch["loss_mask"], batch["targets"], -1))


_DIVIDED = "divided_by_slots"


def over_slots(total: Any, targets: Any) -> Any:
    """A micro-batch's sum of losses over its slots, of which each has as many.

    A mean over targets would weigh each by how few others its micro-batch, or its process, has.
    """
    setattr(targets, _DIVIDED, True)
    return total / targets.numel()


class PairLoader:
    """Pairs of tensors for a script that fetches a batch before it trains on the last.

    Args:
        run: a config, as for `jaxdata.load`.
        split: of the config; None for the training split.
        trainer: its name, for messages.
        line: what its script has to say for each micro-batch; None where it evaluates.
        rows: of a batch of this process.
        seq_len: of the trainer.
        vocab_size: of the trainer, if it says.
        across_documents: whether rows may hold several documents.
        device: of the tensors.
    """

    def __init__(
        self,
        run: Run,
        split: str | None,
        trainer: str,
        *,
        line: str | None,
        rows: int,
        seq_len: int,
        vocab_size: int | None = None,
        across_documents: bool = False,
        device: Any = None,
    ) -> None:
        from jaxdata.torch import Loader
        from jaxdata.torch.loader import shard_of

        settings = load_config(run, {})
        check_seq_len(settings, seq_len, f"{trainer}'s sequence length")
        check_vocabulary(settings, vocab_size, f"{trainer}'s vocabulary")
        layout = partial(pairs, trainer=trainer, across_documents=across_documents)
        chosen = {"batch_size": rows * shard_of(None, None)[1], "device": device}
        self.loader = loader_of(Loader, settings, split, layout=layout, **chosen)
        self._trainer, self._line = trainer, line
        self.state: dict[str, Any] = self.loader.get_state()
        """from which the batch fetched last comes again: it is not trained on yet"""
        self._fetched: deque[Any] = deque(maxlen=2)  # targets; the script trains on the first

    def next(self) -> tuple[Any, Any]:
        """The next batch; evaluation begins again after its last.

        Raises:
            InputError: the rows have ended, or the loss of the batch before last is a mean.
        """
        trains = self._line is not None
        if trains and len(self._fetched) == 2 and not hasattr(self._fetched[0], _DIVIDED):
            raise InputError(
                f"{self._trainer}'s own loss is the mean over a micro-batch's targets, and the "
                "mean of such means weighs each target by how few others its micro-batch has: let "
                f"its script say {self._line}"
            )
        self.state = self.loader.get_state()
        batch: Any = next(self.loader, None)
        if batch is not None:
            self._fetched.append(batch[1])
            return batch[0], batch[1]
        if trains:
            raise InputError(
                f"the rows of the config end after step {len(self.loader)}: give its sources more "
                "epochs, or train fewer steps; the script fetches one batch more than it trains on"
            )
        self.loader.reset()
        return self.next()

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any number of processes."""
        self.loader.set_state(state)
