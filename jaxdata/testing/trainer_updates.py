"""What a trainer's updates tell: that micro-batches, or the parts of ranks, are one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.feed.layouts import leaves
from jaxdata.testing.trainer_probes import Asked, NotTold, Row

Update = Callable[[Sequence[Any]], Any]
_TARGETS = (1, 10, None)
"""of the rows of a batch, in turn; None: all"""
_OFF = 0.02
"""relative to what another batch would change: how far updates of the same rows may differ"""


def micro_batches(asked: Asked, update: Update) -> str:
    """An update of several batches is that of one batch of all their rows."""
    if len(asked.rows) < 2:
        raise NotTold("a batch of one row has no parts")
    rows = [_with_targets(row, number) for number, row in enumerate(asked.rows)]
    batch = asked.batch(*rows)
    whole = _weights(update([batch]))
    if not np.array_equal(whole, again := _weights(update([batch]))):
        _assert_repeats(whole, again)
    for size in sorted({1, -(-len(rows) // 2)}):
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        found = _weights(update([asked.batch(*part) for part in parts]))
        each = [_weights(update([asked.batch(*part)])) for part in parts]
        moved = max(_distance(one, whole) for one in each)
        if not moved:
            raise NotTold("updates of other rows are the same: is the learning rate 0?")
        if _distance(found, whole) > _OFF * moved:
            targets = [sum(int(row.mask.sum()) for row in part) for part in parts]
            instead = _what(found, each, targets, moved)
            raise AssertionError(
                f"an update of {len(parts)} micro-batches of {_listed(targets)} targets is not "
                f"that of one batch of all {sum(targets)}: {instead}. Add up the losses of all "
                "targets of an update, over its micro-batches and ranks, and divide once by their "
                "number"
            )
    return f"updates of micro-batches are those of one batch, with rows of {_listed(_counts(rows))}"


def _with_targets(row: Row, number: int) -> Row:
    most = _TARGETS[number % len(_TARGETS)]
    return row if most is None else row.with_loss(row.mask & (np.cumsum(row.mask) <= most))


def _counts(rows: Sequence[Row]) -> list[int]:
    return sorted({int(row.mask.sum()) for row in rows})


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _what(
    found: NDArray[np.float64],
    each: Sequence[NDArray[np.float64]],
    targets: Sequence[int],
    moved: float,
) -> str:
    """What was made of the micro-batches instead; exact of gradients, and of plain descent."""
    guesses = {
        "the last one is dropped": np.average(each[:-1], 0, targets[:-1]),
        "only the first one is read": each[0],
        "only the last one is read": each[-1],
        "it is the mean of their means": np.mean(each, 0),
        "it is the mean of their means, without the last one": np.mean(each[:-1], 0),
        "their means are added up": np.sum(each, 0),
    }
    for guess, worked_out in guesses.items():
        if _distance(found, worked_out) <= _OFF * moved:
            return guess
    return f"the two differ by {_distance(found, each[0]) / moved:.2g} of what one of them changes"


def _assert_repeats(one: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    scale = max(float(np.abs(one).max(initial=0)), 1e-30)
    assert _distance(one, other) <= 1e-6 * scale * len(one) ** 0.5, (
        "two updates of the same batch differ: begin each with the same weights and the same state "
        "of the optimizer, without dropout"
    )


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(one - other))


def _weights(given: Any) -> NDArray[np.float64]:
    """All numbers of a tree of arrays, one after another."""
    arrays = (
        each.detach().cpu() if hasattr(each, "detach") else each for each in leaves(given).values()
    )
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])
