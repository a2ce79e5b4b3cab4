"""What a mixture will deliver in each interval, to the token, before the first row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.table import RowTable, TokenCounts


@dataclass(frozen=True)
class PlannedInterval:
    """Rows `[start, stop)` of a mixture, in which the shares do not change."""

    phase: int
    start: int
    stop: int
    asked: dict[str, float]
    """shares by the weights, of the sources that are not exhausted"""
    token_counts: dict[str, TokenCounts]
    """counts of each source in these rows"""
    loss_shares: Mapping[str, float] = field(default_factory=dict)
    """of each source's trained tokens, the share that weights count, if not all"""

    @property
    def asked_of_trained(self) -> dict[str, float]:
        """Shares of the trained tokens, whatever weights count."""
        if not self.loss_shares:
            return self.asked
        losses = self.loss_shares
        tokens = {n: share / losses[n] if losses[n] else 0.0 for n, share in self.asked.items()}
        return {name: count / (sum(tokens.values()) or 1) for name, count in tokens.items()}


def planned_intervals(mixed: RowTable, rows: int | None = None) -> list[PlannedInterval]:
    """The intervals of the first `rows` rows of a mixture; None for all."""
    end = len(mixed) if rows is None else rows
    intervals = [interval for interval in mixed.intervals if interval.start < end]
    edges = [*(interval.start for interval in intervals), end]
    at_edges = [mixed.token_counts(edge) for edge in edges]
    loss_shares = mixed.loss_shares if isinstance(mixed, Mixture) else {}
    return [
        PlannedInterval(
            phase=interval.phase,
            start=start,
            stop=stop,
            asked={name: interval.shares.get(name, 0.0) for name in mixed.names},
            token_counts={name: after[name] - before[name] for name in mixed.names},
            loss_shares=loss_shares,
        )
        for interval, (start, stop), (before, after) in zip(
            intervals, pairwise(edges), pairwise(at_edges), strict=True
        )
    ]


def weighed_tokens(
    counts: Mapping[str, TokenCounts], loss_shares: Mapping[str, float]
) -> dict[str, float]:
    """The tokens of each source as weights count them: trained ones, or the share with loss."""
    return {name: each.trained_tokens * loss_shares.get(name, 1) for name, each in counts.items()}


def asked_shares(intervals: Sequence[PlannedInterval]) -> dict[str, float]:
    """The share of the trained tokens of some intervals that the weights give each source."""
    asked: dict[str, float] = {}
    for interval in intervals:
        tokens = sum(token_counts.trained_tokens for token_counts in interval.token_counts.values())
        for name, share in interval.asked_of_trained.items():
            asked[name] = asked.get(name, 0.0) + tokens * share
    whole = sum(asked.values()) or 1.0
    return {name: tokens / whole for name, tokens in asked.items()}
