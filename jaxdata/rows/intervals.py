"""What a mixture says of its run beforehand: where its shares change, where sources run dry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Rows `[start, start + rows)` of a mixture, in which the shares do not change."""

    start: int
    rows: int
    phase: int
    """number of the phase in the mixture's `phases`"""
    shares: Mapping[str, float]
    """share of the tokens, as weights count them, of each source that has one"""


@dataclass(frozen=True)
class Exhaustion:
    """A source runs dry: it has no row for `row` of the mixture."""

    source: str
    phase: int
    row: int

    def __str__(self) -> str:
        return f"source {self.source!r} runs dry in phase {self.phase} at row {self.row}"
