"""Phases laid out in intervals of constant shares; finds beforehand where sources run dry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxdata.errors import InputError, SourceExhausted
from jaxdata.mixing.apportion import Apportionment, whole_numbers
from jaxdata.mixing.phases import Phase
from jaxdata.mixing.weights import exact
from jaxdata.rows.intervals import Exhaustion, Interval


@dataclass(frozen=True)
class SourceBudget:
    """The rows a source can give."""

    name: str
    available: int
    """rows in all its allowed epochs"""
    tokens_per_row: Fraction
    """tokens as weights count them, over those rows"""
    used: int = 0
    """rows of it taken before"""


@dataclass(frozen=True, repr=False)
class ApportionedInterval(Interval):
    """An interval, and which rows of its sources it takes."""

    tree: Apportionment
    base: tuple[int, ...]
    """rows of each source taken before it"""

    def __repr__(self) -> str:
        return repr(Interval(self.start, self.rows, self.phase, self.shares))

    def used(self, row: int) -> list[int]:
        """Rows of each source taken before `row` of the mixture, where `row >= start`."""
        here = self.tree.counts(min(row - self.start, self.rows))
        return [a + b for a, b in zip(self.base, here, strict=True)]


@dataclass(frozen=True)
class Timeline:
    """Phases as intervals, with the exhaustions met on the way and what stops them early."""

    phases: Sequence[Phase]
    """the phases, with numbers as weights"""
    budgets: Sequence[int | None]
    """rows of each phase; None for one that runs until a source is exhausted"""
    intervals: Sequence[ApportionedInterval]
    exhaustions: Sequence[Exhaustion]
    halted: Exhaustion | None
    start: int = 0
    """number of the first row"""
    first_phase: int = 0
    """number of the first phase"""
    used_before: Sequence[int] = ()
    """rows of each source taken before the first row"""

    @property
    def asked(self) -> list[list[Any]]:
        """The budget and the weights of each phase, as plain JSON values."""
        return [[n, dict(p.numbers)] for n, p in zip(self.budgets, self.phases, strict=True)]

    def used(self, row: int) -> Sequence[int]:
        """Rows of each source taken before `row`."""
        intervals = [interval for interval in self.intervals if interval.start < row]
        return intervals[-1].used(row) if intervals else self.used_before


def make_timeline(
    budgets: Sequence[SourceBudget],
    phases: Sequence[Phase],
    *,
    seq_len: int,
    on_exhaustion: str,
    start: int = 0,
    first_phase: int = 0,
) -> Timeline:
    """Lay phases, whose weights are numbers, out from row `start` of the mixture on.

    Raises:
        SourceExhausted: with `"refuse"`, if the phases need more rows than there are; lists them.
    """
    if on_exhaustion not in ("refuse", "halt", "renormalize"):
        raise InputError(
            f"on_exhaustion={on_exhaustion!r}: expected 'refuse', 'halt' or 'renormalize'"
        )
    if on_exhaustion == "refuse":
        _demand(budgets, phases, seq_len, first_phase)
    asked = [phase.budget(seq_len) for phase in phases]
    progress = _SourceProgress(budgets, start, on_exhaustion)
    for number, (phase, budget) in enumerate(zip(phases, asked, strict=True), first_phase):
        if not progress.run(number, phase, budget):
            break
    return Timeline(
        phases=phases,
        budgets=asked,
        intervals=progress.intervals,
        exhaustions=progress.met,
        halted=progress.halted,
        start=start,
        first_phase=first_phase,
        used_before=[source.used for source in budgets],
    )


class _SourceProgress:
    """Lays phases out one after another."""

    def __init__(self, budgets: Sequence[SourceBudget], start: int, on_exhaustion: str) -> None:
        self._budgets, self._row, self._on_exhaustion = budgets, start, on_exhaustion
        self._used = [source.used for source in budgets]
        self.intervals: list[ApportionedInterval] = []
        self.met: list[Exhaustion] = []
        self.halted: Exhaustion | None = None

    def run(self, number: int, phase: Phase, budget: int | None) -> bool:
        """Lay a phase out; returns whether it reached its end."""
        end = self._row + (_left(self._budgets, self._used) if budget is None else budget)
        renormalizes = self._on_exhaustion == "renormalize"
        weighing = _Weighing(self._budgets, phase)
        while self._row < end:
            weighs = any(weighing.of_rows)
            first_dry = self._interval(number, weighing, end) if weighs else None
            if first_dry is not None and (renormalizes or budget is not None):
                weighing.leave_out(first_dry)
                self.met.append(Exhaustion(self._budgets[first_dry].name, number, self._row))
            if self._row < end and not (weighs and renormalizes):
                self.halted = None if budget is None else self.met[-1]
                return False
        return True

    def _interval(self, number: int, weighing: _Weighing, end: int) -> int | None:
        """Add the next interval; returns the source whose exhaustion ends it."""
        tree = Apportionment(weighing.of_rows)
        rows, first_dry = _lasts(tree, weighing, end - self._row, self._used, self._budgets)
        if rows:
            shares = _asked(self._budgets, weighing.of_tokens)
            used = tuple(self._used)
            interval = ApportionedInterval(self._row, rows, number, shares, tree, used)
            self.intervals.append(interval)
            self._row += rows
            self._used = interval.used(self._row)
        return first_dry


class _Weighing:
    """Shares in a phase, in whole numbers; only their proportions count, and 0 is none."""

    def __init__(self, budgets: Sequence[SourceBudget], phase: Phase) -> None:
        self.of_rows = whole_numbers(_shares(budgets, phase))
        self.of_tokens = whole_numbers([exact(phase.weight(source.name)) for source in budgets])

    def leave_out(self, source: int) -> None:
        self.of_rows[source] = self.of_tokens[source] = 0


def _demand(
    budgets: Sequence[SourceBudget], phases: Sequence[Phase], seq_len: int, first_phase: int
) -> None:
    """Refuse phases that need more rows than there are, listing every shortfall."""
    lines, used = [], [source.used for source in budgets]
    for number, phase in enumerate(phases, first_phase):
        budget = phase.budget(seq_len)
        if budget is None:
            continue
        asked = Apportionment(_shares(budgets, phase)).counts(budget)
        for number_of_source, (source, rows) in enumerate(zip(budgets, asked, strict=True)):
            there = max(source.available - used[number_of_source], 0)
            used[number_of_source] += rows
            if rows > there:
                lines.append(
                    f"  phase {number}, source {source.name!r}: demanded {rows:,} rows, "
                    f"available {there:,}, short by {rows - there:,}"
                )
    if lines:
        raise SourceExhausted(
            "the mixture needs more rows than its sources have:\n"
            + "\n".join(lines)
            + "\nreduce the budget or weight, allow more epochs (epochs={name: 2}), or "
            "set on_exhaustion='renormalize' (the others share the rest) or 'halt'"
        )


def _lasts(
    tree: Apportionment,
    weighing: _Weighing,
    rows: int,
    used: Sequence[int],
    budgets: Sequence[SourceBudget],
) -> tuple[int, int | None]:
    """How many of the next `rows` the sources can give, and the source that ends them."""
    limits = [source.available - taken for source, taken in zip(budgets, used, strict=True)]
    for source, limit in enumerate(limits):  # an amendment may allow less than is used already
        if limit < 0 and weighing.of_rows[source]:
            return 0, source
    row, dry = tree.first_beyond(limits)
    return (row, dry) if row < rows else (rows, None)


def _left(budgets: Sequence[SourceBudget], used: Sequence[int]) -> int:
    return sum(max(s.available - taken, 0) for s, taken in zip(budgets, used, strict=True))


def _shares(budgets: Sequence[SourceBudget], phase: Phase) -> list[Fraction]:
    """Shares of rows: weights are of trained tokens, so a source with fuller rows gets fewer."""
    return [exact(phase.weight(source.name)) / source.tokens_per_row for source in budgets]


def _asked(budgets: Sequence[SourceBudget], weights: Sequence[int]) -> dict[str, float]:
    total = sum(weights)
    weighed = zip(budgets, weights, strict=True)
    return {source.name: weight / total for source, weight in weighed if weight}
