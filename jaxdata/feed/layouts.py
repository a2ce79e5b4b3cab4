"""Batches with the names, dtypes and loss masks of other trainers.

A layout is a function of a batch of numpy arrays, applied in the process that makes the batch,
before any copy to a device. Every layout here gives the same loss, to the last target. To add one,
add it to `LAYOUTS`: configs, commands and error messages take their choices from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.feed.attention import attention_mask, row_cu_seqlens, varlen
from jaxdata.rows.table import Batch

IGNORED = -100
"""the label that torch's cross entropy ignores"""


class Layout(Protocol):
    """A function from jaxdata's batch to a trainer's; users may pass their own.

    The batch has `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool),
    each (…, seq_len). The layouts here pass on any other arrays of the rows. The result may share
    arrays with the batch.
    """

    def __call__(self, batch: Batch, /) -> Batch: ...


def native(batch: Batch) -> Batch:
    """The native layout of jaxdata: the batch unchanged."""
    return batch


def maxtext(batch: Batch) -> Batch:
    """MaxText's: int32 arrays, with loss where `targets_segmentation` is not 0.

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
    """For causal language models of transformers, `model(**batch, use_cache=False)`; int64.

    `input_ids` and `position_ids`; `labels`, which a model shifts by one itself: the label of a
    slot is the target of the slot before it, -100 where there is no loss; and `shift_labels`, the
    targets in their own slots. Models and the Trainer prefer `shift_labels`, which also hold the
    target of a row's last slot.

    There is no `attention_mask`: transformers finds the documents of a row by positions that
    restart, but only if neither a mask nor a cache is given. A padding mask would let the documents
    of a row attend to each other. With flash attention, transformers does so only in batches of one
    row.

    Args:
        attention_mask: add a full mask, bool (batch, 1, seq_len, seq_len), for models that ignore
            positions; takes a lot of memory.
        cu_seqlens: add `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, which
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
    """For Megatron-Core, as its GPT datasets have it.

    `tokens`, `labels` and `position_ids` (int64), and `loss_mask` (float32). With these alone
    Megatron's attention is causal over the whole row, as it is by default with its own datasets.
    To keep documents apart, use one of:

    Args:
        attention_mask: add a mask, bool (batch, 1, seq_len, seq_len), True where a slot must not
            attend.
        cu_seqlens: add the starts of the segments of a row, int32 (batch, seq_len + 1), padding
            counted as a segment, filled with seq_len; and `max_seqlen`, int32 (batch,), the length
            of the longest.
    """

    attention_mask: bool = False
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
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
    """The layout of a name; a function is returned as it is."""
    if isinstance(given, str) and given in LAYOUTS:
        return LAYOUTS[given]
    if isinstance(given, str) or not callable(given):
        raise InputError(
            f"layout={given!r}: expected one of {', '.join(map(repr, LAYOUTS))}, or a function of "
            "a batch that returns a batch"
        )
    return given


def check_layout(given: str | Layout, on_host: bool) -> Layout:
    """A layout, refused for batches that devices expand unless it is the native one."""
    found = layout(given)
    if not on_host and found is not native:
        raise InputError(
            f"layout={given!r} is made on the host, but expand='device' makes the arrays of layout "
            "'jaxdata' on devices: remove one of them, or rename arrays in the jitted step"
        )
    return found


_OURS = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}


def _besides(batch: Batch) -> Batch:
    """The arrays of rows other than the five that every row has."""
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
            "layout='hf' marks documents for transformers by positions that restart, but the "
            "positions of these rows run along the row: pack with positions='segment'"
        )
