"""torchtitan: its data loader of a config, elastic, with the state in torchtitan's checkpoint.

    from jaxdata.clients import torchtitan
    config.dataloader = torchtitan.dataloader("run.yaml")  # in your function of a Trainer.Config

torchtitan separates documents by positions that are 0. `dataloader` is for its trainer, of any
version since 0.3.0.
"""

import importlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.clients import agreement
from jaxdata.config import Config, load_config
from jaxdata.feed.layouts import IGNORED, check_restarts, long
from jaxdata.rows.table import Batch

_STATE = "jaxdata"


def dataloader(run: agreement.Run, split: str | None = None, **overrides: Any) -> Any:
    """The `BaseDataLoader.Config` whose data loader delivers the rows of a config.

    A batch is `({"input", "positions"}, labels)`, int64, of `(rows, seq_len)`, or `(tokens,)` in
    versions whose batches are counted in tokens; labels are -100 where there is no loss. The batch
    size is torchtitan's: that of the config is not used. The state is one small entry of the
    checkpoint and restores at any data-parallel degree.

    Args:
        run: a config, as for `jaxdata.load`.
        split: by default the curriculum's; another, for `validator.dataloader`, is the same each
            time.
        overrides: fields of the config, nested or by dotted names.
    """
    return _data_loader().Config(run=run, split=split, overrides=overrides)


def layout(batch: Batch, flat: bool = False) -> tuple[Batch, Any]:
    """`({"input", "positions"}, labels)`, int64; padding is a document of its own.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([[5, 6, 0, 0]]), "targets": a([[6, 7, 0, 0]]),
    ...          "segment_ids": a([[1, 1, 0, 0]]), "positions": a([[0, 1, 0, 0]]),
    ...          "loss_mask": a([[True, False, False, False]])}
    >>> taken, labels = layout(batch)
    >>> taken["input"].tolist(), taken["positions"].tolist(), labels.tolist()
    ([[5, 6, 0, 0]], [[0, 1, 0, 1]], [[6, -100, -100, -100]])
    """
    check_restarts(batch, "torchtitan")
    padding = batch["segment_ids"] == 0
    # A position of 0 begins a document: a row of padding must not be thousands of them.
    positions = np.where(padding, padding.cumsum(-1) - 1, batch["positions"])
    labels = np.where(batch["loss_mask"], batch["targets"], IGNORED)
    arrays = [batch["inputs"], positions, labels]
    taken, places, labels = (long(array.reshape(-1) if flat else array) for array in arrays)
    return {"input": taken, "positions": places}, labels


def shape(
    config: Config,
    seq_len: int | None = None,
    local_batch_size: int | None = None,
    max_context_length: int | None = None,
    num_tokens_per_batch: int | None = None,
    **_: Any,
) -> tuple[int, bool]:
    """Rows of a data-parallel rank, and whether a batch is one sequence of tokens.

    From what a version of torchtitan tells its data loader; raises InputError where no row fits.
    """
    if seq_len is not None and local_batch_size is not None:
        agreement.check_seq_len(config, seq_len, "torchtitan's training.seq_len")
        return local_batch_size, False
    if max_context_length is None or num_tokens_per_batch is None:
        raise InputError(
            "this version of torchtitan tells a data loader neither seq_len and local_batch_size "
            "nor max_context_length and num_tokens_per_batch: expected one that the README of "
            "jaxdata.clients names"
        )
    agreement.check_seq_len(config, max_context_length, "torchtitan's training.max_context_length")
    rows, rest = divmod(num_tokens_per_batch, max_context_length)
    if rest:
        raise InputError(
            f"torchtitan's training.num_tokens_per_microbatch_per_dp_rank={num_tokens_per_batch} "
            f"is no multiple of max_context_length={max_context_length}, the length of a row: give "
            "a multiple"
        )
    return rows, True


class Batches:
    """A data loader as torchtitan asks for it; `dataloader` makes it a `BaseDataLoader`."""

    def __init__(
        self, config: Any, *, dp_world_size: int, dp_rank: int, tokenizer: Any = None, **told: Any
    ) -> None:
        from jaxdata.torch import Loader

        run = load_config(config.run, config.overrides)
        rows, flat = shape(run, **told)
        if tokenizer is not None:
            agreement.check_vocabulary(run, tokenizer.get_vocab_size(), "torchtitan's tokenizer")
        chosen = {"batch_size": rows * dp_world_size, "layout": partial(layout, flat=flat)}
        chosen |= {"rank": dp_rank, "world_size": dp_world_size}
        self.loader = agreement.loader_of(Loader, run, config.split, **chosen)
        self._repeat, self._log_every = config.infinite or config.repeat, config.log_every

    def __iter__(self) -> Iterator[Any]:
        """Batches to the end of the rows, again and again where the config repeats them."""
        while True:
            try:
                for batch in self.loader:
                    if self._log_every and self.loader.step % self._log_every == 0:
                        name = "torchtitan.observability.structured_logger"
                        logger = importlib.import_module(name)
                        logger.log_trace_scalar(agreement.measures(self.loader))
                    yield batch
            except SourceExhausted as halt:
                logging.getLogger("torchtitan").warning(str(halt))
            if not self._repeat:
                return
            self.loader.reset()

    def state_dict(self) -> dict[str, Any]:
        """The state as one string, equal on every rank, so that the checkpoint holds it once."""
        return {_STATE: json.dumps(self.loader.get_state())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken, at any data-parallel degree; nothing for an empty one."""
        if not state_dict:
            return
        if _STATE not in state_dict:
            raise StateMismatch(
                f"the checkpoint's data loader has {', '.join(sorted(map(str, state_dict)))}: that "
                "is not jaxdata's. To start its rows from the first, set "
                "checkpoint.exclude_from_loading to ['dataloader']"
            )
        self.loader.set_state(json.loads(state_dict[_STATE]))

    def close(self) -> None:
        """Stop threads and worker processes."""
        self.loader.close()


@cache
def _data_loader() -> Any:
    try:
        module = importlib.import_module("torchtitan.components.dataloader")
    except ModuleNotFoundError:  # later versions have it there
        module = agreement.module_of("torchtitan.components.data.loader", "pip install torchtitan")
    base = module.BaseDataLoader

    @dataclass(kw_only=True, slots=True)
    class Settings(base.Config):  # type: ignore[misc, name-defined]
        run: Any = None
        split: str | None = None
        overrides: dict[str, Any] = field(default_factory=dict)
        log_every: int = 100
        """batches between two records of tokens by source in the structured log; 0: none"""
        infinite: bool = False
        """set by torchtitan's validator, up to 0.3"""
        repeat: bool = False
        """set by torchtitan's validator, later"""

    class JaxdataLoader(Batches, base):  # type: ignore[misc, valid-type]
        Config = Settings

    return JaxdataLoader
