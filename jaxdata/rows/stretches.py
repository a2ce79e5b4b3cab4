"""Phases laid out in stretches of constant shares: which row a source runs dry at, beforehand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from jaxdata.errors import InputError, SourceExhausted
from jaxdata.rows.phases import Phase
from jaxdata.rows.split import SplitTree
from jaxdata.rows.weights import exact

__all__ = ["Exhaustion", "Layout", "Stretch", "Supply", "lay_out"]


@dataclass(frozen=True)
class Supply:
    """What a source has to give."""

    name: str
    available: int
    """rows in all the epochs it may be seen"""
    tokens_per_row: Fraction
    """trained tokens, over those rows"""
    used: int = 0
    """rows of it that were taken before"""


@dataclass(frozen=True)
class Stretch:
    """Rows `[start, start + rows)` of a mixture, in which the shares do not change."""

    start: int
    rows: int
    phase: int
    """number of the phase in the mixture's `phases`"""
    shares: Mapping[str, float]
    """share of the trained tokens that each source is to have; those that have none left out"""
    tree: SplitTree
    base: tuple[int, ...]
    """rows that each source had before it"""

    def used(self, row: int) -> list[int]:
        """Rows that each source had before `row` of the mixture, which is not before `start`."""
        here = self.tree.counts(min(row - self.start, self.rows))
        return [a + b for a, b in zip(self.base, here, strict=True)]


@dataclass(frozen=True)
class Exhaustion:
    """A source runs dry: it has no row left for `row` of the mixture."""

    source: str
    phase: int
    row: int

    def __str__(self) -> str:
        return f"source {self.source!r} runs dry in phase {self.phase} at row {self.row}"


@dataclass(frozen=True)
class Layout:
    """The stretches of some phases, the exhaustions met on the way, and what stops them early."""

    stretches: list[Stretch]
    exhaustions: list[Exhaustion]
    halted: Exhaustion | None


def lay_out(
    supplies: Sequence[Supply],
    phases: Sequence[Phase],
    *,
    seq_len: int,
    on_exhaustion: str,
    start: int = 0,
    first_phase: int = 0,
) -> Layout:
    """Lay phases out from row `start` on.

    Args:
        supplies: the sources.
        phases: the curriculum, its weights numbers.
        seq_len: slots of a row.
        on_exhaustion: `"refuse"`, `"halt"` or `"renormalize"`.
        start: row of the mixture at which they begin.
        first_phase: number of the first of them.

    Raises:
        SourceExhausted: with `"refuse"`, the account of what is short.
    """
    if on_exhaustion not in ("refuse", "halt", "renormalize"):
        raise InputError(
            f"on_exhaustion={on_exhaustion!r}: expected 'refuse', 'halt' or 'renormalize'"
        )
    if on_exhaustion == "refuse":
        _demand(supplies, phases, seq_len, first_phase)
    course = _Course(supplies, start, on_exhaustion)
    for number, phase in enumerate(phases, first_phase):
        if not course.run(number, phase, phase.budget(seq_len)):
            break
    return Layout(course.stretches, course.met, course.halted)


class _Course:
    """Phases laid out one after the other."""

    def __init__(self, supplies: Sequence[Supply], start: int, on_exhaustion: str) -> None:
        self._supplies, self._row, self._on_exhaustion = supplies, start, on_exhaustion
        self._used = [supply.used for supply in supplies]
        self.stretches: list[Stretch] = []
        self.met: list[Exhaustion] = []
        self.halted: Exhaustion | None = None

    def run(self, number: int, phase: Phase, budget: int | None) -> bool:
        """Lay a phase out; whether it came to its end."""
        end = self._row + (_left(self._supplies, self._used) if budget is None else budget)
        goes_on = self._on_exhaustion == "renormalize"
        dry: set[int] = set()
        while self._row < end:
            weighed = [k for k in _weighed(self._supplies, phase) if k not in dry]
            first_dry = self._stretch(number, phase, weighed, end) if weighed else None
            if first_dry is not None and (goes_on or budget is not None):
                dry.add(first_dry)
                self.met.append(Exhaustion(self._supplies[first_dry].name, number, self._row))
            if self._row < end and not (weighed and goes_on):
                self.halted = None if budget is None else self.met[-1]
                return False
        return True

    def _stretch(self, number: int, phase: Phase, weighed: list[int], end: int) -> int | None:
        """The next rows in which shares do not change, and the source that ends them."""
        tree = SplitTree(_shares(self._supplies, phase, weighed))
        rows, first_dry = _lasts(tree, end - self._row, self._used, self._supplies)
        if rows:
            shares = _asked(self._supplies, phase, weighed)
            stretch = Stretch(self._row, rows, number, shares, tree, tuple(self._used))
            self.stretches.append(stretch)
            self._row += rows
            self._used = stretch.used(self._row)
        return first_dry


