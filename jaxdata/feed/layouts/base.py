"""What a layout is, and what layouts are made with."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.feed.attention import attention_mask
from jaxdata.rows.table import Batch

SIDES = ("chosen", "rejected")
_OURS = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}


class Layout(Protocol):
    """A function from jaxdata's batch to a trainer's; users may pass their own.

    The batch has `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool),
    each (…, seq_len); one of `jaxdata.pairs` has them twice, as `chosen_inputs`,
    `rejected_inputs` and so on. The layouts here pass on any other arrays of the rows. The result
    may share arrays with the batch. It may be a dict, a tuple, an array, or these nested: any
    structure of arrays and plain constants (see `jaxdata.feed.trees`).
    """

    def __call__(self, batch: Batch, /) -> Any: ...


def native(batch: Batch) -> Batch:
    """The native layout of jaxdata: the batch unchanged."""
    return batch


def besides(batch: Batch) -> Batch:
    """The arrays of rows other than the five that every row has."""
    return {name: array for name, array in batch.items() if name not in _OURS}


def long(array: NDArray[Any]) -> NDArray[np.int64]:
    """The same numbers in int64, as torch's cross entropy takes them."""
    return array.astype(np.int64)


def mask_of(batch: Batch, wanted: bool, seen: bool) -> Batch:
    """The full mask (batch, 1, seq_len, seq_len): True where a slot attends, if `seen`."""
    if not wanted:
        return {}
    mask = attention_mask(batch["segment_ids"])[..., None, :, :]
    return {"attention_mask": mask if seen else ~mask}


def has_pairs(batch: Batch) -> bool:
    """Whether a batch is of `jaxdata.pairs`."""
    return "inputs" not in batch and all(f"{side}_inputs" in batch for side in SIDES)


def require_rows(batch: Batch, name: str) -> None:
    """Refuse batches that are not of packed rows, for the layout of a name."""
    missing = sorted(_OURS - batch.keys())
    if has_pairs(batch):
        raise InputError(
            f"layout={name!r} takes packed rows, and these are preference pairs: use layout='hf', "
            "which gives TRL's DPO batches, layout='jaxdata', or a function of your own"
        )
    if missing:
        raise InputError(
            f"layout={name!r} needs the arrays {', '.join(sorted(_OURS))}, and rows here lack "
            f"{', '.join(missing)}: keep them in rows.map(f), or use a function of your own"
        )
