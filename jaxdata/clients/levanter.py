"""Levanter: the rows of a config as an `AsyncDataset` of `LmExample`.

    from jaxdata.clients import levanter
    data = levanter.examples("run.yaml", Pos)  # pack: {strategy: concat, seq_len: Pos.size - 1}
    with Trainer(config, optimizer, levanter.loss) as trainer: ...
    for example in trainer.data_loader(data, Batch).iter_from_step(state.step): ...

Levanter's loader reads by index, from the step of its checkpoint, on any number of processes. Its
loss shifts the tokens of a row: only `concat` has the next token after each token with loss. And it
is the mean over the targets of a micro-batch, where `per_device_parallelism` splits batches into
these: in the mean of such means a target weighs by how few others its micro-batch has.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.clients.agreement import Run, check_seq_len, check_vocabulary, module_of
from jaxdata.config import build_rows, load_config
from jaxdata.rows.table import Batch


def examples(
    run: Run,
    Pos: Any,  # noqa: N803 - Levanter's axis
    *,
    split: str | None = None,
    vocab_size: int | None = None,
) -> Any:
    """Row *i* as example *i*: its slots, the target of the last one, and the documents' segments.

    Args:
        run: a config, as for `jaxdata.load`; its rows have a slot less than `Pos`.
        Pos: the axis of positions of Levanter's model.
        split: by default the curriculum's.
        vocab_size: of Levanter's model, to be checked.
    """
    settings = load_config(run, {})
    check_seq_len(settings, Pos.size - 1, "Levanter's Pos.size - 1")
    check_vocabulary(settings, vocab_size, "Levanter's vocabulary")
    if settings.loader.skip_rows:
        raise InputError("loader.skip_rows is of a loader, and Levanter has its own: remove it")
    return _examples()(build_rows(settings, split), Pos)


def loss(model: Any, example: Any, *, key: Any = None) -> Any:
    """A loss for Levanter's `Trainer`, over slots, of which all micro-batches have as many."""
    return model.compute_next_token_loss(example, key=key, reduction=None).mean()


def tokens_of(row: Batch) -> tuple[Any, Any, Any]:
    """Tokens, loss mask and segment ids, each (seq_len + 1,).

    Raises:
        InputError: a target with loss is not the next token.

    >>> row = {"inputs": np.array([5, 6, 7]), "targets": np.array([6, 0, 8]),
    ...        "segment_ids": np.array([1, 1, 2]), "loss_mask": np.array([True, False, True])}
    >>> [array.tolist() for array in tokens_of(row)]
    [[5, 6, 7, 8], [1, 0, 1, 0], [1, 1, 2, 2]]
    """
    tokens = np.append(row["inputs"], row["targets"][-1:])
    if np.any(row["loss_mask"] & (tokens[1:] != row["targets"])):
        raise InputError(
            "Levanter's loss takes the next token of a row as target, and the last token of these "
            "windows is a target only: pack with strategy='concat'"
        )
    mask = np.append(row["loss_mask"], False).astype(np.int32)
    return tokens, mask, np.append(row["segment_ids"], row["segment_ids"][-1:])


@cache
def _examples() -> Any:
    names = ("haliax", "levanter.data", "levanter.models.lm_model")
    hax, data, models = (module_of(name, "pip install marin-levanter") for name in names)

    class Examples(data.AsyncDataset):  # type: ignore[misc, name-defined]
        def __init__(self, rows: Any, Pos: Any) -> None:  # noqa: N803
            super().__init__()
            self.rows, self._pos = rows, Pos

        async def async_len(self) -> int:
            return len(self.rows)

        async def final_length_is_known(self) -> bool:
            return True

        def is_finite(self) -> bool:
            return True

        async def current_len(self) -> int:
            return len(self.rows)

        async def get_batch(self, indices: Sequence[int]) -> list[Any]:
            return await asyncio.to_thread(lambda: [self._example(int(i)) for i in indices])

        def _example(self, index: int) -> Any:
            arrays = tokens_of(self.rows[index])
            tokens, mask, ids = (hax.named(array, self._pos) for array in arrays)
            return models.LmExample.causal(tokens, loss_weight=mask, segment_ids=ids)

    return Examples
