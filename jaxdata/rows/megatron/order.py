"""The order of one dataset: documents, samples and their shuffling, with numpy's RandomState.

Samples are cuts of one stream: the documents of all epochs in their order. Sample *j* takes its
inputs from the tokens `[j S, (j + 1) S)` of it and its labels from one token on, so nothing has to
be walked: where a token lies is a binary search in the ends of the documents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError

__all__ = ["Epochs", "document_order", "plan_epochs", "sample_index", "sample_order", "split_range"]

Ints = NDArray[np.int64]
_SEPARATE_BELOW = 0.80  # of an epoch's samples


@dataclass(frozen=True)
class Epochs:
    """How often a dataset is passed over for the samples that are wanted of it."""

    count: int
    separate: bool
    """the last one is shuffled by itself"""
    before_last: int
    """samples of the epochs before the last; all where it is not separate"""
    samples: int
    """in all: of whole epochs, not of what was asked for"""


def plan_epochs(tokens: int, seq_len: int, num_samples: int | None, extra: int = 1) -> Epochs:
    """Decide how many epochs there are.

    Args:
        tokens: tokens of an epoch.
        seq_len: tokens of a sample.
        num_samples: samples wanted; None for one epoch.
        extra: tokens of a sample beyond `seq_len`: the last label.

    >>> plan_epochs(28, 4, 8)
    Epochs(count=2, separate=True, before_last=6, samples=13)
    """
    wanted = 0 if num_samples is None else num_samples * seq_len + extra
    count = max(1, -(-wanted // tokens))
    samples = (count * tokens - extra) // seq_len
    if count == 1 or num_samples is None:
        return Epochs(count, False, samples, samples)
    before = ((count - 1) * tokens - extra) // seq_len
    of_an_epoch = (tokens - extra) // seq_len
    separate = num_samples - before < int(_SEPARATE_BELOW * of_an_epoch)
    return Epochs(count, separate, before if separate else samples, samples)


def document_order(
    documents: NDArray[np.int32], epochs: Epochs, random: np.random.RandomState
) -> NDArray[np.int32]:
    """The documents of all epochs in the order of the stream; drawn before `sample_order`."""
    parts = [epochs.count - 1, 1] if epochs.separate else [epochs.count]
    drawn = []
    for count in parts:
        order = np.tile(documents, count)
        random.shuffle(order)
        drawn.append(order)
    return np.concatenate(drawn)


def sample_order(epochs: Epochs, random: np.random.RandomState) -> NDArray[np.int64]:
    """Which sample of the stream each row is."""
    small = epochs.samples < 2**32 - 2
    cuts = [0, epochs.before_last, epochs.samples] if epochs.separate else [0, epochs.samples]
    drawn = []
    for start, stop in pairwise(cuts):
        order = np.arange(start, stop, dtype=np.uint32 if small else np.int64)
        random.shuffle(order)
        drawn.append(order)
    return np.concatenate(drawn)


def sample_index(
    lengths: Ints, seq_len: int, *, extra: int = 1, drop_last: bool = True
) -> tuple[Ints, Ints]:
    """Where samples begin: (place in the order of documents, offset in that document).

    Args:
        lengths: (documents,) tokens of each, in the order of the stream.
        seq_len: tokens of a sample.
        extra: tokens of a sample beyond those, which the next one begins with.
        drop_last: leave out a last sample that is not full.

    Returns:
        Two int64 arrays of (samples + 1,): of each sample, and where the last one ends.

    >>> [array.tolist() for array in sample_index(np.array([3, 7, 0, 5]), 4)]
    [[0, 1, 1, 3], [0, 1, 5, 2]]
    """
    ends = np.cumsum(lengths)
    tokens = int(ends[-1]) - extra
    # Megatron counts an incomplete last sample in single precision.
    samples = tokens // seq_len if drop_last else int(np.ceil(np.float32(tokens) / seq_len))
    last = np.minimum(np.arange(1, samples + 1) * seq_len, tokens) + extra - 1
    place = np.searchsorted(ends, last, side="right")
    offset = last - (ends - lengths)[place] + 1 - extra
    return np.append(0, place), np.append(0, offset)


def split_range(split: str, part: str, documents: int) -> range:
    """The documents of one part of a split like `"969,30,1"`: contiguous, before any shuffling.

    >>> split_range("98,1,1", "valid", 1_000)
    range(980, 990)
    """
    parts = ("train", "valid", "test")
    if part not in parts:
        raise InputError(f"part={part!r}: expected {' | '.join(parts)}")
    weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    if not 1 <= len(weights) <= 3 or not sum(weights) > 0:
        raise InputError(f"split={split!r}: expected one to three weights, like '969,30,1'")
    padded = np.array([*weights, 0.0, 0.0][:3])
    edges = list(accumulate((padded / np.sum(padded)).tolist(), initial=0.0))
    number = parts.index(part)
    return range(round(edges[number] * documents), round(edges[number + 1] * documents))
