"""Rows of several sources mixed by exact shares of trained tokens, phase after phase."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError, SourceExhausted, brief
from jaxdata.base.ragged import Ints, by_value
from jaxdata.dataset.views.kept_documents import identified, numbered_by_source
from jaxdata.rows.mixing.phases import Amendment, Phase, Recipe
from jaxdata.rows.mixing.remaining import SourceCursor
from jaxdata.rows.mixing.timeline import ApportionedInterval, Timeline, make_timeline
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import Interval, JoinedRows, RowShape, RowTable, Segments, TokenCounts

Tables = Mapping[str, SourceCursor]


class Part(NamedTuple):
    """The rows of one recipe of a run; of the first, or of one that an amendment begins."""

    tables: Tables
    recipe: Recipe
    timeline: Timeline
    shape: RowShape
    changes: Amendment | None = None
    """None for the first recipe"""
    facts: Mapping[str, Any] = {}
    """the changes as plain JSON values, for the state"""

    @property
    def row(self) -> int:
        """The row at which it begins."""
        return self.timeline.start

    def used(self, row: int) -> dict[str, int]:
        """Rows of each source taken before a row."""
        return dict(zip(self.tables, self.timeline.used(row), strict=True))

    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row. Those that all sources share are named once."""
        each = [cursor.whole.identity() for cursor in self.tables.values()]
        shared = {
            key: value
            for key, value in each[0].items()
            if all(key in e and e[key] == value for e in each)
        }
        own = {
            f"{name}.{key}": value
            for name, facts in zip(self.tables, each, strict=True)
            for key, value in facts.items()
            if key not in shared and key not in ("data", "views")
        }
        data = identified({name: each.whole.documents[0] for name, each in self.tables.items()})
        return {
            **shared,
            **own,
            **{name: brief(found) for name, found in data.items()},
            "phases": brief(self.timeline.asked),
            "epochs": brief(dict(self.recipe.epochs)),
            "on_exhaustion": self.recipe.on_exhaustion,
        }


def mixture(
    tables: Mapping[str, PackedRows],
    phases: Sequence[Phase],
    epochs: Mapping[str, float],
    on_exhaustion: str,
) -> "Mixture":
    """The rows of a recipe; see `jaxdata.mix`."""
    recipe = Recipe(list(phases), dict(epochs), on_exhaustion)
    recipe.check(list(tables))
    cursors = {name: SourceCursor(table) for name, table in tables.items()}
    _shared_shape(cursors, cursors)
    return Mixture([lay_out(cursors, recipe, dict.fromkeys(cursors, 0), 0, 0)])


def everything(tables: Mapping[str, PackedRows], epochs: Mapping[str, float]) -> list[Phase]:
    """One phase of all epochs of all sources, weighted by tokens so that all end together."""
    sizes = {name: table.summary.trained_tokens for name, table in tables.items()}
    return [Phase(weights={name: size * epochs.get(name, 1) for name, size in sizes.items()})]


def lay_out(
    tables: Tables, recipe: Recipe, used: Mapping[str, int], start: int, first_phase: int
) -> Part:
    """Lay a checked recipe out over the rows of its sources, from row `start` on.

    `used` are the rows of each source that were taken before.
    """
    sizes = {name: each.whole.summary.trained_tokens for name, each in tables.items()}
    budgets = [each.budget(name, recipe, used[name]) for name, each in tables.items()]
    phases = recipe.weighed(sizes)
    weighed = [name for name in tables if any(phase.weight(name) for phase in phases)]
    shape = _shared_shape(tables, weighed)
    timeline = make_timeline(
        budgets,
        phases,
        seq_len=shape.seq_len,
        on_exhaustion=recipe.on_exhaustion,
        start=start,
        first_phase=first_phase,
    )
    if timeline.end - start > sys.maxsize:
        raise InputError(
            "the mixture has more than 2^63 rows: give its phases smaller budgets, or its sources "
            "fewer epochs"
        )
    return Part(tables, recipe, timeline, shape)


def _shared_shape(tables: Tables, names: Iterable[str]) -> RowShape:
    """The shape that these sources share; raises InputError if they differ."""
    shapes = {name: tables[name].whole.shape for name in names}
    for number, setting in enumerate(RowShape._fields):
        values = {name: shape[number] for name, shape in shapes.items()}
        if len(set(values.values())) != 1:
            raise InputError(f"sources of a mixture must share one {setting}, these have {values}")
    return next(iter(shapes.values()))


