"""What a mixture will deliver, stretch by stretch: known to the token before the first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxdata.rows.amounts import Amounts
from jaxdata.rows.mixture import MixedRows

__all__ = ["PlannedStretch", "asked_shares", "planned_stretches"]


@dataclass(frozen=True)
class PlannedStretch:
    """Rows `[start, stop)` of a mixture, in which the shares do not change."""

    phase: int
    start: int
    stop: int
    asked: dict[str, float]
    """share of the trained tokens that the weights ask for, of the sources that are not dry"""
    amounts: dict[str, Amounts]
    """what each source gives in these rows"""


def planned_stretches(mixed: MixedRows, rows: int | None = None) -> list[PlannedStretch]:
    """The first `rows` of a mixture, in order; None for all of it."""
    end = len(mixed) if rows is None else rows
    stretches = [stretch for stretch in mixed.stretches if stretch.start < end]
    edges = [*(stretch.start for stretch in stretches), end]
    at_edges = [mixed.amounts(edge) for edge in edges]
    return [
        PlannedStretch(
            phase=stretch.phase,
            start=start,
            stop=stop,
            asked={name: stretch.shares.get(name, 0.0) for name in mixed.names},
            amounts={name: after[name] - before[name] for name in mixed.names},
        )
        for stretch, (start, stop), (before, after) in zip(
            stretches, pairwise(edges), pairwise(at_edges), strict=True
        )
    ]


def asked_shares(stretches: Sequence[PlannedStretch]) -> dict[str, float]:
    """The share of the trained tokens of some stretches that the weights ask of each source."""
    asked: dict[str, float] = {}
    for stretch in stretches:
        tokens = sum(amounts.trained_tokens for amounts in stretch.amounts.values())
        for name, share in stretch.asked.items():
            asked[name] = asked.get(name, 0.0) + tokens * share
    whole = sum(asked.values()) or 1.0
    return {name: tokens / whole for name, tokens in asked.items()}
