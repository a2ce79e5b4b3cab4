"""Whether losses are those of a distribution: chances that add to 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jaxdata.testing.trainer_probes import NotTold

Floats = NDArray[np.float64]
_ALL = 512
"""ids that are all asked about; of more, the most frequent and some of the rest"""
_SOME = 32
_CLOSE = 0.02
"""nats: how far the logarithm of a sum may be from 0, where all ids are asked about"""
_ROUGHLY = 0.7
"""the same where some are"""
_MOST_SPREAD = 2.0
"""nats: standard deviation of losses of which some stand for others; output layers begin with 0 to
1.3, and where it is more, a few targets that were not asked about may have most of the chance"""
_MOST_SMOOTHING = 0.5
_MULTIPLE = 64
"""vocabularies of models are often rounded up to one of it"""


def adds_to_one(
    loss: Callable[[int, int], float], ids: NDArray[np.int32], vocab_size: int | None, close: float
) -> str:
    """Check that the chances of all targets of a slot, exp(-loss), add to 1.

    Args:
        loss: `loss(context, target)` of a slot, in context 0 or 1.
        ids: of the data, the most frequent first.
        vocab_size: number of ids; where it is unknown, those of the data cannot exceed 1.
        close: relative precision of losses.

    Raises:
        AssertionError: they do not, and it is no label smoothing either.
        NotTold: of many targets some have most of the chance.
    """
    asked, stands_for = _chosen(ids, vocab_size)
    losses = np.array([loss(0, target) for target in asked])
    total = math.log(_sum(losses, stands_for))
    error = _error(losses, stands_for)
    whole = vocab_size is not None and len(asked) == vocab_size
    slack = max(_CLOSE if whole or not vocab_size else _ROUGHLY + 5 * error, 10 * close)
    least = math.log(vocab_size / _rounded_up(vocab_size)) if vocab_size else -math.inf
    if vocab_size and not whole and losses.std() > _MOST_SPREAD and total <= slack:
        raise NotTold(
            f"the chances of {vocab_size:,} targets of a slot cannot be told from {len(asked)}: "
            "the model is too sure of some; check it at its first weights"
        )
    if -slack + least <= total <= slack:
        if vocab_size is None:
            return (
                f"the chances of {len(asked)} targets of a slot add to {math.exp(total):.3g}, at "
                "most 1; give vocab_size to compare those of all"
            )
        about = "" if whole else f"about (by {len(asked)} of them) "
        return (
            f"the chances of {vocab_size:,} targets of a slot add to {about}{math.exp(total):.3g}"
        )
    if whole and total < 0:
        others = np.array([loss(1, target) for target in asked])
        smoothing = [
            _solve(partial(_smoothed, each), 0, _MOST_SMOOTHING) for each in (losses, others)
        ]
        if smoothing[0] and smoothing[1] and abs(smoothing[0] - smoothing[1]) < 0.002 + close:
            return f"the loss has label smoothing of {smoothing[0]:.2g}"
    times = _solve(lambda by: math.log(_sum(losses / by, stands_for)), 1 / 64, 64)
    or_times = f", or it were multiplied by {times:.3g}" if times else ""
    raise AssertionError(
        f"exp(-loss) of all targets of a slot adds to {math.exp(total):.3g}, and chances add to 1: "
        f"as if {-total:.3g} were added to the loss{or_times}. Return the cross-entropy in nats, "
        "neither scaled (by steps of accumulation, or processes) nor shifted; if the model has "
        "more ids than the data, give vocab_size"
    )


def _chosen(ids: NDArray[np.int32], vocab_size: int | None) -> tuple[list[int], Floats]:
    """Ids to ask about, and how many each stands for."""
    if vocab_size is None:
        few = ids[: 2 * _SOME].tolist()
        return few, np.ones(len(few))
    if vocab_size <= _ALL:
        return list(range(vocab_size)), np.ones(vocab_size)
    frequent = ids[:_SOME].tolist()
    drawn = np.random.default_rng(0).permutation(vocab_size).tolist()
    rest = [each for each in drawn if each not in frequent][:_SOME]
    each = (vocab_size - len(frequent)) / len(rest)
    return [*frequent, *rest], np.repeat([1, each], [len(frequent), len(rest)])


def _sum(losses: Floats, stands_for: Floats) -> float:
    return float(np.exp(-losses) @ stands_for) or math.ulp(0)


def _error(losses: Floats, stands_for: Floats) -> float:
    """The standard error of the sum of those that stand for others, relative to the sum."""
    chances = np.exp(-losses)[stands_for > 1]
    if not len(chances):
        return 0.0
    deviation = chances.std() * math.sqrt(len(chances)) * stands_for.max()
    return float(deviation / _sum(losses, stands_for))


def _rounded_up(vocab_size: int) -> int:
    return -(-vocab_size // _MULTIPLE) * _MULTIPLE


def _smoothed(losses: Floats, by: float) -> float:
    """The logarithm of the sum of chances, were label smoothing of `by` taken off the losses."""
    return math.log(_sum((losses - by * losses.mean()) / (1 - by), np.ones(len(losses))))


def _solve(function: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a function that increases is 0; None if it is not between the two."""
    if function(low) > 0 or function(high) < 0:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2
