"""Cutting documents into windows: the pieces that every strategy but `concat` packs whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Windows", "consecutive", "cut_windows", "expand", "stable_order", "window_counts"]

Ints = NDArray[np.integer]
Int = TypeVar("Int", bound=np.integer)


@dataclass(frozen=True)
class Windows:
    """Windows of the documents of one block, in document order; (windows,) each.

    A window of `slots` (input, target) pairs covers the tokens `[start, start + slots]`; the
    targets of its first slots, as many as `lead` says, were trained in the window before it.
    """

    document: Ints
    start: Ints
    slots: Ints
    overlap: int

    def lead(self, start: Ints) -> Ints:
        """Of windows that begin at `start`: the overlap, or 0 where a document begins."""
        return (start > 0) * start.dtype.type(self.overlap)


def window_counts(lengths: ArrayLike, seq_len: int, overlap: int) -> Ints:
    """Windows of each document; int64 (documents,).

    >>> window_counts([1, 2, 9, 10], seq_len=4, overlap=0).tolist()
    [0, 1, 2, 3]
    """
    return _counted(np.asarray(lengths), seq_len, overlap)[0]


def _counted(lengths: Ints, seq_len: int, overlap: int) -> tuple[Ints, Ints]:
    """Windows of each document, and the documents that have several."""
    counts = (lengths > 1).astype(np.int64)
    long = np.flatnonzero(lengths > seq_len + 1)
    counts[long] -= (seq_len + 1 - lengths[long]) // (seq_len - overlap)
    return counts, long


def cut_windows(lengths: ArrayLike, seq_len: int, overlap: int) -> Windows:
    """Cut documents of `lengths` tokens into windows of at most `seq_len` pairs.

    >>> cut_windows([9], seq_len=4, overlap=1).slots.tolist()
    [4, 4, 2]
    """
    given = np.asarray(lengths)
    counts, long = _counted(given, seq_len, overlap)
    document = np.repeat(np.arange(len(given)), counts)
    start = np.zeros(len(document), given.dtype)
    slots = given[document]
    slots -= 1
    several = np.flatnonzero(slots > seq_len)  # few: the others begin at 0
    _, number = expand(counts[long])
    begin = number * (seq_len - overlap)
    start[several], slots[several] = begin, np.minimum(slots[several] - begin, seq_len)
    return Windows(document.astype(given.dtype), start, slots, overlap)


def expand(counts: NDArray[Int]) -> tuple[NDArray[Int], NDArray[Int]]:
    """For groups of `counts` items, the group of each item and its number in the group.

    >>> [array.tolist() for array in expand(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    kind = counts.dtype
    group = np.repeat(np.arange(len(counts), dtype=kind), counts)
    first = np.cumsum(counts, dtype=kind) - counts
    return group, np.arange(len(group), dtype=kind) - first[group]


def consecutive(first: Ints, counts: Ints) -> NDArray[np.int64]:
    """Of each of `first`, as many consecutive numbers as `counts` says, end to end.

    >>> consecutive(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist()
    [5, 6, 9, 10, 11]
    """
    numbers = np.repeat(first - np.cumsum(counts) + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers


def stable_order(keys: Ints, largest: int) -> Ints:
    """`argsort(keys, kind="stable")` of keys in `[0, largest]`, by counting.

    numpy sorts 16-bit integers by radix, in linear time: one pass for each 16 bits.
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")  # by their lowest 16 bits
    for shift in range(16, max(largest, 1).bit_length(), 16):
        digit = (keys[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digit, kind="stable")]
    return order
