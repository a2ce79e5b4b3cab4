"""What is good of the figures of a shuffle, and what is not: limits that noise does not reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, pstdev

import numpy as np

from jaxdata.testing import shuffle_figures as figures
from jaxdata.testing.document_places import Placement
from jaxdata.testing.shuffle_figures import Quantity

LENGTH, NUMBER = "length", "number"
TOGETHER = (1, 10, 100, 1000)
"""consecutive batches whose means are compared"""
_QUANTITIES: dict[str, Quantity] = {LENGTH: figures.length, NUMBER: figures.number}
_PLACES = {
    "row": figures.place_in_row,
    "batch": figures.place_in_batch,
    "epoch": figures.place_in_epoch,
}
_VARIANCE = {LENGTH: 1.5, NUMBER: 3.0}
"""times that of a random deal"""
_CORRELATION = {"row": 0.05, "batch": 0.1, "epoch": 0.1}
"""0.1 explains a hundredth of the variance; pages that are dealt whole may reach half of it"""
_KEPT, _EQUAL = 0.01, 0.002
_SIGMAS = 5
"""that far random deals are from their mean once in a million times"""
_FEWEST = 16
"""means of which a variance says something"""
_NOTHING = "nothing to compare"


@dataclass(frozen=True)
class Figure:
    """One figure of a shuffle, beside that of random deals of the same documents.

    >>> Figure("equal neighbours", "length", 0.85, 0.007, 0.014).good
    False
    """

    name: str
    of: str
    """the quantity: "length" of documents, or their "number" in the corpus"""
    found: float | None
    """None: not measured"""
    random: float | None
    """the mean of random deals"""
    limit: float | None
    """good up to here"""
    why: str = ""
    """why it was not measured"""

    @property
    def good(self) -> bool | None:
        """Whether it is within its limit; None if it was not measured."""
        return None if self.found is None or self.limit is None else abs(self.found) <= self.limit


def measured(placed: Placement, hosts: int, deals: Sequence[Placement]) -> Iterator[Figure]:
    """All figures of a placement.

    Args:
        placed: where documents lie.
        hosts: hosts that share a batch; 1 leaves their figures out.
        deals: the same documents dealt at random (`Placement.dealt`): they tell what is noise.
    """
    for where, correlation in _PLACES.items():
        for of, quantity in _QUANTITIES.items():
            what = partial(correlation, quantity=quantity)
            limit = partial(_correlation_limit, _CORRELATION[where])
            yield _share(f"place in the {where}", of, what, placed, deals, limit)
    of_kept, of_equal = figures.kept_neighbours, figures.equal_neighbours
    yield _share("equal neighbours", LENGTH, of_equal, placed, deals, partial(_twice, _EQUAL))
    yield _share("kept neighbours", NUMBER, of_kept, placed, deals, partial(_twice, _KEPT))
    for parts in (1, hosts) if hosts > 1 else (1,):
        for together in TOGETHER:
            for of in _QUANTITIES:
                yield _variance(of, together, parts, placed, deals)


def variance_name(together: int, parts: int) -> str:
    """What the variance of the means of some batches is called.

    >>> variance_name(1, 1), variance_name(10, 8)
    ('means of 1 batch', 'means of 10 batches, a host')
    """
    return f"means of {together:,} batch{'es' * (together > 1)}{', a host' * (parts > 1)}"


def _share(
    name: str,
    of: str,
    figure: Callable[[Placement], float],
    placed: Placement,
    deals: Sequence[Placement],
    limit: Callable[[list[float]], float],
) -> Figure:
    found = figure(placed)
    random = [value for value in map(figure, deals) if not np.isnan(value)]
    if np.isnan(found) or not random:
        return Figure(name, of, None, None, None, _NOTHING)
    return Figure(name, of, found, mean(random), limit(random))


def _correlation_limit(least: float, random: list[float]) -> float:
    return max(least, _SIGMAS * float(np.sqrt(np.mean(np.square(random)))))


def _twice(least: float, random: list[float]) -> float:
    return max(least, 2 * mean(random), mean(random) + _SIGMAS * pstdev(random))


def _variance(
    of: str, together: int, parts: int, placed: Placement, deals: Sequence[Placement]
) -> Figure:
    """The ratio to random deals.

    Means of lengths over all hosts vary as those of random deals. Elsewhere neighbouring batches
    may be related (lanes and pools do that), as long as their mean varies as that of one batch.
    """
    name, quantity = variance_name(together, parts), _QUANTITIES[of]
    if figures.groups(placed, together, parts) < _FEWEST * parts:
        needed = _FEWEST * together * placed.batch
        return Figure(name, of, None, None, None, f"needs {needed:,} rows")
    random = [figures.variance(deal, quantity, together, parts) for deal in deals]
    usual = mean(random)
    if usual <= 0:
        return Figure(name, of, None, None, None, _NOTHING)
    strict = (of, parts) == (LENGTH, 1)
    single = mean(figures.variance(deal, quantity, 1, parts) for deal in deals) / usual
    allowed = _VARIANCE[of] * (1 if strict else max(single, 1))
    limit = allowed * _by_chance(figures.groups(placed, together, parts))
    found = figures.variance(placed, quantity, together, parts)
    return Figure(name, of, found / usual, 1.0, limit)


def _by_chance(count: int) -> float:
    """How far a variance of so many means exceeds the true one once in a thousand times.

    By Wilson and Hilferty's approximation of the chi-squared distribution.

    >>> round(_by_chance(16), 2), round(_by_chance(1_000), 2)
    (2.46, 1.14)
    """
    ninth = 2 / (9 * (count - 1))
    return float((1 - ninth + 3 * ninth**0.5) ** 3)
