"""Rows of several sources mixed by exact shares of trained tokens, phase after phase."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.base.facts import brief
from jaxdata.base.ragged import Ints
from jaxdata.base.wording import bars_html, color_of, table_html, visible
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.mixing.phases import Phase, Recipe, size_of
from jaxdata.rows.mixing.remaining import cursor_of
from jaxdata.rows.mixing.timeline import Timeline, make_timeline
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import (
    MOST_SLOTS,
    Exhaustion,
    Interval,
    Key,
    RowShape,
    RowTable,
    Segments,
    TokenCounts,
    cyclic_key,
    joint_key,
)


def mixture(
    tables: Mapping[str, PackedRows],
    phases: Sequence[Phase],
    epochs: Mapping[str, float],
    on_exhaustion: str,
    weigh_by: str = "tokens",
) -> MixedRows:
    """The rows of a recipe; see `jaxdata.mix`."""
    recipe = Recipe(list(phases), dict(epochs), on_exhaustion, weigh_by)
    recipe.check(list(tables))
    _shared_shape(tables, tables)
    return mix_tables(tables, recipe, {})


def everything(
    tables: Mapping[str, PackedRows], epochs: Mapping[str, float], weigh_by: str = "tokens"
) -> list[Phase]:
    """One phase of all epochs of all sources, weighted by tokens so that all end together."""
    sizes = {name: size_of(table, weigh_by) for name, table in tables.items()}
    return [Phase(weights={name: size * epochs.get(name, 1) for name, size in sizes.items()})]


def mix_tables(
    tables: Mapping[str, RowTable],
    recipe: Recipe,
    used: Mapping[str, int],
    start: int = 0,
    first_phase: int = 0,
) -> MixedRows:
    """Lay a checked recipe out over the rows of its sources, from row `start` on.

    `used` are the rows of each source that were taken before.
    """
    cursors = {name: cursor_of(table) for name, table in tables.items()}
    sizes = {name: size_of(each.whole, recipe.weigh_by) for name, each in cursors.items()}
    budgets = [each.budget(name, recipe, used.get(name, 0)) for name, each in cursors.items()]
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
    if sum(interval.rows for interval in timeline.intervals) > sys.maxsize:
        raise InputError(
            "the mixture has more than 2^63 rows: give its phases smaller budgets, or its sources "
            "fewer epochs"
        )
    return MixedRows(tables, recipe, timeline, shape)


def _shared_shape(tables: Mapping[str, RowTable], names: Iterable[str]) -> RowShape:
    """The shape that these sources share; raises InputError if they differ."""
    shapes = {name: tables[name].shape for name in names}
    for number, setting in enumerate(RowShape._fields):
        values = {name: shape[number] for name, shape in shapes.items()}
        if len(set(values.values())) != 1:
            raise InputError(f"sources of a mixture must share one {setting}, these have {values}")
    return next(iter(shapes.values()))


class Mixture(RowTable):
    """The part of a mixture that follows from its timeline.

    `tables` holds the rows of each source, in the order in which `select` numbers the sources; the
    recipe is the last one, if it was amended.
    """

    ends = True

    def __init__(
        self,
        tables: Mapping[str, RowTable],
        recipe: Recipe,
        timeline: Timeline,
        shape: RowShape,
    ) -> None:
        self.tables, self.recipe, self.timeline = dict(tables), recipe, timeline
        self.shape = shape
        self._starts = np.array([interval.start for interval in timeline.intervals], np.int64)

    def __len__(self) -> int:
        return sum(interval.rows for interval in self.timeline.intervals)

    @property
    def in_words(self) -> str:
        phases = len(self.timeline.phases)
        in_phases = f"{phases} phase{'s' * (phases != 1)}"
        return f"{super().in_words}, {', '.join(self.names)} in {in_phases}"

    def html(self, title: str) -> str:
        intervals = [each for each in self.intervals if each.rows]
        bars = [
            [(n, each.shares.get(n, 0.0), color_of(k)) for k, n in enumerate(self.names)]
            for each in intervals
        ]
        widths = [each.rows / max(len(self), 1) for each in intervals]
        rows = [
            (f"{i.start:,} to {i.start + i.rows - 1:,}", i.phase, *(share for _, share, _ in bar))
            for i, bar in zip(intervals, bars, strict=True)
        ]
        below = bars_html(bars, widths) + "".join(
            f"<div>{visible(each)}</div>" for each in self.exhaustions
        )
        return table_html(title, ["rows", "phase", *self.names], rows, below)

    @property
    def names(self) -> list[str]:
        """See `RowTable`; in the order that `select` numbers the sources."""
        return list(self.tables)

    @property
    def sources(self) -> Mapping[str, RowTable]:
        return {
            name: whole for name, table in self.tables.items() for whole in table.sources.values()
        }

    @property
    def intervals(self) -> Sequence[Interval]:
        return self.timeline.intervals

    @property
    def exhaustions(self) -> Sequence[Exhaustion]:
        return self.timeline.exhaustions

    def recipe_at(self, _row: int) -> Recipe:
        """The recipe of a row; amendments change it."""
        return self.recipe

    @property
    def loss_shares(self) -> Mapping[str, float]:
        """Of each source's trained tokens, the share that weights count; empty if they count all.

        It is that of an epoch, so it is exact of whole epochs and an average within them.
        """
        if self.recipe.weigh_by == "tokens":
            return {}
        return {
            name: table.loss_tokens / max(table.summary.trained_tokens, 1)
            for name, table in self.sources.items()
            if isinstance(table, PackedRows)
        }

    @property
    def halted(self) -> Exhaustion | None:
        """The exhaustion that ends the mixture before its budget is met, if any."""
        return self.timeline.halted

    def select(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(phase, source, row of the source) of rows of the mixture; int64 (rows,) each.

        The rows of a source count from 0 again where an amendment repacks it.
        """
        self._check_range(rows)
        phase, source, rank = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            mine, interval = np.flatnonzero(which == number), self.timeline.intervals[number]
            source[mine], rank[mine] = interval.tree.select(rows[mine] - interval.start)
            rank[mine] += np.asarray(interval.base)[source[mine]]
            phase[mine] = interval.phase
        return phase, source, rank

    def rows_of(self, source: int, ranks: Ints) -> Ints:
        """The inverse of `select`: the rows that are these rows of a source; -1 where none is."""
        found = np.full(len(ranks), -1)
        for interval in self.timeline.intervals:
            first, last = interval.base[source], interval.used(interval.start + interval.rows)
            mine = np.flatnonzero((ranks >= first) & (ranks < last[source]))
            if len(mine):
                here = interval.tree.rows_of(source, ranks[mine] - first)
                found[mine] = interval.start + here
        return found

    def _check_range(self, rows: Ints) -> None:
        start = self.timeline.start
        if len(rows) and not (rows.min() >= start and rows.max() < start + len(self)):
            raise IndexError(f"row index out of range for a mixture of {len(self)} rows")

    def counts(self, rows: int) -> dict[str, int]:
        """Rows of each source among the first `rows` of the mixture."""
        totals = dict.fromkeys(self.names, 0)
        for interval in self.timeline.intervals:
            if interval.start < rows:
                here = interval.tree.counts(min(rows - interval.start, interval.rows))
                for name, count in zip(totals, here, strict=False):  # later ones may be new
                    totals[name] += count
        return totals

    def end(self) -> SourceExhausted | None:
        halted = self.halted
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


