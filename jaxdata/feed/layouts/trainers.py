"""The layouts of transformers and TRL, of MaxText, and of Megatron-Core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.feed.attention import padded_cu_seqlens, row_cu_seqlens, varlen
from jaxdata.feed.layouts.base import SIDES, besides, has_pairs, long, mask_of, require_rows
from jaxdata.rows.table import Batch

IGNORED = -100
"""the label that torch's cross entropy ignores"""


@dataclass(frozen=True)
class HuggingFace:
    """For causal language models of transformers, `model(**batch)`; int64.

    `input_ids` and `position_ids`; `labels`, which a model shifts by one itself: the label of a
    slot is the target of the slot before it, -100 where there is no loss; and `shift_labels`, the
    targets in their own slots. Models and the Trainer prefer `shift_labels`, which also hold the
    target of a row's last slot.

    `use_cache` is False, and there is no `attention_mask`: transformers finds the documents of a
    row by positions that restart, but only if neither a mask nor a cache is given; with a cache,
    the documents of a row attend to each other. With flash attention, transformers does so only in
    batches of one row.

    Preference pairs become what TRL's `DPOTrainer` makes of its own: see :func:`preference_pairs`.

    Args:
        attention_mask: add a full mask, bool (batch, 1, seq_len, seq_len), for models that ignore
            positions; takes a lot of memory.
        cu_seqlens: add `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, which
            flash attention takes for batches of several rows.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> [HuggingFace()(batch)[name].tolist() for name in ("labels", "shift_labels", "use_cache")]
    [[-100, 6, -100], [6, -100, 8], False]
    """

    attention_mask: bool = False
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        """See `Layout`; raises InputError for rows whose positions do not restart."""
        if has_pairs(batch):
            return preference_pairs(batch)
        require_rows(batch, "hf")
        _require_restarts(batch)
        targets = np.where(batch["loss_mask"], long(batch["targets"]), IGNORED)
        labels = np.full_like(targets, IGNORED)
        labels[..., 1:] = targets[..., :-1]
        return {
            "input_ids": long(batch["inputs"]),
            "labels": labels,
            "shift_labels": targets,
            "position_ids": long(batch["positions"]),
            "use_cache": np.array(False),
            **mask_of(batch, self.attention_mask, seen=True),
            **(_for_flash_attention(batch) if self.cu_seqlens else {}),
            **besides(batch),
        }


def preference_pairs(batch: Batch) -> Batch:
    """Pairs as TRL's `DPOTrainer` has them: all chosen texts, then all rejected ones.

    `input_ids`, `attention_mask` and `completion_mask`, each int64 (2 batch, seq_len + 1): a row
    here is a whole text, the target of its last slot included. The completion mask is 1 for tokens
    of an answer.

    >>> from numpy import array as a
    >>> side = {"inputs": a([[5, 6, 0]]), "targets": a([[6, 7, 0]]), "segment_ids": a([[1, 1, 0]]),
    ...         "loss_mask": a([[False, True, False]])}
    >>> pair = {f"{name}_{of}": array for name in SIDES for of, array in side.items()}
    >>> {name: array[0].tolist() for name, array in preference_pairs(pair).items()}
    {'input_ids': [5, 6, 7, 0], 'attention_mask': [1, 1, 1, 0], 'completion_mask': [0, 0, 1, 0]}
    """

    def both(name: str) -> np.ndarray:
        return long(np.concatenate([batch[f"{side}_{name}"] for side in SIDES]))

    # Every token of a text but the first is the target of a slot, and there is no padding before.
    filled, targets = both("segment_ids") > 0, both("targets")
    return {
        "input_ids": _after(both("inputs")[..., :1], targets),
        "attention_mask": _after(long(filled[..., :1]), long(filled)),
        "completion_mask": _after(long(np.zeros_like(filled[..., :1])), both("loss_mask")),
    }


def _after(first: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.concatenate([first, others], axis=-1)


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
    require_rows(batch, "maxtext")
    segments, positions = batch["segment_ids"], batch["positions"]
    return {
        "inputs": batch["inputs"],
        "targets": batch["targets"],
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": segments * batch["loss_mask"],
        **besides(batch),
    }


@dataclass(frozen=True)
class Megatron:
    """For Megatron-Core, as its GPT datasets have it; documents of a row are kept apart.

    `tokens`, `labels` and `position_ids` (int64), `loss_mask` (float32), and by default
    `attention_mask`, of seq_len² bytes a row. Attention kernels that take no mask want `cu_seqlens`
    instead, which are small. With neither, Megatron's attention is causal over the whole row:
    documents see those before them.

    Args:
        attention_mask: add a mask, bool (batch, 1, seq_len, seq_len), True where a slot must not
            attend; None for one unless there are `cu_seqlens`.
        cu_seqlens: add the starts of the segments of a row, int32 (batch, seq_len + 1), padding
            counted as a segment, filled with seq_len; and `max_seqlen`, int32 (batch,), the length
            of the longest. For context parallelism by document, where padding counts to the segment
            before it, also `cu_seqlens_q`, `cu_seqlens_q_padded` and `max_seqlen_q`, as
            `PackedSeqParams` has them: see `feed.attention.padded_cu_seqlens`.
    """

    attention_mask: bool | None = None
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        require_rows(batch, "megatron")
        segments, masked = batch["segment_ids"], self.attention_mask
        return {
            "tokens": long(batch["inputs"]),
            "labels": long(batch["targets"]),
            "loss_mask": batch["loss_mask"].astype(np.float32),
            "position_ids": long(batch["positions"]),
            **mask_of(batch, not self.cu_seqlens if masked is None else masked, seen=False),
            **(row_cu_seqlens(segments) | padded_cu_seqlens(segments) if self.cu_seqlens else {}),
            **besides(batch),
        }
