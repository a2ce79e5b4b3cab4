"""One plan, many kernels: attention gives the same however it is told of segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.splash_attention import (
    CausalMask,
    MultiHeadMask,
    make_splash_mha,
)
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.feed import attention, device
from jaxdata.testing import distinct_documents

BATCH, HEADS, SEQ_LEN, WIDTH = 3, 2, 256, 128
Array = NDArray[Any]
random = np.random.default_rng(0)
ROWS = jaxdata.pack(
    jaxdata.ArrayDocuments(distinct_documents(random.integers(1, 150, 60))), seq_len=SEQ_LEN
)
# The first batch, and one whose last row is all padding.
IDS = np.concatenate(
    [next(jaxdata.Loader(ROWS, batch_size=2))["segment_ids"], np.zeros((1, SEQ_LEN), np.int32)]
)
QUERY, KEY, VALUE = random.normal(size=(3, BATCH, HEADS, SEQ_LEN, WIDTH)).astype(np.float32)


def slow_attention() -> Array:
    """By the definition, a slot at a time; (batch, heads, seq_len, width)."""
    out = np.zeros_like(QUERY)
    for row, head, slot in np.ndindex(BATCH, HEADS, SEQ_LEN):
        seen = np.flatnonzero(IDS[row, : slot + 1] == IDS[row, slot])
        scores = KEY[row, head, seen] @ QUERY[row, head, slot] / np.sqrt(WIDTH)
        weights = np.exp(scores - scores.max())
        out[row, head, slot] = weights @ VALUE[row, head, seen] / weights.sum()
    return out


EXPECTED = slow_attention()


def by_numpy_mask() -> Array:
    scores = QUERY @ KEY.swapaxes(2, 3) / np.sqrt(WIDTH)
    scores = np.where(attention.attention_mask(IDS)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ VALUE / weights.sum(axis=-1, keepdims=True)


def by_torch_mask() -> Array:
    mask = jaxdata.torch.attention_mask(torch.from_numpy(IDS))
    return scaled_dot_product_attention(*tensors(), attn_mask=mask).numpy()


def by_lengths() -> Array:
    """As flash attention's varlen functions do: one stream of slots, each sequence by itself."""
    numbers, longest = jaxdata.torch.cu_seqlens(torch.from_numpy(IDS))
    stream = [t.transpose(1, 2).reshape(BATCH * SEQ_LEN, HEADS, WIDTH) for t in tensors()]
    parts = []
    for begin, end in zip(numbers[:-1].tolist(), numbers[1:].tolist(), strict=True):
        assert end - begin <= longest
        query, key, value = (t[begin:end].transpose(0, 1) for t in stream)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        parts.append(found.transpose(0, 1))
    out = torch.cat(parts).reshape(BATCH, SEQ_LEN, HEADS, WIDTH)
    return out.transpose(1, 2).numpy()


def by_jax_mask() -> Array:
    arrays = [jnp.asarray(array.swapaxes(1, 2)) for array in (QUERY, KEY, VALUE)]
    mask = device.attention_mask(jnp.asarray(IDS))
    return np.asarray(jax.nn.dot_product_attention(*arrays, mask=mask)).swapaxes(1, 2)


def by_splash_attention() -> Array:
    causal = MultiHeadMask([CausalMask((SEQ_LEN, SEQ_LEN))] * HEADS)
    kernel = make_splash_mha(causal, head_shards=1, q_seq_shards=1, interpret=True)
    ids = device.splash_segment_ids(jnp.asarray(IDS))
    scaled = jnp.asarray(QUERY) / np.sqrt(WIDTH)
    return np.asarray(jax.vmap(kernel)(scaled, jnp.asarray(KEY), jnp.asarray(VALUE), ids))


def tensors() -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in (QUERY, KEY, VALUE)]


@pytest.mark.parametrize(
    "kernel",
    [
        by_numpy_mask,
        by_torch_mask,
        by_lengths,
        pytest.param(by_jax_mask, marks=pytest.mark.slow),
        pytest.param(by_splash_attention, marks=pytest.mark.slow),
    ],
)
def test_attention_is_the_same(kernel: Callable[[], Array]) -> None:
    assert IDS.max() > 1, "several segments in a row"
    np.testing.assert_allclose(kernel(), EXPECTED, atol=2e-5)


@st.composite
def segment_ids(draw: Any) -> Array:
    """Rows of segments with padding behind them."""
    seq_len = draw(st.integers(1, 70))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.lists(st.integers(0, seq_len), max_size=8)))
        ids = np.searchsorted(cuts, np.arange(seq_len), side="right") + 1
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1) + 1
        ids[seq_len - draw(st.integers(0, seq_len)) :] *= draw(st.integers(0, 1))
        rows.append(ids)
    return np.stack(rows).astype(np.int32)


@pytest.mark.slow
@settings(max_examples=40)
@given(segment_ids(), st.sampled_from([2, 5, 16, 128]))
def test_block_masks_are_those_that_torch_makes_of_dense_ones(ids: Array, size: int) -> None:
    given_ids = torch.from_numpy(ids)
    dense = jaxdata.torch.attention_mask(given_ids)

    def looks(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return dense[batch, 0, query, key]

    rows, seq_len = ids.shape
    theirs = create_block_mask(looks, rows, None, seq_len, seq_len, "cpu", BLOCK_SIZE=size)
    ours = jaxdata.torch.block_mask(given_ids, size)
    assert ours.shape == theirs.shape
    assert (ours.to_dense() == theirs.to_dense()).all()
    for name in ("kv", "q", "full_kv", "full_q"):
        count, order = f"{name}_num_blocks", f"{name}_indices"
        assert torch.equal(getattr(ours, count), getattr(theirs, count))
        for found, expected, number in zip(
            getattr(ours, order).flatten(0, 2),
            getattr(theirs, order).flatten(0, 2),
            getattr(ours, count).flatten(),
            strict=True,
        ):
            assert torch.equal(found[:number], expected[:number])
    batch = torch.arange(rows)[:, None, None]
    query, key = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    assert torch.equal(ours.mask_mod(batch, torch.tensor(0), query, key), dense[:, 0])


@given(segment_ids())
def test_lengths_say_what_masks_say(ids: Array) -> None:
    numbers, longest = attention.cu_seqlens(ids)
    assert numbers.dtype == np.int32
    assert (numbers[0], numbers[-1]) == (0, ids.size)
    lengths = np.diff(numbers)
    assert (lengths > 0).all()
    assert lengths.max() == longest
    runs = np.repeat(np.arange(len(lengths)), lengths).reshape(ids.shape)
    assert np.array_equal(attention.attention_mask(runs), attention.attention_mask(ids))
    each = attention.row_cu_seqlens(ids)
    for row, (begins, most) in enumerate(zip(*each.values(), strict=True)):
        mine, top = attention.cu_seqlens(ids[row : row + 1])
        assert most == top
        assert np.array_equal(begins[: len(mine)], mine)
        assert (begins[len(mine) :] == ids.shape[1]).all()
        assert len(begins) == ids.shape[1] + 1
    filled, same = attention.cu_seqlens(ids, len(numbers) + 2)
    assert (filled.tolist(), same) == ([*numbers.tolist(), ids.size, ids.size], longest)
    with pytest.raises(InputError, match=rf"do not fit into length={len(numbers) - 1}: increase i"):
        attention.cu_seqlens(ids, len(numbers) - 1)
