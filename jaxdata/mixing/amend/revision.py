"""The recipe after an amendment: its sources, what remains of each, and the phases that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxdata.errors import InputError
from jaxdata.facts import brief
from jaxdata.mixing.amend.cursor import SourceCursor
from jaxdata.mixing.mixture import MixedRows, mix_tables
from jaxdata.mixing.phases import Phase
from jaxdata.mixing.recipe import Recipe, size_of
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable

_MOST = 80  # characters of a fact in the state


class Amendment(NamedTuple):
    """A change of the recipe; None for what stays."""

    tables: Mapping[str, PackedRows]
    """sources that are new or repacked"""
    phases: Sequence[Phase] | None
    epochs: Mapping[str, float] | None
    on_exhaustion: str | None

    def joined(self, later: Amendment) -> Amendment:
        """Both in one; the later one wins where both change the same."""
        return Amendment(
            {**self.tables, **later.tables},
            self.phases if later.phases is None else later.phases,
            {**(self.epochs or {}), **(later.epochs or {})} or None,
            later.on_exhaustion or self.on_exhaustion,
        )


class Revision(NamedTuple):
    """The rows of one recipe of a run, and the amendment that it begins with."""

    rows: MixedRows
    changes: Amendment | None
    """None for the first recipe"""
    facts: Mapping[str, Any]
    """the changes as plain JSON values, for the state"""

    @property
    def row(self) -> int:
        """The row at which it begins."""
        return self.rows.timeline.start

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.row + len(self.rows)


def until(mixed: MixedRows, row: int) -> MixedRows:
    """The same rows up to `row`."""
    whole = mixed.timeline
    intervals = [
        replace(interval, rows=min(interval.rows, row - interval.start))
        for interval in whole.intervals
        if interval.start < row
    ]
    met = [exhaustion for exhaustion in whole.exhaustions if exhaustion.row < row]
    timeline = replace(whole, intervals=intervals, exhaustions=met, halted=None)
    return MixedRows(mixed.tables, mixed.recipe, timeline, mixed.seq_len, mixed.positions)


def revise(last: MixedRows, row: int, changes: Amendment) -> Revision:
    """The revision that begins at `row`, where `last` ends."""
    used, tables = last.used(row), dict(last.tables)
    for name, table in changes.tables.items():
        tables[name] = _following(name, tables.get(name), used.get(name, 0), table)
        if tables[name] is not last.tables.get(name):
            used = {**used, name: 0}
    first_phase, phases = _following_phases(last, row, changes.phases)
    recipe = Recipe(
        phases,
        {**last.recipe.epochs, **(changes.epochs or {})},
        changes.on_exhaustion or last.recipe.on_exhaustion,
        last.recipe.weigh_by,
    )
    recipe.check(list(tables))
    cursors = {name: _cursor(table) for name, table in tables.items()}
    mixed = mix_tables(
        tables,
        recipe,
        {name: size_of(cursor.whole, recipe.weigh_by) for name, cursor in cursors.items()},
        [c.budget(name, recipe, used.get(name, 0)) for name, c in cursors.items()],
        row,
        first_phase,
    )
    return Revision(mixed, changes, _facts(mixed, changes))


def _cursor(table: RowTable) -> SourceCursor:
    if isinstance(table, SourceCursor):
        return table
    assert isinstance(table, PackedRows)
    return SourceCursor(table)


def _following(name: str, was: RowTable | None, used: int, table: PackedRows) -> RowTable:
    """The rows of a source after `used` of its rows, packed like `table` from then on."""
    if was is None:
        return table
    cursor = _cursor(was)
    if cursor.whole.documents[0].fingerprint != table.documents[0].fingerprint:
        raise InputError(
            f"source {name!r} has other documents than before, so its untrained remainder is "
            "unknown; give the new documents another name"
        )
    return was if cursor.whole.settings == table.settings else cursor.repacked(used, table)


def _following_phases(
    last: MixedRows, row: int, given: Sequence[Phase] | None
) -> tuple[int, list[Phase]]:
    """The number of the next phase, and the phases that follow: those given or those remaining."""
    if given is None:
        first_phase, phases = _remaining_phases(last, row)
    else:
        begun = [i.phase + 1 for i in last.timeline.intervals if i.start < row]
        first_phase, phases = begun[-1] if begun else last.timeline.first_phase, list(given)
    if not phases:
        raise InputError(f"no phase is left at row {row}; pass the phases to follow")
    return first_phase, phases


def _remaining_phases(last: MixedRows, row: int) -> tuple[int, list[Phase]]:
    """The phases from `row` on, the first without its consumed rows, and their first number."""
    phases, begin = list(last.recipe.phases), last.timeline.start
    for number, (phase, budget) in enumerate(zip(phases, last.timeline.budgets, strict=True)):
        if budget is None or row < begin + budget:
            first = phase.after(max(row - begin, 0), last.seq_len)
            return last.timeline.first_phase + number, [first, *phases[number + 1 :]]
        begin += budget
    return last.timeline.first_phase + len(phases), []


def _facts(mixed: MixedRows, changes: Amendment) -> dict[str, Any]:
    """The changes of an amendment, for the state."""
    facts = {
        "phases": mixed.timeline.asked,
        "epochs": dict(mixed.recipe.epochs),
        "on_exhaustion": mixed.recipe.on_exhaustion,
    }
    found = {
        name: brief(fact, _MOST)
        for name, fact in facts.items()
        if getattr(changes, name) is not None
    }
    sources = {
        name: [table.documents[0].fingerprint[:8], table.settings.facts()]
        for name, table in changes.tables.items()
    }
    if sources:
        found |= {"seq_len": mixed.seq_len, "sources": brief(sources, _MOST)}
    return found