def _demand(
    supplies: Sequence[Supply], phases: Sequence[Phase], seq_len: int, first_phase: int
) -> None:
    """Refuse phases that ask for more than there is, with the whole account."""
    lines, used = [], [supply.used for supply in supplies]
    for number, phase in enumerate(phases, first_phase):
        budget = phase.budget(seq_len)
        if budget is None:
            continue
        asked = SplitTree(_shares(supplies, phase, _weighed(supplies, phase))).counts(budget)
        for source, (supply, rows) in enumerate(zip(supplies, asked, strict=True)):
            there = max(supply.available - used[source], 0)
            used[source] += rows
            if rows > there:
                lines.append(
                    f"  phase {number}, source {supply.name!r}: demanded {rows:,} rows, "
                    f"available {there:,}, short by {rows - there:,}"
                )
    if lines:
        raise SourceExhausted(
            "the mixture asks for more than its sources have:\n"
            + "\n".join(lines)
            + "\nthree ways out: a smaller budget or weight; more epochs of the source "
            "(epochs={name: 2}); on_exhaustion='renormalize' (the others share the rest) or 'halt'"
        )


def _lasts(
    tree: SplitTree, rows: int, used: Sequence[int], supplies: Sequence[Supply]
) -> tuple[int, int | None]:
    """How many of the next `rows` can be had, and the source that ends them."""
    limits = [supply.available - taken for supply, taken in zip(supplies, used, strict=True)]
    asked = zip(tree.counts(rows), limits, strict=True)
    ends = {
        source: _last_within(tree, source, limits[source], rows)
        for source, (count, limit) in enumerate(asked)
        if count > limit
    }
    first_dry = min(ends, key=ends.__getitem__, default=None)
    return (rows, None) if first_dry is None else (ends[first_dry], first_dry)


def _last_within(tree: SplitTree, source: int, limit: int, rows: int) -> int:
    """The longest prefix, shorter than `rows`, in which a source has at most `limit` rows."""

    def next_count(prefix: int) -> int:
        return tree.counts(prefix + 1)[source]

    return bisect_left(range(rows), limit + 1, key=next_count)


def _left(supplies: Sequence[Supply], used: Sequence[int]) -> int:
    return sum(max(s.available - taken, 0) for s, taken in zip(supplies, used, strict=True))


def _weighed(supplies: Sequence[Supply], phase: Phase) -> list[int]:
    return [number for number, supply in enumerate(supplies) if phase.weight(supply.name)]


def _shares(supplies: Sequence[Supply], phase: Phase, chosen: Sequence[int]) -> list[Fraction]:
    """Shares of rows: the weights are of trained tokens, so a fuller row counts for more."""
    shares = [Fraction(0)] * len(supplies)
    for number in chosen:
        supply = supplies[number]
        shares[number] = exact(phase.weight(supply.name)) / supply.tokens_per_row
    return shares


def _asked(supplies: Sequence[Supply], phase: Phase, chosen: Sequence[int]) -> dict[str, float]:
    weights = {supplies[k].name: exact(phase.weight(supplies[k].name)) for k in chosen}
    return {name: float(weight / sum(weights.values())) for name, weight in weights.items()}
