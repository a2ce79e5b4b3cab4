"""Megatron's blend: each step takes the dataset furthest behind its share.

A step depends on all earlier ones. The stream is divided into lanes that are walked in parallel,
each from guessed initial counts; a lane is repeated if the one before it ended with other counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import Ints

Floats = NDArray[np.float64]
SURPLUS = 0.005  # of Megatron's mid_level_dataset_surplus
_MOST_LANES = 4096
_SHORTEST_LANE = 512
_WARM_UP = 256


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights that add up to 1, in double precision."""
    given = np.array(weights, np.float64)
    shares: list[float] = (given / np.sum(given)).tolist()
    return shares


def target_sizes(
    weights: Sequence[float], size: int, surplus: float = SURPLUS
) -> tuple[list[int], list[int]]:
    """For each dataset, the samples in a blend of `size`, and the samples it is built with.

    >>> target_sizes(normalized([3, 1]), 1_000)
    ([750, 250], [754, 252])
    """
    targets = [int(np.ceil(size * weight)) for weight in weights]
    return targets, [int(np.ceil(target * (1 + surplus))) for target in targets]


def blend_order(
    weights: Sequence[float], size: int, limits: Sequence[int] | None = None
) -> NDArray[np.int16]:
    """The dataset of each sample of a blend.

    Step *i* takes the dataset with the largest `weight * max(i, 1) - count`, the first of several.

    Args:
        weights: shares of the datasets.
        size: samples.
        limits: samples of each dataset, after which it is skipped; None for no limit.

    >>> blend_order([0.5, 0.3, 0.2], 12).tolist()
    [0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1]
    """
    share = np.array(weights, np.float64)[:, None]
    most = None if limits is None else np.array(limits, np.float64)[:, None]
    lanes = max(1, min(_MOST_LANES, size // _SHORTEST_LANE))
    length = -(-size // lanes)
    starts = np.arange(lanes) * length
    begin = _guess(share, most, starts)
    begin[:, 0] = 0
    end = np.zeros_like(begin)
    order = np.empty((lanes, length), np.int16)
    again = np.arange(lanes)
    while len(again):
        order[again], end[:, again] = _walk(share, most, starts[again], begin[:, again], length)
        again = 1 + np.flatnonzero((begin[:, 1:] != end[:, :-1]).any(axis=0))
        begin[:, again] = end[:, again - 1]
    return order.ravel()[:size]


def _guess(share: Floats, most: Floats | None, starts: Ints) -> Floats:
    """Guess the counts at the starts, by walks that begin shortly before them."""
    early = np.maximum(starts - _WARM_UP, 0)
    fair = early * share
    counts = np.floor(fair)
    rank = np.argsort(np.argsort(counts - fair, axis=0), axis=0)
    counts += rank < early - counts.sum(axis=0)
    return _walk(share, most, early, counts, _WARM_UP)[1]


def _walk(
    share: Floats, most: Floats | None, starts: Ints, begin: Floats, length: int
) -> tuple[NDArray[np.int16], Floats]:
    """`length` steps of each lane: (lanes, length) datasets, and the counts after them.

    Args:
        share: (datasets, 1).
        most: (datasets, 1), or None.
        starts: (lanes,) the step at which each begins.
        begin: (datasets, lanes) counts before it.
        length: steps.
    """
    order = np.empty((length, len(starts)), np.int16)
    counts, lane = begin.copy(), np.arange(len(starts))
    for number in range(length):
        error = share * np.maximum(starts + number, 1.0) - counts
        if most is not None:
            error[counts >= most] = -np.inf
        taken = error.argmax(axis=0)
        order[number] = taken
        counts[taken, lane] += 1
    return order.T, counts


def places_in_datasets(order: NDArray[np.int16], datasets: int) -> Ints:
    """The number, within its dataset, of each sample of a blend; samples are taken in order.

    >>> places_in_datasets(np.array([0, 1, 0, 0], np.int16), 2).tolist()
    [0, 0, 1, 2]
    """
    places = np.empty(len(order), np.int64)
    for number in range(datasets):
        mine = np.flatnonzero(order == number)
        places[mine] = np.arange(len(mine))
    return places
