"""Phases laid out in intervals of constant shares, divided among sources by exact shares.

Finds beforehand where a source runs dry.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import SourceExhausted
from jaxdata.base.ragged import Ints
from jaxdata.rows.mixing.phases import Phase, exact
from jaxdata.rows.table import Exhaustion, Interval

_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)
_TOP_BIT = np.uint64(63)


class Apportionment:
    """Shares of sources: only proportions count, at least one is above 0, and 0 gets no rows.

    >>> tree = Apportionment([Fraction(2), Fraction(1), Fraction(0)])
    >>> source, rank = tree.select(np.arange(6))
    >>> source.tolist(), rank.tolist(), tree.counts(6)
    ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3], [4, 2, 0])
    """

    def __init__(self, shares: Sequence[Fraction] | Sequence[int]) -> None:
        self._size = len(shares)
        tie = count()
        # A node is a leaf ~source, or the number of a split, as the arrays below hold them.
        numbers = enumerate(whole_numbers(shares))  # quicker to add and compare than fractions
        heap = [(share, next(tie), ~source) for source, share in numbers if share > 0]
        heapq.heapify(heap)
        children: list[tuple[int, int]] = []
        fractions: list[int] = []
        while len(heap) > 1:
            light, heavy = heapq.heappop(heap), heapq.heappop(heap)
            total = light[0] + heavy[0]
            children.append((heavy[2], light[2]))
            fractions.append(min(_rounded(heavy[0] << 64, total), 2**64 - 1))
            heapq.heappush(heap, (total, next(tie), len(children) - 1))
        self._root = heap[0][2]
        self._children = np.asarray(children, np.int64).reshape(-1, 2)
        self._fractions = np.asarray(fractions, np.uint64)

    def select(self, rows: Ints) -> tuple[Ints, Ints]:
        """The source of each row, and the number of earlier rows of that source; int64."""
        node = np.full(len(rows), self._root, np.int64)
        rank = rows.astype(np.uint64)
        active = np.flatnonzero(node >= 0)
        while active.size:
            splits, ranks = node[active], rank[active]
            before = _heavy_count(ranks, self._fractions[splits])
            after = _heavy_count(ranks + np.uint64(1), self._fractions[splits])
            light = (after == before).astype(int)
            rank[active] = np.where(light, ranks - before, before)
            node[active] = self._children[splits, light]
            active = active[node[active] >= 0]
        return ~node, rank.astype(np.int64)

    def rows_of(self, source: int, ranks: Ints) -> Ints:
        """The inverse of `select`: the row that has each rank of a source; int64 (ranks,)."""
        path, node = list[tuple[int, bool]](), ~source
        while node != self._root:
            above, side = np.argwhere(self._children == node)[0].tolist()
            path.append((above, bool(side)))
            node = above
        rows = ranks.astype(object)  # of any size
        for above, light in path:
            rows = _row_of_rank(rows, int(self._fractions[above]), light)
        return rows.astype(np.int64)

    def first_beyond(self, limits: Sequence[int]) -> tuple[int, int]:
        """The first row that is one more of its source than its limit, and that source."""
        firsts: list[tuple[int, int]] = []

        def first(node: int) -> tuple[int, int]:
            return (limits[~node], ~node) if node < 0 else firsts[node]

        splits = zip(self._children.tolist(), self._fractions.tolist(), strict=True)
        for (left, right), heavy in splits:  # below a split are earlier ones
            on_left, on_right = first(left), first(right)
            of_left = _row_of_rank(on_left[0], heavy, False), on_left[1]
            firsts.append(min(of_left, (_row_of_rank(on_right[0], heavy, True), on_right[1])))
        return first(self._root)

    def counts(self, rows: int) -> list[int]:
        """Rows of each source among the first `rows`."""
        counts = [0] * self._size
        pending = [(self._root, rows)]
        while pending:
            node, here = pending.pop()
            if node < 0:
                counts[~node] = here
                continue
            heavy = (here * int(self._fractions[node]) + 2**63) >> 64
            left, right = self._children[node].tolist()
            pending += [(left, heavy), (right, here - heavy)]
        return counts


def whole_numbers(shares: Sequence[Fraction] | Sequence[int]) -> list[int]:
    """Whole numbers in the same proportions.

    >>> whole_numbers([Fraction(1, 2), Fraction(1, 3), Fraction(0)])
    [3, 2, 0]
    """
    scale = math.lcm(*(share.denominator for share in shares))
    return [share.numerator * (scale // share.denominator) for share in shares]


def _rounded(number: int, divisor: int) -> int:
    """The nearest whole number to a quotient; the even one, halfway between two."""
    quotient, rest = divmod(number, divisor)
    return quotient + (2 * rest + quotient % 2 > divisor)


def _row_of_rank(rank: Any, heavy: int, light: bool) -> Any:
    """The row of a split that is this rank of one of its sides; a whole number or an array."""
    if light:
        return (rank * 2**64 + 2**63) // (2**64 - heavy)
    return -((2**63 - (rank + 1) * 2**64) // heavy) - 1


def _heavy_count(rows: NDArray[np.uint64], fraction: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`floor(rows * fraction / 2^64 + 1/2)` by a 64 x 64 -> 128 bit product in halves."""
    a, b = rows >> _HALF_WORD, rows & _LOW
    c, d = fraction >> _HALF_WORD, fraction & _LOW
    middle = a * d + ((b * d) >> _HALF_WORD)
    other = b * c + (middle & _LOW)
    high = a * c + (middle >> _HALF_WORD) + (other >> _HALF_WORD)
    total: NDArray[np.uint64] = high + ((rows * fraction) >> _TOP_BIT)
    return total