class MixedRows(Mixture):
    """Rows of a mixture by one recipe: row -> (phase, source, row of the source).

    Made by `mixture`.
    """

    def __init__(self, *laid_out: Any) -> None:
        super().__init__(*laid_out)
        self.documents = [each for table in self.tables.values() for each in table.documents]
        counts = [len(table.documents) for table in self.tables.values()]
        self._first_documents = np.cumsum([0, *counts]).tolist()

    def segments(self, rows: Ints) -> Segments:
        _, source, rank = self.select(rows)
        tables = list(self.tables.values())

        def find(number: int, mine: Ints | slice) -> Segments:
            found = tables[number].segments(rank[mine])
            return replace(found, source=found.source + self._first_documents[number])

        return Segments.gather(source, find)

    def row_work(self, rows: Ints, window: int = MOST_SLOTS) -> Ints:
        _, source, rank = self.select(rows)
        found = np.empty(len(rows), np.int64)
        for number, table in enumerate(self.tables.values()):
            mine = np.flatnonzero(source == number)
            found[mine] = table.row_work(rank[mine], window)
        return found

    @property
    def lanes(self) -> int:
        return max(table.lanes for table in self.tables.values())

    def batch_key(self, rows: Ints) -> Key:
        _, source, rank = self.select(rows)
        if self._cycles is not None:
            epoch, lanes = self._cycles[source].T
            return cyclic_key(rank, epoch, lanes)
        tables = list(self.tables.values())
        return joint_key(source, rank, lambda number, mine: tables[number].batch_key(mine))

    @cached_property
    def _cycles(self) -> Ints | None:
        """(sources, 2): the lane cycle of each source; None if one has none."""
        cycles = [table.lane_cycle for table in self.tables.values()]
        return None if None in cycles else np.array(cycles)

    def used(self, rows: int) -> dict[str, int]:
        """Rows of each source taken before row `rows` of the mixture."""
        return dict(zip(self.names, self.timeline.used(rows), strict=True))

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        before, after = self.timeline.used(self.timeline.start), self.timeline.used(rows)
        return {
            name: table.total(last) - table.total(first) if first else table.total(last)
            for (name, table), first, last in zip(self.tables.items(), before, after, strict=True)
        }

    def epochs(self, rows: int) -> dict[str, Fraction]:
        used = self.used(rows)
        return {
            name: epochs
            for name, table in self.tables.items()
            for epochs in table.epochs(used[name]).values()
        }

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        start, stop = self.timeline.start, self.timeline.start + len(self)
        stop = stop if rows is None else min(stop, rows)
        if name not in self.tables or stop <= start:
            return []
        table = self.tables[name]
        ranks = set(table.rows_with(table.names[0], document, self.used(stop)[name]))
        found = self.rows_of(list(self.tables).index(name), np.array(sorted(ranks), np.int64))
        return [row for row in found.tolist() if row >= 0]

    def identity(self) -> dict[str, Any]:
        """See `RowTable`. Facts that all sources share are named once."""
        each = [table.identity() for table in self.tables.values()]
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
        data = identified({name: table.documents[0] for name, table in self.tables.items()})
        return {
            **shared,
            **own,
            **{name: brief(each) for name, each in data.items()},
            "phases": brief(self.timeline.asked),
            "epochs": brief(dict(self.recipe.epochs)),
            "on_exhaustion": self.recipe.on_exhaustion,
            **self._unit(),
        }

    def _unit(self) -> dict[str, Any]:
        """What the weights are shares of, with each source's tokens; nothing for the default."""
        unit = self.recipe.weigh_by
        if unit == "tokens":
            return {}
        sizes = {name: size_of(table, unit) for name, table in self.sources.items()}
        return {"weigh_by": unit, unit: brief(sizes)}
