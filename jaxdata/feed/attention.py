"""Masks and sequence lengths for attention kernels, from segment ids, in numpy.

Padding counts as a segment of its own: it attends only to padding, and nothing else attends to it.
So no slot attends to nothing, which would give NaN.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError

Ids = NDArray[Any]


def attention_mask(segment_ids: Ids) -> NDArray[np.bool_]:
    """The causal mask within segments: which slots (columns) each slot (row) attends to.

    Args:
        segment_ids: (…, seq_len).

    Returns:
        bool (…, seq_len, seq_len), True where a slot attends.

    >>> attention_mask(np.array([1, 1, 2])).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    return np.asarray(same & np.tri(segment_ids.shape[-1], dtype=bool))


def cu_seqlens(segment_ids: Ids, length: int | None = None) -> tuple[NDArray[np.int32], int]:
    """Cumulative sequence lengths of a batch as one stream of slots, and the longest sequence.

    For the `varlen` functions of flash attention, with queries and keys of shape
    (batch * seq_len, heads, width): each run of one segment in a row is a sequence.

    Args:
        segment_ids: (batch, seq_len).
        length: pad to this many numbers with empty sequences, for kernels that need one shape.
            `pack(..., max_segments=n)` bounds the numbers by `batch * (n + 1) + 1`.

    Returns:
        int32 (sequences + 1,) or (length,), from 0 to the number of slots; and the longest length.

    >>> numbers, longest = cu_seqlens(np.array([[1, 1, 2, 0], [1, 1, 1, 1]]))
    >>> numbers.tolist(), longest
    ([0, 2, 3, 4, 8], 4)
    """
    found = np.append(np.flatnonzero(_begins(segment_ids)), segment_ids.size).astype(np.int32)
    if length is not None and len(found) > length:
        raise InputError(
            f"cu_seqlens of {len(found)} numbers do not fit into length={length}: increase it, or "
            "bound the segments of a row with pack(..., max_segments=n)"
        )
    filled = np.full(length or len(found), segment_ids.size, np.int32)
    filled[: len(found)] = found
    return filled, int(np.diff(found).max(initial=0))


def varlen(segment_ids: Ids, length: int | None = None) -> dict[str, NDArray[np.int32]]:
    """`cu_seqlens` as arrays of a batch, for a layout of your own.

    >>> sorted(varlen(np.array([[1, 1, 2, 0]])))
    ['cu_seqlens', 'max_seqlen']
    """
    numbers, longest = cu_seqlens(segment_ids, length)
    return {"cu_seqlens": numbers, "max_seqlen": np.array(longest, np.int32)}


def row_cu_seqlens(segment_ids: Ids) -> dict[str, NDArray[np.int32]]:
    """`cu_seqlens` of each row, in arrays of one shape.

    Returns:
        `cu_seqlens`, int32 (…, seq_len + 1), padded with seq_len, and `max_seqlen`, int32 (…).

    >>> row_cu_seqlens(np.array([[1, 1, 2, 0]]))["cu_seqlens"].tolist()
    [[0, 2, 3, 4, 4]]
    """
    numbers = _sorted_places(_begins(segment_ids))
    return {"cu_seqlens": numbers, "max_seqlen": np.diff(numbers, axis=-1).max(axis=-1)}


def padded_cu_seqlens(segment_ids: Ids) -> dict[str, NDArray[np.int32]]:
    """The segments of each row for context parallelism by document, as Megatron-Core names them.

    Padding counts to the segment before it: rows of `pack(..., multiple=2 * n)` give each segment a
    multiple of 2n slots, which n parts share. A row of padding has one segment, of length 0.

    Returns:
        int32 (…, seq_len + 1) each: `cu_seqlens_q`, the cumulative lengths of the segments without
        padding, filled with their sum; and `cu_seqlens_q_padded`, where each begins in the row,
        filled with seq_len. int32 (…): `max_seqlen_q`, the length of the longest with its padding.

    >>> found = padded_cu_seqlens(np.array([[1, 1, 1, 0, 2, 0]]))
    >>> [found[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q")]
    [[[0, 3, 4, 4, 4, 4, 4]], [[0, 4, 6, 6, 6, 6, 6]], [4]]
    """
    slots, filled = segment_ids.shape[-1], segment_ids > 0
    begins = _begins(segment_ids) & filled
    begins[..., :1] = True
    padded = _sorted_places(begins)
    before = np.zeros((*segment_ids.shape[:-1], slots + 1), np.int32)
    np.cumsum(filled, axis=-1, out=before[..., 1:])
    return {
        "cu_seqlens_q": np.take_along_axis(before, padded, axis=-1),
        "cu_seqlens_q_padded": padded,
        "max_seqlen_q": np.diff(padded, axis=-1).max(axis=-1),
    }


def _sorted_places(chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The chosen slots of each row, filled with seq_len: int32 (…, seq_len + 1)."""
    slots = chosen.shape[-1]
    places = np.where(chosen, np.arange(slots, dtype=np.int32), np.int32(slots))
    end = np.full((*chosen.shape[:-1], 1), slots, np.int32)
    return np.concatenate([np.sort(places, axis=-1), end], axis=-1)


def _begins(segment_ids: Ids) -> NDArray[np.bool_]:
    """Slots at which a segment or padding begins; the first slot of a row always does."""
    begins = np.ones(segment_ids.shape, bool)
    begins[..., 1:] = segment_ids[..., 1:] != segment_ids[..., :-1]
    return begins
