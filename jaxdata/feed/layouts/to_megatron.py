"""The layout of Megatron-Core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxdata.feed.attention import row_cu_seqlens
from jaxdata.feed.layouts.base import besides, long, mask_of, require_rows
from jaxdata.rows.table import Batch


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
            of the longest.
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
            **(row_cu_seqlens(segments) if self.cu_seqlens else {}),
            **besides(batch),
        }
