"""The model, its loss, bits per byte, logs: what a token sees; sums however rows are spread."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdata.base.errors import InputError
from jaxdata.config.config_fields import ModelSettings
from jaxdata.train import model
from jaxdata.train.devices import FIELDS, batch_digest, row_digests
from jaxdata.train.model import BitsPerByte, byte_sums, forward, init_params, mean_loss
from jaxdata.train.trainer import RunLog, read_log

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(8, 6, 20)).astype(np.float32)
TARGETS = RNG.integers(0, 20, (8, 6)).astype(np.int32)
MASK = RNG.random((8, 6)) < 0.6
TOKEN_BYTES = RNG.integers(0, 5, 20).astype(np.int32)


def expected_nats() -> np.ndarray:
    exact = LOGITS.astype(np.float64)
    shares = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(shares, TARGETS[..., None], -1)[..., 0])


def spread(arrays: Any, devices: int) -> Any:
    """Rows on some devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    return jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))


def test_the_mean_is_over_the_targets_of_the_whole_batch_on_any_devices() -> None:
    MASK[:4] = False  # devices have different numbers of targets, one has none
    MASK[1, 2] = True
    for devices in (1, 2, 4):
        nats, mask = spread((expected_nats().astype(np.float32), MASK), devices)
        loss, targets = jax.jit(mean_loss)(nats, mask)
        assert int(targets) == MASK.sum()
        assert float(loss) == pytest.approx(expected_nats()[MASK].mean(), rel=1e-6)


def test_bits_per_byte_is_of_targets_that_stand_for_text() -> None:
    nats = expected_nats()
    score = BitsPerByte()
    for rows in (slice(0, 3), slice(3, 8)):  # in batches, as evaluation does
        batch = {"targets": jnp.asarray(TARGETS[rows]), "loss_mask": jnp.asarray(MASK[rows])}
        sums = byte_sums(jnp.asarray(nats[rows], jnp.float32), batch, jnp.asarray(TOKEN_BYTES))
        score += BitsPerByte(**{name: each.item() for name, each in sums.items()})
    lengths = np.where(MASK, TOKEN_BYTES[TARGETS], 0)
    assert (lengths[MASK] == 0).any(), "some targets are special tokens"
    assert (score.bytes, score.targets) == (lengths.sum(), MASK.sum())
    expected = nats[lengths > 0].sum() / (math.log(2) * lengths.sum())
    assert score.value == pytest.approx(expected, rel=1e-6)
    assert score.loss == pytest.approx(nats[MASK].mean(), rel=1e-6)
    with pytest.raises(InputError, match="no evaluated token stands for any bytes"):
        _ = BitsPerByte(nats=1, targets=1).value


VOCAB = 50
TOKENS = np.random.default_rng(0).integers(1, VOCAB, 12)
TINY = ModelSettings(layers=2, width=16, heads=2)
SEGMENTS = np.array([1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0, 0])
POSITIONS = np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 0])


def batch_of(tokens: np.ndarray, **more: Any) -> dict[str, jax.Array]:
    fields = {"inputs": tokens, "targets": np.roll(tokens, -1), "loss_mask": SEGMENTS > 0}
    fields |= {"segment_ids": SEGMENTS, "positions": POSITIONS}
    return {name: jnp.asarray(array)[None] for name, array in (fields | more).items()}


def logits_of(batch: Mapping[str, jax.Array], settings: ModelSettings = TINY) -> np.ndarray:
    return np.asarray(forward(init_params(jax.random.key(0), settings, VOCAB), batch, settings)[0])


def test_a_token_sees_its_segment_up_to_itself() -> None:
    before = logits_of(batch_of(TOKENS))
    for changed, sees, others in ((slice(0, 4), [0, 1, 2, 3], slice(4, 9)), (7, [8], slice(0, 7))):
        other = TOKENS.copy()
        other[changed] = (TOKENS[changed] + 7) % VOCAB
        after = logits_of(batch_of(other))
        assert (np.abs(before - after).max(axis=1)[sees] > 1e-4).all()
        np.testing.assert_array_equal(before[others], after[others])


def test_a_document_is_the_same_wherever_it_lies_in_a_row() -> None:
    packed = logits_of(batch_of(TOKENS))[4:9]
    alone = {"segment_ids": [1] * 5 + [0] * 7, "positions": [*range(5)] + [0] * 7}
    first = logits_of(batch_of(np.append(TOKENS[4:9], np.zeros(7, int)), **alone))[:5]
    np.testing.assert_allclose(packed, first, atol=1e-5)


def test_padding_gives_no_nan_and_no_gradient() -> None:
    batch = batch_of(TOKENS)
    for given, expected in ((batch, 9), ({**batch, "loss_mask": batch["loss_mask"] & False}, 0)):
        (loss, targets), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            init_params(jax.random.key(0), TINY, VOCAB), given
        )
        assert int(targets) == expected
        assert np.isfinite(loss)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert float(loss) == 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


def loss_of(params: dict, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    nats = model.cross_entropy(forward(params, batch, TINY), batch["targets"])
    return mean_loss(nats, batch["loss_mask"])


def test_the_log_keeps_floats_to_the_bit_and_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run" / "log.jsonl"
    loss = float(np.float32(0.1)) / 3
    log = RunLog(path)
    log.write({"step": 0, "loss": loss}, {"step": 1, "loss": 2.0})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 2, "lo')  # killed here
    assert [record["step"] for record in read_log(path)] == [0, 1]
    log = RunLog(path)
    log.write({"step": 2, "loss": 3.0})
    log.close()
    assert [record["loss"] for record in read_log(path)] == [loss, 2.0, 3.0]


def test_a_digest_sees_every_value_and_not_where_rows_lie() -> None:
    kinds = {name: bool if name == "loss_mask" else np.int32 for name in FIELDS}
    batch = {name: RNG.integers(0, 2, (8, 5)).astype(kind) for name, kind in kinds.items()}
    expected = batch_digest(batch)
    assert batch_digest(spread(batch, 4)) == expected
    for name in FIELDS:
        changed = {**batch, name: batch[name].copy()}
        changed[name][3, 2] ^= True
        assert batch_digest(changed) != expected
        differing = (row_digests(changed) != row_digests(batch)).any(axis=1)
        assert np.flatnonzero(differing).tolist() == [3]
    assert batch_digest({name: array[::-1] for name, array in batch.items()}) != expected
