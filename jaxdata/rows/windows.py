"""Cutting documents into windows: the pieces that every strategy but `concat` packs whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Windows", "cut_windows", "expand", "stable_order", "window_counts"]


@dataclass(frozen=True)
class Windows:
    """Windows of the documents of one block, in document order; int64 (windows,) each.

    A window of `slots` (input, target) pairs covers the tokens `[start, start + slots]`; the
    targets of its first `lead` slots were trained in the window before it.
    """

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    slots: NDArray[np.int64]
    lead: NDArray[np.int64]


def window_counts(lengths: ArrayLike, seq_len: int, overlap: int) -> NDArray[np.int64]:
    """Windows of each document; int64 (documents,).

    >>> window_counts([1, 2, 9, 10], seq_len=4, overlap=0).tolist()
    [0, 1, 2, 3]
    """
    pairs = np.maximum(np.asarray(lengths, np.int64) - 1, 0)
    further = -(-np.maximum(pairs - seq_len, 0) // (seq_len - overlap))
    return np.asarray((pairs > 0) + further, np.int64)


def cut_windows(lengths: ArrayLike, seq_len: int, overlap: int) -> Windows:
    """Cut documents of `lengths` tokens into windows of at most `seq_len` pairs.

    >>> cut_windows([9], seq_len=4, overlap=1).slots.tolist()
    [4, 4, 2]
    """
    pairs = np.asarray(lengths, np.int64) - 1
    document, number = expand(window_counts(lengths, seq_len, overlap))
    start = number * (seq_len - overlap)
    slots = np.minimum(pairs[document] - start, seq_len)
    return Windows(document, start, slots, np.where(number > 0, overlap, 0))


def expand(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For groups of `counts` items, the group of each item and its number in the group.

    >>> [array.tolist() for array in expand(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    group = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return group, np.arange(len(group)) - first[group]


def stable_order(keys: NDArray[np.int64], largest: int) -> NDArray[np.int64]:
    """`argsort(keys, kind="stable")` of keys in `[0, largest]`, by counting.

    numpy sorts 16-bit integers by radix, in linear time: one pass for each 16 bits.
    """
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    for shift in range(16, max(largest, 1).bit_length(), 16):
        digit = ((keys[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order
