"""What attention kernels are told of segments: masks, lengths and blocks, against plain Python."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import create_block_mask

import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.feed import attention, device

Array = NDArray[Any]


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
        count = f"{name}_num_blocks"
        assert torch.equal(getattr(ours, count), getattr(theirs, count))
    query, key = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    batch = torch.arange(rows)[:, None, None]
    assert torch.equal(ours.mask_mod(batch, torch.tensor(0), query, key), dense[:, 0])


def runs(row: list[int]) -> list[tuple[int, int]]:
    """First slot and length of each run of one segment, or of padding."""
    begins = [at for at, one in enumerate(row) if not at or one != row[at - 1]]
    return [(a, b - a) for a, b in pairwise([*begins, len(row)])]


@settings(max_examples=50)
@given(segment_ids())
def test_lengths_and_masks_say_where_segments_begin(ids: Array) -> None:
    """Each row by itself, all as one stream, and with padding counted to the segment before it."""
    rows, slots = ids.tolist(), ids.shape[1]
    each, padded = attention.row_cu_seqlens(ids), attention.padded_cu_seqlens(ids)
    seen, stream = [], [0]
    for number, row in enumerate(rows):
        found = runs(row)
        ends = [begin + length for begin, length in found]
        stream += [number * slots + end for end in ends]
        seen.append([[[row[k] == row[q] and k <= q for k in range(slots)] for q in range(slots)]])
        filled = [0, *ends] + [slots] * (slots - len(ends))
        assert each["cu_seqlens"][number].tolist() == filled
        assert each["max_seqlen"][number] == max(length for _, length in found)
        segments = [run for run in found if row[run[0]]] or [(0, 0)]
        starts = [0, *(begin for begin, _ in segments[1:]), slots]
        lengths = [*accumulate((length for _, length in segments), initial=0)]
        rest = slots - len(segments)
        assert padded["cu_seqlens_q_padded"][number].tolist() == starts + [slots] * rest
        assert padded["cu_seqlens_q"][number].tolist() == lengths + lengths[-1:] * rest
        assert padded["max_seqlen_q"][number] == max(b - a for a, b in pairwise(starts))
    assert attention.attention_mask(ids)[:, None].tolist() == seen
    assert jaxdata.torch.attention_mask(torch.from_numpy(ids)).tolist() == seen
    numbers, longest = jaxdata.torch.cu_seqlens(torch.from_numpy(ids))
    assert (numbers.tolist(), longest) == (stream, each["max_seqlen"].max())
    filled, same = attention.cu_seqlens(ids, len(numbers) + 2)
    assert (filled.tolist(), same) == ([*stream, ids.size, ids.size], longest)
    assert {array.dtype.name for array in (filled, *each.values(), *padded.values())} == {"int32"}
    with pytest.raises(InputError, match=rf"do not fit into length={len(numbers) - 1}: increase i"):
        attention.cu_seqlens(ids, len(numbers) - 1)


def test_masks_on_devices_are_those_of_numpy() -> None:
    ids = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 3, 0, 0, 0], [0] * 6])
    expected = attention.attention_mask(ids)[:, None]
    assert np.array_equal(device.attention_mask(jnp.asarray(ids)), expected)
    assert device.splash_segment_ids(ids) == (ids, ids)  # type: ignore[arg-type]
