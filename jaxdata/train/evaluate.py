"""The validation score: bits per byte over an evaluation loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdata.train.loss import BitsPerByte, byte_sums, cross_entropy
from jaxdata.train.model import forward
from jaxdata.train.settings import ModelSettings

Evaluate = Callable[[Any, Iterable[Mapping[str, jax.Array]]], BitsPerByte]


def make_evaluate(
    model: ModelSettings, token_bytes: np.ndarray, replicated: jax.sharding.Sharding
) -> Evaluate:
    """Make `evaluate(params, batches)`, which scores all batches, the same on every process."""
    token_bytes_V = np.asarray(token_bytes, np.int32)

    @partial(jax.jit, out_shardings=replicated)
    def sums_of(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        nats_BxL = cross_entropy(forward(params, batch, model), batch["targets"])
        return byte_sums(nats_BxL, batch, jnp.asarray(token_bytes_V))

    def evaluate(params: Any, batches: Iterable[Mapping[str, jax.Array]]) -> BitsPerByte:
        score = BitsPerByte()
        for batch in batches:
            score.add(sums_of(params, batch))
        return score

    return evaluate
