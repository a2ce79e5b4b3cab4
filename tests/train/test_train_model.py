"""The model: what a token may see, and what it may not."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdata.config.train_section import ModelSettings
from jaxdata.train.model import cross_entropy, forward, init_params, mean_loss

VOCAB, LENGTH = 50, 12
TINY = ModelSettings(layers=2, width=16, heads=2)
SEGMENTS = np.array([1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0, 0])
POSITIONS = np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 0])


def batch_of(tokens: np.ndarray, **more: np.ndarray) -> dict[str, jax.Array]:
    fields = {
        "inputs": tokens,
        "targets": np.roll(tokens, -1),
        "loss_mask": SEGMENTS > 0,
        "segment_ids": SEGMENTS,
        "positions": POSITIONS,
    }
    return {name: jnp.asarray(array)[None] for name, array in (fields | more).items()}


def logits_of(batch: Mapping[str, jax.Array], settings: ModelSettings = TINY) -> np.ndarray:
    params = init_params(jax.random.key(0), settings, VOCAB)
    return np.asarray(forward(params, batch, settings)[0])


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(1, VOCAB, LENGTH)


def test_a_segment_does_not_see_the_others(tokens: np.ndarray) -> None:
    other = tokens.copy()
    other[:4] = (tokens[:4] + 7) % VOCAB
    before, after = logits_of(batch_of(tokens)), logits_of(batch_of(other))
    assert np.abs(before[:4] - after[:4]).max() > 1e-3
    np.testing.assert_array_equal(before[4:], after[4:])


def test_a_token_does_not_see_later_ones(tokens: np.ndarray) -> None:
    other = tokens.copy()
    other[7] = (tokens[7] + 7) % VOCAB
    before, after = logits_of(batch_of(tokens)), logits_of(batch_of(other))
    np.testing.assert_array_equal(before[:7], after[:7])
    assert np.abs(before[8] - after[8]).max() > 1e-4


def test_a_document_is_the_same_wherever_it_lies_in_a_row(tokens: np.ndarray) -> None:
    packed = logits_of(batch_of(tokens))[4:9]
    alone = np.concatenate([tokens[4:9], np.zeros(7, int)])
    segments = np.array([1] * 5 + [0] * 7)
    positions = np.array([0, 1, 2, 3, 4] + [0] * 7)
    first = logits_of(batch_of(alone, segment_ids=segments, positions=positions))[:5]
    np.testing.assert_allclose(packed, first, atol=1e-5)


def test_padding_gives_no_nan_and_no_gradient(tokens: np.ndarray) -> None:
    batch = batch_of(tokens)
    nothing = {**batch, "loss_mask": batch["loss_mask"] & False}
    for given, expected in ((batch, 9), (nothing, 0)):
        (loss, targets), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            init_params(jax.random.key(0), TINY, VOCAB), given
        )
        assert int(targets) == expected
        assert np.isfinite(loss)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert float(loss) == 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


def loss_of(params: dict, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    nats = cross_entropy(forward(params, batch, TINY), batch["targets"])
    return mean_loss(nats, batch["loss_mask"])
