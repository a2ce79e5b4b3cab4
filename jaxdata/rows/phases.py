"""What a curriculum asks for, and what it will get: phases, budgets, exhaustion."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from jaxdata.errors import InputError, SourceExhausted
from jaxdata.rows.split import SplitTree

__all__ = ["Exhaustion", "Phase", "Stretch", "schedule"]


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one set of weights.

    Args:
        tokens: its budget in slots: `ceil(tokens / seq_len)` rows. Or:
        rows: its budget in rows.
        weights: share of each source in the trained tokens; only their proportions count.

    >>> Phase(tokens=5e9, weights={"web": 0.6, "code": 0.4}).budget(2048)
    2441407
    """

    tokens: float | None = None
    rows: int | None = None
    weights: Mapping[str, float] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.rows is None):
            raise InputError(
                f"Phase(tokens={self.tokens}, rows={self.rows}): give its budget in tokens or in "
                "rows, one of them"
            )
        object.__setattr__(self, "weights", dict(self.weights))
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights.values()):
            raise InputError(f"weights {self.weights}: expected finite numbers, none below 0")
        if not any(self.weights.values()):
            raise InputError(f"weights {self.weights}: at least one source must be above 0")

    def budget(self, seq_len: int) -> int:
        """Rows of this phase."""
        rows = self.rows if self.rows is not None else math.ceil(_exact(self.tokens) / seq_len)
        if rows < 1:
            raise InputError(f"a phase of {rows} rows: expected at least 1")
        return rows


@dataclass(frozen=True)
class Stretch:
    """Rows `[start, start + rows)` of a mixture, in which the shares do not change."""

    start: int
    rows: int
    phase: int
    tree: SplitTree
    base: tuple[int, ...]
    """rows that each source had before it"""


@dataclass(frozen=True)
class Exhaustion:
    """A source runs dry: it has no row left for `row` of the mixture."""

    source: str
    phase: int
    row: int

    def __str__(self) -> str:
        return f"source {self.source!r} runs dry in phase {self.phase} at row {self.row}"


def schedule(
    names: Sequence[str],
    phases: Sequence[Phase],
    *,
    seq_len: int,
    tokens_per_row: Sequence[Fraction],
    available: Sequence[int],
    on_exhaustion: str,
) -> tuple[list[Stretch], list[Exhaustion]]:
    """Lay the phases out in stretches of constant shares.

    Args:
        names: the sources.
        phases: the curriculum.
        seq_len: slots of a row.
        tokens_per_row: trained tokens a row of each source, over an epoch.
        available: rows that each source has in all the epochs it may be seen.
        on_exhaustion: `"refuse"`, `"halt"` or `"renormalize"`.

    Returns:
        The stretches, and each exhaustion met on the way (none with `"refuse"`).
    """
    _check(names, phases, on_exhaustion)
    stretches: list[Stretch] = []
    met: list[Exhaustion] = []
    start, used = 0, [0] * len(names)
    for number, phase in enumerate(phases):
        end = start + phase.budget(seq_len)
        dry: set[int] = set()
        while start < end:
            shares = _shares(names, phase, tokens_per_row, dry)
            if not any(shares):
                return stretches, met
            tree = SplitTree(shares)
            lasts, first_dry = _lasts(tree, end - start, used, available)
            if lasts:
                stretches.append(Stretch(start, lasts, number, tree, tuple(used)))
            used = [a + b for a, b in zip(used, tree.counts(lasts), strict=True)]
            start += lasts
            if first_dry is None:
                continue
            met.append(Exhaustion(names[first_dry], number, start))
            dry.add(first_dry)
            if on_exhaustion == "halt":
                return stretches, met
    return stretches, met


def demand(
    names: Sequence[str],
    phases: Sequence[Phase],
    *,
    seq_len: int,
    tokens_per_row: Sequence[Fraction],
    available: Sequence[int],
) -> None:
    """Refuse a curriculum that asks for more than there is, with the whole account."""
    lines, used = [], [0] * len(names)
    for number, phase in enumerate(phases):
        tree = SplitTree(_shares(names, phase, tokens_per_row, set()))
        asked = tree.counts(phase.budget(seq_len))
        for source, rows in enumerate(asked):
            there = max(available[source] - used[source], 0)
            used[source] += rows
            if rows > there:
                lines.append(
                    f"  phase {number}, source {names[source]!r}: demanded {rows:,} rows, "
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
    tree: SplitTree, rows: int, used: Sequence[int], available: Sequence[int]
) -> tuple[int, int | None]:
    """How many of the next `rows` can be had, and the source that ends them."""
    limits = [a - u for a, u in zip(available, used, strict=True)]
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


def _shares(
    names: Sequence[str], phase: Phase, tokens_per_row: Sequence[Fraction], dry: set[int]
) -> list[Fraction]:
    """Shares of rows: the weights are of trained tokens, so a fuller row counts for more."""
    return [
        Fraction(0)
        if source in dry
        else _exact(phase.weights.get(name, 0)) / tokens_per_row[source]
        for source, name in enumerate(names)
    ]


def _exact(number: float | None) -> Fraction:
    """The number as it is written in decimal, so that 1.1 is eleven tenths."""
    return Fraction(str(number))


def _check(names: Sequence[str], phases: Sequence[Phase], on_exhaustion: str) -> None:
    if on_exhaustion not in ("refuse", "halt", "renormalize"):
        raise InputError(
            f"on_exhaustion={on_exhaustion!r}: expected 'refuse', 'halt' or 'renormalize'"
        )
    if not phases:
        raise InputError("a mixture needs at least one Phase(tokens=…, weights={…})")
    for number, phase in enumerate(phases):
        for name in phase.weights:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InputError(
                    f"phase {number} weighs {name!r}, which is none of the sources "
                    f"{', '.join(map(repr, names))}{hint}"
                )
