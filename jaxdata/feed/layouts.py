"""Batches as other trainers take them: their names, dtypes and ways to say where there is loss.

A layout is a function of a batch of numpy arrays, applied where the batch is made, before any
copy to a device. With each of them the loss is the same, to the last target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.attention import attention_mask, row_cu_seqlens, varlen
from jaxdata.feed.batches import BatchMaker
from jaxdata.feed.schedule import Span
from jaxdata.rows.table import Batch

__all__ = ["LAYOUTS", "HuggingFace", "LaidOut", "Layout", "Megatron", "layout", "maxtext", "native"]

IGNORED = -100
"""the label that torch's cross entropy passes over"""


class Layout(Protocol):
    """A function from jaxdata's batch to that of a trainer; one's own may be given.

    The batch has `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool),
    each (…, seq_len), and whatever rows were given besides, which the layouts here pass on. The
    arrays of a batch that is returned may be those that were given.
    """

    def __call__(self, batch: Batch, /) -> Batch: ...


def native(batch: Batch) -> Batch:
    """The batch as it is."""
    return batch


def maxtext(batch: Batch) -> Batch:
    """MaxText's: int32 arrays, loss where `targets_segmentation` is not 0.

    `inputs`, `targets`, `inputs_position`, `targets_position`, `inputs_segmentation`,
    `targets_segmentation`.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> maxtext(batch)["targets_segmentation"].tolist()
    [1, 0, 2]
    """
    segments, positions = batch["segment_ids"], batch["positions"]
    return {
        "inputs": batch["inputs"],
        "targets": batch["targets"],
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": segments * batch["loss_mask"],
        **_besides(batch),
    }


@dataclass(frozen=True)
class HuggingFace:
    """That of transformers' causal language models, `model(**batch, use_cache=False)`; int64.

    `input_ids` and `position_ids`; `labels`, which a model shifts by one itself: that of a slot
    is the target of the slot before it, -100 where there is no loss; and `shift_labels`, the
    targets where they belong. The models and the Trainer prefer those, which hold the target of
    a row's last slot as well.

    There is no `attention_mask`: transformers sees in positions that restart where a document
    begins, but only where neither mask nor cache is given. A mask of padding would let the
    documents of a row see each other. For flash attention it does so in batches of one row only.

    Args:
        attention_mask: add one that says all of it, bool (batch, 1, seq_len, seq_len), for models
            that do not look at positions; takes a lot of memory.
        cu_seqlens: add `cu_seq_lens_q`, `cu_seq_lens_k` and `max_length_q`, `max_length_k`, which
            flash attention takes for batches of several rows.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> [HuggingFace()(batch)[name].tolist() for name in ("labels", "shift_labels")]
    [[-100, 6, -100], [6, -100, 8]]
    """

    attention_mask: bool = False
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        """See `Layout`; raises InputError for rows whose positions do not restart."""
        _require_restarts(batch)
        targets = np.where(batch["loss_mask"], _long(batch["targets"]), IGNORED)
        labels = np.full_like(targets, IGNORED)
        labels[..., 1:] = targets[..., :-1]
        return {
            "input_ids": _long(batch["inputs"]),
            "labels": labels,
            "shift_labels": targets,
            "position_ids": _long(batch["positions"]),
            **_mask_of(batch, self.attention_mask, seen=True),
            **(_for_flash_attention(batch) if self.cu_seqlens else {}),
            **_besides(batch),
        }


@dataclass(frozen=True)
class Megatron:
    """That of Megatron-Core's GPT datasets.

    `tokens`, `labels` and `position_ids` (int64), and `loss_mask` (float32). With these alone
    Megatron's attention is causal over the whole row, as it is by default with its own datasets.
    To keep documents apart, ask for one of:

    Args:
        attention_mask: bool (batch, 1, seq_len, seq_len), True where a slot must not look.
        cu_seqlens: where the segments of a row begin, int32 (batch, seq_len + 1), padding as one
            more, filled up with seq_len; and `max_seqlen`, int32 (batch,), the longest of them.
    """

    attention_mask: bool = False
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        """See `Layout`."""
        segments = batch["segment_ids"]
        return {
            "tokens": _long(batch["inputs"]),
            "labels": _long(batch["targets"]),
            "loss_mask": batch["loss_mask"].astype(np.float32),
            "position_ids": _long(batch["positions"]),
            **_mask_of(batch, self.attention_mask, seen=False),
            **(row_cu_seqlens(segments) if self.cu_seqlens else {}),
            **_besides(batch),
        }


LAYOUTS: dict[str, Layout] = {
    "jaxdata": native,
    "maxtext": maxtext,
    "hf": HuggingFace(),
    "megatron": Megatron(),
}


def layout(given: str | Layout) -> Layout:
    """A layout by its name, or the one given."""
    if isinstance(given, str) and given in LAYOUTS:
        return LAYOUTS[given]
    if isinstance(given, str) or not callable(given):
        raise InputError(
            f"layout={given!r}: expected one of {', '.join(map(repr, LAYOUTS))}, or a function of "
            "a batch that returns a batch"
        )
    return given


@dataclass(frozen=True)
class LaidOut:
    """What another `BatchMaker` makes, in a layout."""

    maker: BatchMaker
    layout: Layout

    def together(self, span: Span) -> int:
        """See `BatchMaker`."""
        return self.maker.together(span)

    def make(self, spans: Sequence[Span]) -> Iterator[Batch]:
        """See `BatchMaker`."""
        return map(self.layout, self.maker.make(spans))


_OURS = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}


def _besides(batch: Batch) -> Batch:
    """What rows carry besides the five arrays that every row has."""
    return {name: array for name, array in batch.items() if name not in _OURS}


def _long(array: NDArray[Any]) -> NDArray[np.int64]:
    return array.astype(np.int64)


def _mask_of(batch: Batch, wanted: bool, seen: bool) -> Batch:
    if not wanted:
        return {}
    mask = attention_mask(batch["segment_ids"])[..., None, :, :]
    return {"attention_mask": mask if seen else ~mask}


def _for_flash_attention(batch: Batch) -> Batch:
    found = varlen(batch["segment_ids"])
    names = {"cu_seqlens": "cu_seq_lens", "max_seqlen": "max_length"}
    return {f"{names[name]}_{of}": array for name, array in found.items() for of in "qk"}


def _require_restarts(batch: Batch) -> None:
    segments, positions = batch["segment_ids"], batch["positions"]
    begins = (segments[..., 1:] != segments[..., :-1]) & (segments[..., 1:] > 0)
    if positions[..., 1:][begins].any():
        raise InputError(
            "layout='hf' tells transformers by positions where a document begins, and those of "
            "these rows run along the row: pack with positions='segment'"
        )
