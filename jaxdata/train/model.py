"""A decoder-only transformer, its loss and its optimizer: RMSNorm, rotary positions, gated MLP.

Losses are sums and counts: exact for any division of rows among devices and batches.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jaxdata.base.errors import InputError
from jaxdata.config.config_fields import ModelSettings, OptimizerSettings
from jaxdata.feed.device import attention_mask, sums_by_source

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
    query, key = _rotate(query, angles), _rotate(key, angles)
    out_BxLxNxH = jax.nn.dot_product_attention(query, key, value, mask=mask)
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


def cross_entropy(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
    """Cross entropy of each target in nats, float32 `(batch, seq_len)`; ignores masks."""
    nats_BxL: jax.Array = optax.softmax_cross_entropy_with_integer_labels(
        logits_BxLxV.astype(jnp.float32), targets_BxL
    )
    return nats_BxL


def mean_loss(nats_BxL: jax.Array, loss_mask_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean nats of the targets with loss (0 if there are none), and their number."""
    targets = jnp.sum(loss_mask_BxL)
    total = jnp.sum(jnp.where(loss_mask_BxL, nats_BxL, 0.0))
    return total / jnp.maximum(targets, 1), targets


def byte_sums(nats_BxL: jax.Array, batch: Batch, token_bytes_V: jax.Array) -> dict[str, jax.Array]:
    """The sums for `BitsPerByte`: over targets with loss, and over those that stand for bytes."""
    mask_BxL = batch["loss_mask"]
    bytes_BxL = jnp.where(mask_BxL, token_bytes_V[batch["targets"]], 0)
    return {
        "nats": jnp.sum(jnp.where(mask_BxL, nats_BxL, 0.0)),
        "targets": jnp.sum(mask_BxL),
        "text_nats": jnp.sum(jnp.where(bytes_BxL > 0, nats_BxL, 0.0)),
        "bytes": jnp.sum(bytes_BxL),
    }


@dataclass(frozen=True)
class BitsPerByte:
    """Loss per byte of text: comparable between tokenizers, unlike loss per token.

    Targets that stand for no bytes (end of document) do not count here, only in `loss`. Sums are
    kept in double precision on the host.

    >>> BitsPerByte(nats=5.0, targets=3, text_nats=4 * math.log(2), bytes=8).value
    0.5
    """

    nats: float = 0.0
    targets: int = 0
    text_nats: float = 0.0
    bytes: int = 0

    def __add__(self, other: "BitsPerByte") -> "BitsPerByte":
        return BitsPerByte(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def value(self) -> float:
        """Bits per byte."""
        if not self.bytes:
            raise InputError("no bits per byte: no evaluated token stands for any bytes")
        return self.text_nats / (math.log(2) * self.bytes)

    @property
    def loss(self) -> float:
        """Mean nats of all targets with loss."""
        return self.nats / max(self.targets, 1)


State = dict[str, Any]  # "params", "optimizer": the model's part of a checkpoint
Step = Callable[[State, Mapping[str, jax.Array]], tuple[State, dict[str, jax.Array]]]


def make_optimizer(settings: OptimizerSettings, steps: int) -> optax.GradientTransformation:
    """The optimizer of a run of `steps` steps; a run shorter than its warm-up only warms up."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0 if settings.warmup_steps else settings.learning_rate,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=max(steps, settings.warmup_steps + 1),
        end_value=settings.learning_rate * settings.final_fraction,
    )
    b1, b2, decay = settings.beta1, settings.beta2, settings.weight_decay
    adamw = optax.adamw(rate, b1=b1, b2=b2, weight_decay=decay, mask=_matrices)
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), adamw)


def _matrices(params: Any) -> Any:
    """True for weights with decay: all except the scales of the norms."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "norm", params)


def init_state(
    seed: int, model: ModelSettings, vocab_size: int, optimizer: optax.GradientTransformation
) -> State:
    """The params and optimizer state of step 0, a function of the seed alone."""
    params = init_params(jax.random.key(seed), model, vocab_size)
    return {"params": params, "optimizer": optimizer.init(params)}


def make_step(
    model: ModelSettings,
    optimizer: optax.GradientTransformation,
    replicated: jax.sharding.Sharding,
    sources: int = 1,
) -> Step:
    """The jitted `step(state, batch) -> state, metrics`; it consumes the given state.

    Of several `sources`, which the batch names, the metrics have the loss of each.

    The batch is sharded over devices and the state is not, so XLA sums gradients over devices. The
    mean is over the targets of the global batch, however they are divided among devices.
    """

    @partial(jax.jit, donate_argnums=0, out_shardings=replicated)
    def step(state: State, batch: Mapping[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
        def loss_of(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            nats_BxL = cross_entropy(forward(params, batch, model), batch["targets"])
            loss, targets = mean_loss(nats_BxL, batch["loss_mask"])
            return loss, (targets, nats_BxL)

        with_gradients = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (targets, nats_BxL)), gradients = with_gradients(state["params"])
        updates, moments = optimizer.update(gradients, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        norm = jnp.asarray(optax.global_norm(gradients))
        metrics = {"loss": loss, "targets": targets, "gradient_norm": norm}
        if sources > 1 and "source" in batch:
            metrics["source_nats"], metrics["source_targets"] = sums_by_source(
                batch["source"], batch["loss_mask"], nats_BxL, sources
            )
        return {"params": params, "optimizer": moments}, metrics

    return step


def make_sums(
    model: ModelSettings, token_bytes_V: ArrayLike, replicated: jax.sharding.Sharding
) -> Callable[[Params, Batch], dict[str, jax.Array]]:
    """Make the jitted `sums(params, batch)` of a score, the same on every process."""

    @partial(jax.jit, out_shardings=replicated)
    def sums(params: Params, batch: Batch) -> dict[str, jax.Array]:
        nats_BxL = cross_entropy(forward(params, batch, model), batch["targets"])
        return byte_sums(nats_BxL, batch, jnp.asarray(token_bytes_V, jnp.int32))

    return sums
