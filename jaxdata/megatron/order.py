"""The order of one dataset: documents, samples and their shuffling, with numpy's RandomState.

Samples are slices of one stream: the documents of all epochs in order. Sample *j* has the tokens
`[j S, (j + 1) S)` as inputs and those one later as labels, so a binary search in the ends of the
documents locates any token.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError

PARTS = ("train", "valid", "test")
_SEPARATE_BELOW = 0.80  # of an epoch's samples


@dataclass(frozen=True)
class Epochs:
    """Epochs of a dataset for the samples wanted."""

    count: int
    separate: bool
    """whether the last epoch is shuffled separately"""
    before_last: int
    """samples of the epochs before the last; all if it is not separate"""
    samples: int
    """samples of all whole epochs, at least as many as wanted"""


def plan_epochs(
    tokens: int, seq_len: int, num_samples: int | None, extra: int = 1, drop_last: bool = True
) -> Epochs:
    """Compute the number of epochs of `tokens` that give the samples wanted; None for one epoch.

    A sample has `extra` tokens beyond `seq_len`: the last label. Unless `drop_last`, the rest of
    the tokens is a sample too.

    >>> plan_epochs(28, 4, 8)
    Epochs(count=2, separate=True, before_last=6, samples=13)
    """
    wanted = 0 if num_samples is None else num_samples * seq_len + extra
    count = max(1, -(-wanted // tokens))
    samples = (count * tokens - extra) // seq_len
    if not drop_last:  # counted in single precision, as Megatron does
        samples = math.ceil(np.float32(count * tokens - extra) / np.float32(seq_len))
    if count == 1 or num_samples is None:
        return Epochs(count, False, samples, samples)
    before = ((count - 1) * tokens - extra) // seq_len
    of_an_epoch = (tokens - extra) // seq_len
    separate = num_samples - before < int(_SEPARATE_BELOW * of_an_epoch)
    return Epochs(count, separate, before if separate else samples, samples)


def document_order(
    documents: NDArray[np.int32], epochs: Epochs, random: np.random.RandomState
) -> NDArray[np.int32]:
    """The documents of all epochs in stream order; drawn before `sample_order`."""
    counts = [epochs.count - 1, 1] if epochs.separate else [epochs.count]
    return _shuffled([np.tile(documents, count) for count in counts], random)


def sample_order(epochs: Epochs, random: np.random.RandomState) -> NDArray[np.int64]:
    """The sample of the stream for each row."""
    small = epochs.samples < 2**32 - 2
    cuts = [0, epochs.before_last, epochs.samples] if epochs.separate else [0, epochs.samples]
    kind = np.uint32 if small else np.int64
    return _shuffled([np.arange(*ends, dtype=kind) for ends in pairwise(cuts)], random)


def _shuffled(parts: list[NDArray[Any]], random: np.random.RandomState) -> NDArray[Any]:
    """The parts end to end, each shuffled by itself."""
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def check_part(part: str) -> None:
    """Raise InputError for what is no part of a split."""
    if part not in PARTS:
        raise InputError(f"part={part!r}: expected {' | '.join(PARTS)}")


def split_range(split: str, part: str, documents: int) -> range:
    """The documents of one part of a split like `"969,30,1"`: contiguous, before any shuffling.

    >>> split_range("98,1,1", "valid", 1_000)
    range(980, 990)
    """
    check_part(part)
    weights = [float(number) for number in re.findall(r"[.0-9]+", split)]
    if not 1 <= len(weights) <= 3 or not sum(weights) > 0:
        raise InputError(f"split={split!r}: expected one to three weights, like '969,30,1'")
    padded = np.array([*weights, 0.0, 0.0][:3])
    edges = list(accumulate((padded / np.sum(padded)).tolist(), initial=0.0))
    number = PARTS.index(part)
    return range(round(edges[number] * documents), round(edges[number + 1] * documents))
