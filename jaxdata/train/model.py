"""A decoder-only transformer: RMSNorm, rotary positions, gated MLP; the params are a dict.

Array names end in their shape: B batch, L sequence, D width, N heads, H head width,
F MLP width, V vocabulary.
The params of the blocks are stacked, so that `scan` compiles one block for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxdata.feed.device.attention import attention_mask
from jaxdata.train.settings import ModelSettings

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


def init_params(key: jax.Array, settings: ModelSettings, vocab_size: int) -> Params:
    """Random float32 params; matrices that write to the residual stream shrink with depth."""
    layers, width, hidden = settings.layers, settings.width, settings.mlp_width
    keys = iter(jax.random.split(key, 9))

    def matrix(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.multiply(jax.random.normal(next(keys), shape), scale * shape[-2] ** -0.5)

    shrink = (2 * layers) ** -0.5
    params: Params = {
        "embedding": jax.random.normal(next(keys), (vocab_size, width)) * 0.02,
        "attention": {
            "norm": jnp.ones((layers, width)),
            "query": matrix(layers, width, width),
            "key": matrix(layers, width, width),
            "value": matrix(layers, width, width),
            "output": matrix(layers, width, width, scale=shrink),
        },
        "mlp": {
            "norm": jnp.ones((layers, width)),
            "gate": matrix(layers, width, hidden),
            "up": matrix(layers, width, hidden),
            "down": matrix(layers, hidden, width, scale=shrink),
        },
        "norm": jnp.ones(width),
    }
    if not settings.tied:
        params["head"] = matrix(width, vocab_size)
    return params


def count_params(params: Params) -> int:
    """Number of learned parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def forward(params: Params, batch: Batch, settings: ModelSettings) -> jax.Array:
    """Logits, float32 `(batch, seq_len, vocabulary)`, of the token after each input.

    Reads `inputs`, `positions` and `segment_ids` of a batch. The logits of a segment do not depend
    on the rest of its row.
    """
    dtype = jnp.dtype(settings.dtype)
    mask_Bx1xLxL = attention_mask(batch["segment_ids"])
    angles_BxLxH = _angles(batch["positions"], settings)

    def block(x_BxLxD: jax.Array, layer: Params) -> tuple[jax.Array, None]:
        layer = jax.tree.map(lambda weight: weight.astype(dtype), layer)
        x_BxLxD += _attention(layer["attention"], x_BxLxD, mask_Bx1xLxL, angles_BxLxH, settings)
        x_BxLxD += _mlp(layer["mlp"], x_BxLxD)
        return x_BxLxD, None

    x_BxLxD = params["embedding"][batch["inputs"]].astype(dtype)
    layers = {"attention": params["attention"], "mlp": params["mlp"]}
    x_BxLxD, _ = jax.lax.scan(jax.checkpoint(block) if settings.remat else block, x_BxLxD, layers)
    x_BxLxD = _rms_norm(x_BxLxD, params["norm"].astype(dtype))
    head_DxV = params["embedding"].T if settings.tied else params["head"]
    return jnp.dot(x_BxLxD, head_DxV.astype(dtype), preferred_element_type=jnp.float32)


def _attention(
    layer: Params, x_BxLxD: jax.Array, mask: jax.Array, angles: jax.Array, settings: ModelSettings
) -> jax.Array:
    batch, length, width = x_BxLxD.shape
    heads = (batch, length, settings.heads, width // settings.heads)
    x_BxLxD = _rms_norm(x_BxLxD, layer["norm"])
    query, key, value = (
        (x_BxLxD @ layer[name]).reshape(heads) for name in ("query", "key", "value")
    )
    out_BxLxNxH = jax.nn.dot_product_attention(
        _rotate(query, angles), _rotate(key, angles), value, mask=mask
    )
    return jnp.dot(out_BxLxNxH.reshape(batch, length, width), layer["output"])


def _mlp(layer: Params, x_BxLxD: jax.Array) -> jax.Array:
    x_BxLxD = _rms_norm(x_BxLxD, layer["norm"])
    gate_BxLxF = jax.nn.silu(x_BxLxD @ layer["gate"])
    return jnp.dot(gate_BxLxF * (x_BxLxD @ layer["up"]), layer["down"])


def _rms_norm(x: jax.Array, scale_D: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(exact), axis=-1, keepdims=True)
    return (exact * jax.lax.rsqrt(mean_square + 1e-6)).astype(x.dtype) * scale_D


def _angles(positions_BxL: jax.Array, settings: ModelSettings) -> jax.Array:
    half = settings.width // settings.heads // 2
    frequencies = settings.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    return positions_BxL[:, :, None] * frequencies


def _rotate(x_BxLxNxH: jax.Array, angles: jax.Array) -> jax.Array:
    sin, cos = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    first, second = jnp.split(x_BxLxNxH.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxLxNxH.dtype)
