"""Segment ids as attention in JAX takes them: a mask, or the ids that splash attention wants."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["attention_mask", "splash_segment_ids"]


def attention_mask(segment_ids_BxL: jax.Array) -> jax.Array:
    """Which slot (row) may look at which (column): earlier ones, or itself, of its own segment.

    For `jax.nn.dot_product_attention(…, mask=mask)`; bool (batch, 1, seq_len, seq_len).

    Padding counts as a segment, 0: it sees only padding, nothing sees it, and no row of the mask
    is empty, so that no softmax gives NaN.
    """
    same_BxLxL = segment_ids_BxL[:, :, None] == segment_ids_BxL[:, None, :]
    return (same_BxLxL & jnp.tri(segment_ids_BxL.shape[1], dtype=bool))[:, None]


def splash_segment_ids(segment_ids_BxL: jax.Array) -> Any:
    """The ids for splash attention on TPU, which is mapped over the batch.

    kernel = make_splash_mha(MultiHeadMask([CausalMask((L, L))] * heads), …)
    out_BxNxLxH = jax.vmap(kernel)(query, key, value, splash_segment_ids(segment_ids))
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    return SegmentIds(q=segment_ids_BxL, kv=segment_ids_BxL)
