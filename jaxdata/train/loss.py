"""Cross entropy as sums and counts: exact for any division of rows among devices and batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdata.errors import InputError

Batch = Mapping[str, jax.Array]


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


@dataclass
class BitsPerByte:
    """Loss per byte of text: comparable between tokenizers, unlike loss per token.

    Targets that stand for no bytes (end of document) do not count here, only in `loss`. Sums are
    kept in double precision on the host.

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
        self.nats += float(sums["nats"])
        self.targets += int(sums["targets"])
        self.text_nats += float(sums["text_nats"])
        self.bytes += int(sums["bytes"])

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
