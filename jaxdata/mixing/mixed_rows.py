"""Rows of several sources mixed by exact shares of trained tokens, phase after phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from jaxdata.documents.kept import identified
from jaxdata.errors import InputError
from jaxdata.facts import brief
from jaxdata.mixing.mixture import Mixture
from jaxdata.mixing.phases import Phase
from jaxdata.mixing.recipe import Recipe, size_of
from jaxdata.mixing.timeline import SourceBudget, make_timeline
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.ragged import Ints
from jaxdata.rows.batch_order import Key, cyclic_key, joint_key
from jaxdata.rows.counts import TokenCounts
from jaxdata.rows.table import RowTable, Segments


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
    for setting in ("seq_len", "positions"):
        _shared(tables, setting, tables)
    sizes = {name: size_of(table, weigh_by) for name, table in tables.items()}
    budgets = []
    for name, table in tables.items():
        available = math.ceil(recipe.epochs_of(name) * len(table))
        tokens_per_row = Fraction(sizes[name], len(table)) if sizes[name] else Fraction(1)
        budgets.append(SourceBudget(name, available, tokens_per_row))
    return mix_tables(tables, recipe, sizes, budgets)


def everything(
    tables: Mapping[str, PackedRows], epochs: Mapping[str, float], weigh_by: str = "tokens"
) -> list[Phase]:
    """One phase of all epochs of all sources, weighted by tokens so that all end together."""
    sizes = {name: size_of(table, weigh_by) for name, table in tables.items()}
    return [Phase(weights={name: size * epochs.get(name, 1) for name, size in sizes.items()})]


def mix_tables(
    tables: Mapping[str, RowTable],
    recipe: Recipe,
    sizes: Mapping[str, int],
    budgets: Sequence[SourceBudget],
    start: int = 0,
    first_phase: int = 0,
) -> MixedRows:
    """Lay a checked recipe out over the rows of its sources, from row `start` on.

    `sizes` are the tokens in an epoch of each source, as weights count them; `budgets` are in the
    order of `tables`.
    """
    phases = recipe.weighed(sizes)
    weighed = [name for name in tables if any(phase.weight(name) for phase in phases)]
    seq_len, positions = (_shared(tables, name, weighed) for name in ("seq_len", "positions"))
    timeline = make_timeline(
        budgets,
        phases,
        seq_len=seq_len,
        on_exhaustion=recipe.on_exhaustion,
        start=start,
        first_phase=first_phase,
    )
    return MixedRows(tables, recipe, timeline, seq_len, positions)


def _shared(tables: Mapping[str, RowTable], setting: str, names: Iterable[str]) -> Any:
    """The value of a setting that these sources share; raises InputError if they differ."""
    values = {name: getattr(tables[name], setting) for name in names}
    if len(set(values.values())) != 1:
        raise InputError(f"sources of a mixture must share one {setting}, these have {values}")
    return next(iter(values.values()))


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
