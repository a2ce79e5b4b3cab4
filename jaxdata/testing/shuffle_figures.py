"""How well documents are mixed, as figures: each a function of where documents lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.ragged import AnyInts, Ints
from jaxdata.testing.document_places import Placement

Floats = NDArray[np.float64]
Quantity = Callable[[Placement], Floats]
"""gives a number for each segment"""


def length(placed: Placement) -> Floats:
    """Log of the document's tokens; (segments,)."""
    return np.log(placed.length.astype(np.float64))


def number(placed: Placement) -> Floats:
    """The document's place in the corpus; (segments,)."""
    return placed.document.astype(np.float64)


def place_in_row(placed: Placement, quantity: Quantity) -> float:
    """Correlation of a quantity with the place inside rows; nan where it cannot be told."""
    place = np.arange(len(placed.row), dtype=np.float64)  # what counts is the difference in a row
    return _correlation(quantity(placed), place, placed.row)


def place_in_batch(placed: Placement, quantity: Quantity) -> float:
    """Correlation of a row's mean with the row's place inside batches."""
    batch, place = np.divmod(np.arange(placed.rows), placed.batch)
    return _of_rows(placed, quantity, place.astype(np.float64), batch)


def place_in_epoch(placed: Placement, quantity: Quantity) -> float:
    """Correlation of a row's mean with the row's place in the epoch."""
    return _of_rows(placed, quantity, placed.at, np.zeros(placed.rows, np.int64))


def kept_neighbours(placed: Placement) -> float:
    """Share of neighbours inside rows that are neighbours in the corpus, too."""
    return _share(placed, np.abs(np.diff(placed.document.astype(np.int64))) == 1)


def equal_neighbours(placed: Placement) -> float:
    """Share of neighbours inside rows that have exactly as many slots."""
    return _share(placed, placed.slots[1:] == placed.slots[:-1])


def variance(placed: Placement, quantity: Quantity, together: int = 1, hosts: int = 1) -> float:
    """Variance of the token-weighted means of some consecutive batches, or of hosts' parts of them.

    Args:
        placed: where documents lie.
        quantity: what is averaged.
        together: consecutive batches of a mean.
        hosts: equal parts of a batch that are averaged by themselves.
    """
    weights, sums = _row_sums(placed, quantity)
    held = _grouped(placed, weights, together, hosts)
    there = held > 0
    return float(np.var(_grouped(placed, sums, together, hosts)[there] / held[there]))


def groups(placed: Placement, together: int, hosts: int = 1) -> int:
    """Number of the means of `variance`."""
    in_stretch = placed.rows // placed.stretches // placed.batch
    return placed.stretches * (in_stretch // together) * hosts


def _grouped(placed: Placement, of_rows: Floats, together: int, hosts: int) -> Floats:
    """Sums over the rows of each group; (stretches, groups, hosts)."""
    by_batch = of_rows.reshape(placed.stretches, -1, hosts, placed.batch // hosts).sum(axis=3)
    whole = by_batch.shape[1] // together
    cut = by_batch[:, : whole * together].reshape(placed.stretches, whole, together, hosts)
    return np.asarray(cut.sum(axis=2))


def _of_rows(placed: Placement, quantity: Quantity, place: Floats, group: Ints) -> float:
    """Correlation of the rows' token-weighted means with their places."""
    weights, sums = _row_sums(placed, quantity)
    there = np.flatnonzero(weights)
    return _correlation(sums[there] / weights[there], place[there], group[there])


def _row_sums(placed: Placement, quantity: Quantity) -> tuple[Floats, Floats]:
    """Slots of each row, and the quantity summed over them; (rows,) each."""
    of_segments = quantity(placed)
    weighted = placed.slots * (of_segments - of_segments.mean())  # small: nothing is lost
    sums = (np.bincount(placed.row, each, placed.rows) for each in (placed.slots, weighted))
    return tuple(sums)  # type: ignore[return-value]


def _correlation(a: Floats, b: Floats, group: AnyInts) -> float:
    """Of the deviations from the means of groups."""
    a, b = _deviations(a, group), _deviations(b, group)
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 1e-9 * len(a) else float("nan")


def _deviations(values: Floats, group: AnyInts) -> Floats:
    counts = np.bincount(group)
    means = np.bincount(group, values) / np.maximum(counts, 1)
    return np.asarray(values - means[group])


def _share(placed: Placement, pairs: NDArray[Any]) -> float:
    inside = placed.row[1:] == placed.row[:-1]
    count = int(np.count_nonzero(inside))
    return float(np.count_nonzero(pairs & inside)) / count if count else float("nan")
