"""What a mixture must be, row by row, in whole numbers and fractions of Python.

Phases here have a number of rows, or none until a source is dry, and weights that are numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from jaxdata.rows.mixing.phases import Phase

HALF, WORD = Fraction(1, 2), 2**64


class Node(NamedTuple):
    """A source, or a two-way split of those below it."""

    share: Fraction
    source: int = -1
    below: "tuple[Node, Node] | None" = None
    """the heavier, the lighter"""

    def heavy_rows(self, rows: int) -> int:
        """Of the first rows of a split, those that go to the heavier side."""
        assert self.below
        words = round(WORD * self.below[0].share / self.share)
        return math.floor(rows * Fraction(min(words, WORD - 1), WORD) + HALF)

    def pick(self, row: int) -> tuple[int, int]:
        """The source of a row, and how many earlier ones it has."""
        if not self.below:
            return self.source, row
        heavy = self.heavy_rows(row)
        if self.heavy_rows(row + 1) > heavy:
            return self.below[0].pick(heavy)
        return self.below[1].pick(row - heavy)

    def counts(self, rows: int) -> dict[int, int]:
        """The first rows of each source."""
        if not self.below:
            return {self.source: rows}
        heavy = self.heavy_rows(rows)
        return self.below[0].counts(heavy) | self.below[1].counts(rows - heavy)


def tree_of(shares: Sequence[Any]) -> Node:
    """Again and again the two lightest are joined; of equal ones, those that were there first."""
    nodes = [Node(Fraction(each), number) for number, each in enumerate(shares) if each]
    while len(nodes) > 1:
        light, heavy = sorted(nodes, key=lambda node: node.share)[:2]
        nodes = [node for node in nodes if node is not light and node is not heavy]
        nodes.append(Node(light.share + heavy.share, below=(heavy, light)))
    return nodes[0]


class Supply(NamedTuple):
    """A source: its rows, its tokens a row, and the rows taken before."""

    name: str
    available: int
    density: Fraction
    used: int = 0


@dataclass
class Plan:
    """Every row of a mixture, and what is said of them."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    """phase, source, row of the source"""
    intervals: list[tuple[int, int, int, dict[str, float]]] = field(default_factory=list)
    """first row, rows, phase, shares"""
    exhaustions: list[tuple[str, int, int]] = field(default_factory=list)
    halted: tuple[str, int, int] | None = None


def shares_of(supplies: Sequence[Supply], weights: Mapping[str, float]) -> list[Fraction]:
    return [Fraction(str(weights.get(each.name, 0))) / each.density for each in supplies]


def lay_out(
    supplies: Sequence[Supply], phases: Sequence[Phase], on_exhaustion: str, start: int = 0,
    first_phase: int = 0,
) -> Plan:  # fmt: skip
    """Take row after row from the sources."""
    plan, row, used = Plan(), start, [each.used for each in supplies]
    most = [each.available for each in supplies]
    for number, phase in enumerate(phases, first_phase):
        budget, weights = phase.rows, {n: each for n, each in phase.numbers.items() if each}
        left = sum(max(there - taken, 0) for there, taken in zip(most, used, strict=True))
        end = row + (left if budget is None else budget)
        while row < end:
            if not weights:
                plan.halted = None if budget is None else plan.exhaustions[-1]
                return plan
            begin, tree = row, tree_of(shares_of(supplies, weights))
            over = [n for n, s in enumerate(supplies) if s.name in weights and used[n] > most[n]]
            dry = over[0] if over else None
            while row < end and dry is None:
                source, _ = tree.pick(row - begin)
                if used[source] == most[source]:
                    dry = source
                else:
                    plan.rows.append((number, source, used[source]))
                    used[source] += 1
                    row += 1
            if row > begin:
                whole = sum(Fraction(str(each)) for each in weights.values())
                names = [each.name for each in supplies if each.name in weights]
                shares = {n: float(Fraction(str(weights[n])) / whole) for n in names}
                plan.intervals.append((begin, row - begin, number, shares))
            if dry is None:
                break
            met = (supplies[dry].name, number, row)
            if on_exhaustion == "renormalize":
                plan.exhaustions.append(met)
                del weights[supplies[dry].name]
                continue
            if budget is not None:
                plan.exhaustions.append(met)
                plan.halted = met
            return plan
    return plan


def shortfalls(supplies: Sequence[Supply], phases: Sequence[Phase], first: int = 0) -> list[str]:
    """What a strict mixture says of phases that need more rows than there are."""
    lines, used = [], {each.name: each.used for each in supplies}
    for number, phase in enumerate(phases, first):
        if phase.rows is None:
            continue
        tree = tree_of(shares_of(supplies, phase.numbers))
        picked = [tree.pick(row)[0] for row in range(phase.rows)]
        for at, each in enumerate(supplies):
            rows, there = picked.count(at), max(each.available - used[each.name], 0)
            used[each.name] += rows
            if rows > there:
                lines.append(
                    f"  phase {number}, source {each.name!r}: demanded {rows:,} rows, available "
                    f"{there:,}, short by {rows - there:,}"
                )
    return lines
