"""Segment ids as torch's attention takes them: dense masks, block masks, lengths.

As in `feed.attention`, padding counts as a segment of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from jaxdata.feed import attention

__all__ = ["attention_mask", "block_mask", "cu_seqlens"]


def attention_mask(segment_ids: Tensor) -> Tensor:
    """The mask for `scaled_dot_product_attention`, made on the device of the ids.

    Args:
        segment_ids: (batch, seq_len).

    Returns:
        bool (batch, 1, seq_len, seq_len), True where a slot (row) may look at another (column).
    """
    return (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]).tril()


def cu_seqlens(segment_ids: Tensor, length: int | None = None) -> tuple[Tensor, int]:
    """Where sequences begin in the batch as one stream, and the longest: for flash attention.

    Best asked of ids on the host: from a device they are fetched. See `feed.attention.cu_seqlens`;
    the layout `lambda batch: {**batch, **varlen(batch["segment_ids"])}` has it made with the batch.

    >>> cu_seqlens(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
    (tensor([0, 2, 3, 4, 8], dtype=torch.int32), 4)
    """
    numbers, longest = attention.cu_seqlens(segment_ids.numpy(force=True), length)
    return torch.from_numpy(numbers).to(segment_ids.device), longest


def block_mask(segment_ids: Tensor, block_size: int = 128) -> BlockMask:
    """The mask for `flex_attention`, made on the device of the ids without a dense one.

    Args:
        segment_ids: (batch, seq_len).
        block_size: slots of a block.

    Returns:
        Equal to what `create_block_mask` makes of `attention_mask`, for every number of heads.
    """
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    segments = begins.cumsum(1)  # numbered along the row, padding too: they never fall

    def within(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segments[batch, query] == segments[batch, key])

    seq_len = segments.shape[1]
    partial, full = _blocks(segments, block_size)
    return BlockMask.from_kv_blocks(
        *_ordered(partial),
        *_ordered(full),
        BLOCK_SIZE=block_size,
        mask_mod=within,
        seq_lengths=(seq_len, seq_len),
    )


def _blocks(segments: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Which blocks of queries look at some, and at all, of which blocks of keys.

    Bool (batch, 1, blocks, blocks) each; what is in the second is not in the first.
    """
    seq_len = segments.shape[1]
    first = torch.arange(0, seq_len, size, device=segments.device)
    last = torch.clamp(first + size, max=seq_len) - 1
    begin, end = segments[:, first], segments[:, last]
    before = (first[:, None] > first)[None]
    # Of an earlier block only the last segment can reach into a block, and only its first.
    touches = before & (begin[:, :, None] == end[:, None, :])
    whole = (last + 1 == first + size)[:, None] & before  # create_block_mask: a short one is not
    full = whole & (end[:, :, None] == begin[:, None, :])
    some = (touches | torch.eye(len(first), dtype=torch.bool, device=segments.device)) & ~full
    return some[:, None], full[:, None]


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and which, those first."""
    chosen = blocks.to(torch.int32)
    order = torch.argsort(chosen, dim=-1, descending=True, stable=True)
    return chosen.sum(-1).to(torch.int32), order.to(torch.int32)
