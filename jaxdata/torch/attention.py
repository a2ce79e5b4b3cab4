"""Segment ids for attention in torch: as dense masks, block masks, or lengths.

As in `feed.layouts`, padding counts as a segment of its own.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from jaxdata.feed import layouts


def attention_mask(segment_ids: Tensor) -> Tensor:
    """The mask for `scaled_dot_product_attention`, made on the device of the ids.

    Args:
        segment_ids: (batch, seq_len).

    Returns:
        bool (batch, 1, seq_len, seq_len), True where a slot (row) attends to another (column).

    >>> attention_mask(torch.tensor([[1, 1, 2]]))[0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    return (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]).tril()


def cu_seqlens(segment_ids: Tensor, length: int | None = None) -> tuple[Tensor, int]:
    """Cumulative sequence lengths of a batch as one stream, and the longest: for flash attention.

    See `feed.layouts.cu_seqlens`. Ids on a device are copied to the host; to avoid that, the
    layout `lambda batch: {**batch, **varlen(batch["segment_ids"])}` makes it with the batch.

    Args:
        segment_ids: of a batch, (batch, seq_len).
        length: pad the result to so many numbers, for kernels that need one shape.

    >>> cu_seqlens(torch.tensor([[1, 1, 2, 0], [1, 1, 1, 1]]))
    (tensor([0, 2, 3, 4, 8], dtype=torch.int32), 4)
    """
    numbers, longest = layouts.cu_seqlens(segment_ids.numpy(force=True), length)
    return torch.from_numpy(numbers).to(segment_ids.device), longest


def block_mask(segment_ids: Tensor, block_size: int = 128) -> BlockMask:
    """The mask for `flex_attention`, made on the device of the ids without a dense mask.

    Args:
        segment_ids: (batch, seq_len).
        block_size: slots of a block.

    Returns:
        The block mask that `create_block_mask` makes of `attention_mask`, for any number of heads.

    >>> block_mask(torch.tensor([[1, 1, 2, 2]]), block_size=2).to_dense()[0, 0]
    tensor([[1, 0],
            [0, 1]], dtype=torch.int32)
    """
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    segments = begins.cumsum(1)  # numbered along the row, padding too: non-decreasing

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
    """Which blocks of queries attend to some, and to all, of which blocks of keys.

    Bool (batch, 1, blocks, blocks) each; a pair is in at most one of them.
    """
    seq_len = segments.shape[1]
    first = torch.arange(0, seq_len, size, device=segments.device)
    last = torch.clamp(first + size, max=seq_len) - 1
    begin, end = segments[:, first], segments[:, last]
    before = (first[:, None] > first)[None]
    # Only the last segment of an earlier block can reach into a block, as its first segment.
    touches = before & (begin[:, :, None] == end[:, None, :])
    # To create_block_mask a short block is never whole.
    whole = (last + 1 == first + size)[:, None] & before
    full = whole & (end[:, :, None] == begin[:, None, :])
    some = (touches | torch.eye(len(first), dtype=torch.bool, device=segments.device)) & ~full
    return some[:, None], full[:, None]


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of key blocks of each query block, and their indices, which come first."""
    chosen = blocks.to(torch.int32)
    order = torch.argsort(chosen, dim=-1, descending=True, stable=True)
    return chosen.sum(-1).to(torch.int32), order.to(torch.int32)
