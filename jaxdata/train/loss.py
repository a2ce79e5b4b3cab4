"""Cross entropy as sums and counts: exact however rows are spread over devices or batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdata.errors import InputError

__all__ = ["BitsPerByte", "byte_sums", "cross_entropy", "mean_loss"]

Batch = Mapping[str, jax.Array]


def cross_entropy(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
    """Nats that each target costs, float32 `(batch, seq_len)`, masks not looked at."""
    nats_BxL: jax.Array = optax.softmax_cross_entropy_with_integer_labels(
        logits_BxLxV.astype(jnp.float32), targets_BxL
    )
    return nats_BxL


def mean_loss(nats_BxL: jax.Array, loss_mask_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean nats of the targets with loss, and how many there are (0 where there are none)."""
    targets = jnp.sum(loss_mask_BxL)
    total = jnp.sum(jnp.where(loss_mask_BxL, nats_BxL, 0.0))
    return total / jnp.maximum(targets, 1), targets


def byte_sums(nats_BxL: jax.Array, batch: Batch, token_bytes_V: jax.Array) -> dict[str, jax.Array]:
    """What `BitsPerByte` adds up: over targets with loss, and over those that stand for bytes."""
    mask_BxL = batch["loss_mask"]
    bytes_BxL = jnp.where(mask_BxL, token_bytes_V[batch["targets"]], 0)
    return {
        "nats": jnp.sum(jnp.where(mask_BxL, nats_BxL, 0.0)),
        "targets": jnp.sum(mask_BxL),
        "text_nats": jnp.sum(jnp.where(bytes_BxL > 0, nats_BxL, 0.0)),
        "bytes": jnp.sum(bytes_BxL),
    }


@dataclass
class BitsPerByte:
    """Loss per byte of the text: the same for every tokenizer, unlike loss per token.

    Targets that stand for no bytes (end of document) cost nothing and weigh nothing here; they
    are in `loss`. Sums are kept in double precision on the host.

    >>> score = BitsPerByte()
    >>> score.add({"nats": 5.0, "targets": 3, "text_nats": 4 * math.log(2), "bytes": 8})
    >>> score.value
    0.5
    """

    nats: float = 0.0
    targets: int = 0
    text_nats: float = 0.0
    bytes: int = 0

    def add(self, sums: Mapping[str, jax.Array | np.ndarray | float]) -> None:
        """Add what `byte_sums` gave for one batch."""
        self.nats += float(sums["nats"])
        self.targets += int(sums["targets"])
        self.text_nats += float(sums["text_nats"])
        self.bytes += int(sums["bytes"])

    @property
    def value(self) -> float:
        """Bits per byte."""
        if not self.bytes:
            raise InputError("bits per byte of no text: no evaluated token stands for any bytes")
        return self.text_nats / (math.log(2) * self.bytes)

    @property
    def loss(self) -> float:
        """Mean nats of all targets with loss."""
        return self.nats / max(self.targets, 1)