@dataclass(frozen=True)
class SourceBudget:
    """The rows a source can give."""

    name: str
    available: int
    """rows in all its allowed epochs"""
    tokens_per_row: Fraction
    """trained tokens, over those rows"""
    used: int
    """rows of it taken before"""


@dataclass(frozen=True)
class ApportionedInterval(Interval):
    """An interval, and which rows of its sources it takes."""

    tree: Apportionment = field(repr=False)
    base: tuple[int, ...] = field(repr=False)
    """rows of each source taken before it"""

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
    intervals: list[ApportionedInterval]
    exhaustions: list[Exhaustion]
    halted: Exhaustion | None
    start: int
    """number of the first row"""
    first_phase: int
    """number of the first phase"""
    used_before: Sequence[int]
    """rows of each source taken before the first row"""

    @property
    def asked(self) -> list[list[Any]]:
        """The budget and the weights of each phase, as plain JSON values."""
        return [[n, dict(p.numbers)] for n, p in zip(self.budgets, self.phases, strict=True)]

    @property
    def end(self) -> int:
        """The row after the last."""
        last = self.intervals[-1:]
        return last[0].start + last[0].rows if last else self.start

    def used(self, row: int) -> Sequence[int]:
        """Rows of each source taken before `row`."""
        intervals = [interval for interval in self.intervals if interval.start < row]
        return intervals[-1].used(row) if intervals else self.used_before

    def until(self, row: int) -> "Timeline":
        """The same up to `row`."""
        intervals = [
            replace(interval, rows=min(interval.rows, row - interval.start))
            for interval in self.intervals
            if interval.start < row
        ]
        met = [exhaustion for exhaustion in self.exhaustions if exhaustion.row < row]
        return replace(self, intervals=intervals, exhaustions=met, halted=None)

    @classmethod
    def join(cls, timelines: "Sequence[Timeline]") -> "Timeline":
        """Several that follow each other: all phases and intervals, also those that were cut."""
        phases, budgets = list[Phase](), list[int | None]()
        for timeline in timelines:
            phases[timeline.first_phase :] = timeline.phases
            budgets[timeline.first_phase :] = timeline.budgets
        return replace(
            timelines[0],
            phases=phases,
            budgets=budgets,
            intervals=[interval for each in timelines for interval in each.intervals],
            exhaustions=[exhaustion for each in timelines for exhaustion in each.exhaustions],
            halted=timelines[-1].halted,
        )


def make_timeline(
    budgets: Sequence[SourceBudget],
    phases: Sequence[Phase],
    *,
    seq_len: int,
    on_exhaustion: str,
    start: int,
    first_phase: int,
) -> Timeline:
    """Lay phases, whose weights are numbers, out from row `start` of the mixture on.

    Raises:
        SourceExhausted: with `"refuse"`, if the phases need more rows than there are; lists them.
    """
    if on_exhaustion == "refuse":
        _demand(budgets, phases, seq_len, first_phase)
    asked = [phase.budget(seq_len) for phase in phases]
    before, renormalizes = [source.used for source in budgets], on_exhaustion == "renormalize"
    made = Timeline(phases, asked, [], [], None, start, first_phase, before)
    for number, (phase, budget) in enumerate(zip(phases, asked, strict=True), first_phase):
        left = sum(max(limit, 0) for limit in _limits(made, budgets))
        end = made.end + (left if budget is None else budget)
        # Only proportions count, and 0 is none.
        of_rows = whole_numbers(_shares(budgets, phase))
        of_tokens = whole_numbers([exact(phase.weight(each.name)) for each in budgets])
        while made.end < end:
            weighs = any(of_rows)
            dry = _add_interval(made, budgets, number, of_rows, of_tokens, end) if weighs else None
            if dry is not None and (renormalizes or budget is not None):
                of_rows[dry] = of_tokens[dry] = 0
                made.exhaustions.append(Exhaustion(budgets[dry].name, number, made.end))
            if made.end < end and not (weighs and renormalizes):
                return made if budget is None else replace(made, halted=made.exhaustions[-1])
    return made


def _add_interval(
    made: Timeline,
    budgets: Sequence[SourceBudget],
    number: int,
    of_rows: list[int],
    of_tokens: list[int],
    end: int,
) -> int | None:
    """Add the next interval; returns the source whose exhaustion ends it."""
    limits, row = _limits(made, budgets), made.end
    for source, limit in enumerate(limits):  # an amendment may allow less than is used already
        if limit < 0 and of_rows[source]:
            return source
    tree, total = Apportionment(of_rows), sum(of_tokens)
    rows, dry = tree.first_beyond(limits)
    if rows:
        weighed = zip(budgets, of_tokens, strict=True)
        shares = {source.name: weight / total for source, weight in weighed if weight}
        rows, used = min(rows, end - row), tuple(made.used(row))
        made.intervals.append(ApportionedInterval(row, rows, number, shares, tree, used))
    return dry if made.end < end else None


def _limits(made: Timeline, budgets: Sequence[SourceBudget]) -> list[int]:
    """Rows that each source has left at the end of a timeline."""
    taken = zip(budgets, made.used(made.end), strict=True)
    return [each.available - used for each, used in taken]


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


def _shares(budgets: Sequence[SourceBudget], phase: Phase) -> list[Fraction]:
    """Shares of rows: weights are of trained tokens, so a source with fuller rows gets fewer."""
    return [exact(phase.weight(source.name)) / source.tokens_per_row for source in budgets]
