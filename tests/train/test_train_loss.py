"""Losses and bits per byte: sums that do not depend on how rows are spread."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdata.base.errors import InputError
from jaxdata.train.model import BitsPerByte, byte_sums, cross_entropy, mean_loss

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(8, 6, 20)).astype(np.float32)
TARGETS = RNG.integers(0, 20, (8, 6)).astype(np.int32)
MASK = RNG.random((8, 6)) < 0.6
TOKEN_BYTES = RNG.integers(0, 5, 20).astype(np.int32)


def expected_nats() -> np.ndarray:
    exact = LOGITS.astype(np.float64)
    shares = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(shares, TARGETS[..., None], -1)[..., 0])


def test_cross_entropy_is_the_textbooks() -> None:
    nats = cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS))
    np.testing.assert_allclose(nats, expected_nats(), rtol=1e-5)
    large = cross_entropy(jnp.asarray(LOGITS) * 1e4, jnp.asarray(TARGETS))
    assert np.isfinite(large).all()


def test_the_mean_is_over_the_targets_of_the_whole_batch_on_any_devices() -> None:
    MASK[:4] = False  # devices have different numbers of targets, one has none
    MASK[1, 2] = True
    expected = expected_nats()[MASK].mean()
    for devices in (1, 2, 4):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        place = NamedSharding(mesh, PartitionSpec("data"))
        nats, mask = jax.device_put((expected_nats().astype(np.float32), MASK), place)
        loss, targets = jax.jit(mean_loss)(nats, mask)
        assert int(targets) == MASK.sum()
        assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_bits_per_byte_is_of_targets_that_stand_for_text() -> None:
    nats = expected_nats()
    score = BitsPerByte()
    for rows in (slice(0, 3), slice(3, 8)):  # in batches, as evaluation does
        batch = {"targets": jnp.asarray(TARGETS[rows]), "loss_mask": jnp.asarray(MASK[rows])}
        score.add(byte_sums(jnp.asarray(nats[rows], jnp.float32), batch, jnp.asarray(TOKEN_BYTES)))
    lengths = np.where(MASK, TOKEN_BYTES[TARGETS], 0)
    assert (lengths[MASK] == 0).any(), "some targets are special tokens"
    assert (score.bytes, score.targets) == (lengths.sum(), MASK.sum())
    expected = nats[lengths > 0].sum() / (math.log(2) * lengths.sum())
    assert score.value == pytest.approx(expected, rel=1e-6)
    assert score.loss == pytest.approx(nats[MASK].mean(), rel=1e-6)


def test_no_text_has_no_score() -> None:
    with pytest.raises(InputError, match="no evaluated token stands for any bytes"):
        _ = BitsPerByte(nats=1, targets=1).value