class Mixture(JoinedRows):
    """Rows of a mixture: row -> (phase, source, row of the source).

    It is of one recipe, or of several in turn where it was amended; the first begins at row 0.
    `tables` holds the rows of each source by the last recipe, in the order in which `select`
    numbers the sources.
    """

    ends = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self.tables, self.recipe = dict(parts[-1].tables), parts[-1].recipe
        self.timeline = Timeline.join([part.timeline for part in parts])
        self.intervals, self.exhaustions = self.timeline.intervals, self.timeline.exhaustions
        with_rows = [part for part in parts if part.timeline.intervals]
        self.shape = (with_rows or parts[-1:])[0].shape
        self._begins = np.array([part.row for part in parts])
        self._starts = np.array([each.start for each in self.timeline.intervals], np.int64)
        self._number_tables()

    def _number_tables(self) -> None:
        """Number the tables of all recipes, those that several have once."""
        numbers = dict[tuple[int, PackedRows], int]()
        self._places = np.zeros((len(self.parts), len(self.tables), 4), np.int64)
        """(recipes, sources, 4): the numbers of the tables of whole epochs and of the remainder,
        rows of the latter, and the shift to rows of the former (see `SourceCursor`)"""
        for part, (tables, *_) in enumerate(self.parts):
            for source, cursor in enumerate(tables.values()):
                held = [numbers.setdefault((source, each), len(numbers)) for each in cursor.tables]
                self._places[part, source] = held[0], held[-1], cursor.first, cursor.shift
        self.held: list[PackedRows] = [table for _, table in numbers]
        self.documents = [table.documents[0] for table in self.held]
        self._source = np.array([source for source, _ in numbers])
        """(tables,) the number of the source"""
        cycles = [table.cycle for table in self.held]
        self._cycles = None if None in cycles else np.array(cycles)
        """(tables, 2) the cycle of each; None if one has none"""
        most = [
            max(table.lanes for cursor in part.tables.values() for table in cursor.tables)
            for part in self.parts
        ]
        self._sorted = (np.array(most) > 1) | (len(most) == 1)
        """(recipes,) whether one of its sources has lanes, or there is no other recipe"""

    def __len__(self) -> int:
        return self.timeline.end

    @property
    def in_words(self) -> str:
        phases = len(self.timeline.phases)
        in_phases = f"{phases} phase{'s' * (phases != 1)}"
        return f"{super().in_words}, {', '.join(self.names)} in {in_phases}"

    @property
    def names(self) -> list[str]:
        """See `RowTable`; in the order that `select` numbers the sources."""
        return list(self.tables)

    @property
    def sources(self) -> Mapping[str, PackedRows]:
        return {name: cursor.whole for name, cursor in self.tables.items()}

    @property
    def amendments(self) -> list[dict[str, Any]]:
        return [{"row": part.row, **part.facts} for part in self.parts[1:]]

    def recipe_at(self, row: int) -> Recipe:
        """The recipe of a row; amendments change it."""
        return [part.recipe for part in self.parts if part.row <= max(row, 0)][-1]

    def select(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(phase, source, row of the source) of rows of the mixture; int64 (rows,) each.

        The rows of a source count from 0 again where an amendment repacks it.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"row index out of range for a mixture of {len(self)} rows")
        phase, source, rank = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number, mine in by_value(which):
            interval = self.timeline.intervals[number]
            source[mine], rank[mine] = interval.tree.select(rows[mine] - interval.start)
            rank[mine] += np.asarray(interval.base)[source[mine]]
            phase[mine] = interval.phase
        return phase, source, rank

    def located(self, rows: Ints) -> tuple[Ints, Ints]:
        _, source, rank = self.select(rows)
        whole, remainder, first, shift = self._places[self._part(rows), source].T
        late = rank >= first
        return np.where(late, whole, remainder), rank + late * shift

    def _part(self, rows: Ints) -> Ints:
        """The number of the recipe of each row."""
        return np.asarray(np.searchsorted(self._begins, rows, side="right") - 1)

    def origins(self, found: Segments) -> Segments:
        own = numbered_by_source(self.documents, found)
        return replace(own, source=self._source[own.source])

    def turns(self, rows: Ints) -> Ints:
        found: Ints
        if self._cycles is None:
            found = super().turns(rows)
        else:  # those of many sources at once
            table, row = self.located(rows)
            epoch, lanes = self._cycles[table].T
            found = row % epoch % lanes
        return found * self._sorted[self._part(rows)]  # 0: batches keep the order of their rows

    def counts(self, rows: int) -> dict[str, int]:
        """Rows of each source among the first `rows` of the mixture."""
        totals = dict.fromkeys(self.names, 0)
        for interval in self.timeline.intervals:
            if interval.start < rows:
                here = interval.tree.counts(min(rows - interval.start, interval.rows))
                for name, count in zip(totals, here, strict=False):  # later ones may be new
                    totals[name] += count
        return totals

    def _at(self, rows: int) -> int:
        """The number of the last recipe that begins before a row; else the first."""
        return max(int(np.searchsorted(self._begins, rows)) - 1, 0)

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        found, last = dict.fromkeys(self.names, TokenCounts()), self._at(rows)
        for number, part in enumerate(self.parts[: last + 1]):
            after = None if number == last else self.parts[number + 1]
            for name, used in part.used(after.row if after else rows).items():
                # What another packing of a source follows, and what is read now.
                if after is None or after.tables[name] is not part.tables[name]:
                    found[name] += part.tables[name].total(used)
        return found

    def epochs(self, rows: int) -> dict[str, Fraction]:
        part, found = self.parts[self._at(rows)], dict.fromkeys(self.names, Fraction(0))
        for name, used in part.used(rows).items():
            found[name] = part.tables[name].epochs(used)
        return found

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        found = list[int]()
        for part in self.parts:
            stop = part.timeline.end if rows is None else min(part.timeline.end, rows)
            if name in part.tables and stop > part.row:
                ranks = part.tables[name].rows_with(document, part.used(stop)[name])
                source, numbers = list(part.tables).index(name), np.array(ranks, np.int64)
                found += _rows_of(part.timeline.intervals, source, numbers).tolist()
        return [row for row in found if row >= 0]

    def sections(self) -> Sequence[tuple[int, RowTable]]:
        found: list[tuple[int, Mixture]] = []
        for part in self.parts:
            if part.timeline.intervals and (not found or part.shape != found[-1][1].shape):
                view = copy(self)
                view.shape = part.shape
                found.append((part.row, view))
        return found or [(0, self)]

    def end(self) -> SourceExhausted | None:
        halted = self.timeline.halted
        if halted is None:
            return None
        if self.recipe.on_exhaustion == "renormalize":
            return SourceExhausted(
                f"{halted}; it was the last one, so the run halts there. To continue, allow "
                "more epochs or add sources"
            )
        return SourceExhausted(
            f"{halted}; the run halts there. To continue, set on_exhaustion='renormalize' or allow "
            f"more epochs of {halted.source!r}"
        )

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; that of the first recipe."""
        return self.parts[0].identity()


def _rows_of(intervals: Sequence[ApportionedInterval], source: int, ranks: Ints) -> Ints:
    found = np.full(len(ranks), -1)
    for interval in intervals:
        if source < len(interval.base):
            first, last = interval.base[source], interval.used(interval.start + interval.rows)
            mine = np.flatnonzero((ranks >= first) & (ranks < last[source]))
            if len(mine):
                here = interval.tree.rows_of(source, ranks[mine] - first)
                found[mine] = interval.start + here
    return found


@dataclass(frozen=True)
class PlannedInterval(Interval):
    """An interval, and what its rows hold."""

    token_counts: dict[str, TokenCounts]
    """counts of each source in these rows"""


def planned_intervals(mixed: RowTable, rows: int | None = None) -> list[PlannedInterval]:
    """The intervals of the first `rows` rows of a mixture; None for all."""
    end = len(mixed) if rows is None else rows
    intervals = [interval for interval in mixed.intervals if interval.start < end]
    edges = [*(interval.start for interval in intervals), end]
    at_edges = [mixed.token_counts(edge) for edge in edges]
    return [
        PlannedInterval(
            *(start, stop - start, interval.phase, interval.shares),
            {name: after[name] - before[name] for name in mixed.names},
        )
        for interval, (start, stop), (before, after) in zip(
            intervals, pairwise(edges), pairwise(at_edges), strict=True
        )
    ]


def asked_shares(intervals: Sequence[PlannedInterval]) -> dict[str, float]:
    """The share of the trained tokens of some intervals that the weights give each source."""
    asked: dict[str, float] = {}
    for interval in intervals:
        tokens = sum(token_counts.trained_tokens for token_counts in interval.token_counts.values())
        for name in interval.token_counts:
            asked[name] = asked.get(name, 0.0) + tokens * interval.shares.get(name, 0.0)
    whole = sum(asked.values()) or 1.0
    return {name: tokens / whole for name, tokens in asked.items()}
