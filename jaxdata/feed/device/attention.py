"""Segment ids for attention in JAX: as a mask, or as the ids that splash attention takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def attention_mask(segment_ids_BxL: jax.Array) -> jax.Array:
    """The causal mask within segments, for `jax.nn.dot_product_attention(…, mask=mask)`.

    Bool (batch, 1, seq_len, seq_len), True where a slot (row) attends to another (column). Padding
    counts as segment 0: it attends only to padding, and nothing else attends to it. No row of the
    mask is empty, so that no softmax gives NaN.
    """
    same_BxLxL = segment_ids_BxL[:, :, None] == segment_ids_BxL[:, None, :]
    return (same_BxLxL & jnp.tri(segment_ids_BxL.shape[1], dtype=bool))[:, None]


def splash_segment_ids(segment_ids_BxL: jax.Array) -> Any:
    """The ids for splash attention on TPU, which `jax.vmap` maps over the batch.

    kernel = make_splash_mha(MultiHeadMask([CausalMask((L, L))] * heads), …)
    out_BxNxLxH = jax.vmap(kernel)(query, key, value, splash_segment_ids(segment_ids))
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    return SegmentIds(q=segment_ids_BxL, kv=segment_ids_BxL)
