"""A mixture whose recipe changes during the run: amendments, and one mixture after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.facts import brief
from jaxdata.base.ragged import Ints
from jaxdata.rows.mixing.mixture import MixedRows, Mixture, mix_tables
from jaxdata.rows.mixing.phases import Phase, Recipe, Weights, check_names, check_weights
from jaxdata.rows.mixing.remaining import cursor_of
from jaxdata.rows.mixing.timeline import Timeline
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSection
from jaxdata.rows.table import Key, RowTable, Segments, TokenCounts, joint_key

_MOST = 80  # characters of a fact in the state


class Amendment(NamedTuple):
    """A change of the recipe; None for what stays."""

    tables: Mapping[str, PackedRows]
    """sources that are new or repacked"""
    phases: Sequence[Phase] | None
    epochs: Mapping[str, float] | None
    on_exhaustion: str | None
    weights: Weights | None = None
    """of the phase that is under way there, for the rest of it"""
    asked_at: int | None = None
    """next row of the running loader that asked for the weights; None where they were planned"""

    def joined(self, later: Amendment) -> Amendment:
        """Both in one; the later one wins where both change the same."""
        return Amendment(
            {**self.tables, **later.tables},
            self.phases if later.phases is None else later.phases,
            {**(self.epochs or {}), **(later.epochs or {})} or None,
            later.on_exhaustion or self.on_exhaustion,
            *(self[4:] if later.weights is None else later[4:]),
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
    return MixedRows(mixed.tables, mixed.recipe, timeline, mixed.shape)


def revise(last: MixedRows, row: int, changes: Amendment) -> Revision:
    """The revision that begins at `row`, where `last` ends."""
    used, tables = last.used(row), dict(last.tables)
    for name, table in changes.tables.items():
        tables[name] = _following(name, tables.get(name), used.get(name, 0), table)
        if tables[name] is not last.tables.get(name):
            used = {**used, name: 0}
    first_phase, phases = _following_phases(last, row, changes)
    recipe = Recipe(
        phases,
        {**last.recipe.epochs, **(changes.epochs or {})},
        changes.on_exhaustion or last.recipe.on_exhaustion,
        last.recipe.weigh_by,
    )
    recipe.check(list(tables))
    mixed = mix_tables(tables, recipe, used, row, first_phase)
    return Revision(mixed, changes, _facts(mixed, changes))


def _following(name: str, was: RowTable | None, used: int, table: PackedRows) -> RowTable:
    """The rows of a source after `used` of its rows, packed like `table` from then on."""
    if was is None:
        return table
    cursor = cursor_of(was)
    if cursor.whole.documents[0].fingerprint != table.documents[0].fingerprint:
        raise InputError(
            f"source {name!r} has other documents than before, so its untrained remainder is "
            "unknown; give the new documents another name"
        )
    return was if cursor.whole.settings == table.settings else cursor.repacked(used, table)


def _following_phases(last: MixedRows, row: int, changes: Amendment) -> tuple[int, list[Phase]]:
    """The number of the next phase, and the phases that follow: those given or those remaining."""
    passed, phases = _remaining_phases(last.recipe, row - last.timeline.start, last.seq_len)
    first_phase = last.timeline.first_phase + passed
    if changes.phases is not None:
        phases = list(changes.phases)
    if not phases:
        raise InputError(f"no phase is left at row {row}; pass the phases to follow")
    if changes.weights is not None:
        phases[0] = replace(phases[0], weights=changes.weights)
    if changes.phases is not None or changes.weights is not None:
        begun = [i.phase + 1 for i in last.timeline.intervals if i.start < row]
        first_phase = begun[-1] if begun else last.timeline.first_phase
    return first_phase, phases


def _remaining_phases(recipe: Recipe, rows: int, seq_len: int) -> tuple[int, list[Phase]]:
    """How many phases end within `rows` rows, and the others, the first without those rows."""
    phases = list(recipe.phases)
    for number, phase in enumerate(phases):
        budget = phase.budget(seq_len)
        if budget is None or rows < budget:
            return number, [phase.after(max(rows, 0), seq_len), *phases[number + 1 :]]
        rows -= budget
    return len(phases), []


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
    if changes.weights is not None:
        found["weights"] = changes.weights  # whole: a run is replayed from them
    if changes.asked_at is not None:
        found["asked_at"] = changes.asked_at
    return found


def amended(mixed: Mixture, row: int, changes: Amendment) -> AmendedRows:
    """The same rows up to `row`, another recipe from `row` on; see `MixedDataset.amend`.

    Amendments add up whatever the order in which they are made: one at the same row is joined with
    `changes`, and those at later rows are made anew.
    """
    _check_row(row, len(mixed))
    if changes.weights is not None:
        check_named(changes.weights, [*mixed.names, *changes.tables])
    first, *later = _revisions(mixed)
    before = [first, *(each for each in later if each.row < row)]
    asked = {each.row: each.changes for each in later if each.changes and each.row >= row}
    here = asked.pop(row, None)
    revisions = _amended(before, row, here.joined(changes) if here else changes)
    for at, again in asked.items():
        try:
            _check_row(at, revisions[-1].end)
            revisions = _amended(revisions, at, again)
        except InputError as error:
            raise InputError(
                f"the amendment at row {at:,} no longer fits: {error}. To leave it out, amend the "
                "mixture as it was before it"
            ) from None
    return AmendedRows(revisions)


def _amended(revisions: Sequence[Revision], row: int, changes: Amendment) -> list[Revision]:
    """The revisions of a run, and another one that begins at `row` of the last."""
    *unchanged, last = revisions
    shortened = last._replace(rows=until(last.rows, row))
    return [*unchanged, shortened, revise(shortened.rows, row, changes)]


def check_named(weights: Weights, names: Sequence[str]) -> None:
    """Refuse weights that are none, or not of sources of these names."""
    if not isinstance(weights, Mapping | str):
        raise InputError(f"weights {weights!r}: expected a number for each source by name")
    check_weights(weights)
    if not isinstance(weights, str):
        check_names(names, weights, "the weights name")


def amendment_for(table: Any, was: Mapping[str, Any], row: int) -> dict[str, Any]:
    """What an amendment says, as in a config, that leads a run over to these rows at `row`.

    Args:
        table: rows of another recipe than the run's.
        was: the run's identity, as its state has it.
        row: where the run is.

    Raises:
        InputError: there is no such amendment; the message says why.
    """
    if not isinstance(table, Mixture):
        raise InputError("only rows of jaxdata.mix can be amended")
    first, *later = _revisions(table)
    if later and later[0].row <= row:
        raise InputError(f"what differs is before row {later[0].row:,}, where one begins already")
    mixed, now = first.rows, first.rows.identity()
    kept = _by_source(was, "data").keys() & now["data"].keys()
    if whole := _never_amended(was, now, kept):
        raise InputError(f"{' and '.join(whole)} must be the same for a whole run")
    found = {
        "curriculum": _other_phases(mixed, was, row),
        "epochs": _other_epochs(mixed.recipe, was.get("epochs")),
        "on_exhaustion": mixed.recipe.on_exhaustion,
        "pack": _other_packing(was, now, kept or mixed.names),
    }
    if found["on_exhaustion"] == was.get("on_exhaustion"):
        del found["on_exhaustion"]
    return {name: value for name, value in found.items() if value}


def _never_amended(was: Mapping[str, Any], now: Mapping[str, Any], kept: Set[str]) -> list[str]:
    """Facts that differ and that no amendment sets; a source may come or go."""
    found = set[str]()
    for name in was.keys() | now.keys():
        before, after = was.get(name), now.get(name)
        if name in ("data", "views"):
            both = _by_source(was, name), _by_source(now, name)
            before, after = ([facts.get(one) for one in kept] for facts in both)
        if before != after:
            found.add(name.rpartition(".")[2])
    amended = {"phases", "epochs", "on_exhaustion", "loss_tokens", *PackSection.model_fields}
    return sorted(found - amended)


def _by_source(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A fact by source; a state may hold anything."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _other_phases(mixed: MixedRows, was: Mapping[str, Any], row: int) -> list[dict[str, Any]]:
    """What is left of the phases at a row, as a curriculum of a config; none if they are equal."""
    seq_len = was.get("seq_len")
    if not isinstance(seq_len, int) or seq_len < 1:  # a state may hold anything
        seq_len = mixed.seq_len
    asked = [[each.budget(seq_len), dict(each.numbers)] for each in mixed.timeline.phases]
    if brief(asked) == was.get("phases"):
        return []
    _, phases = _remaining_phases(mixed.recipe, row, seq_len)
    if not phases:
        raise InputError(f"the curriculum ends before row {row:,}")
    return [
        {{"weights": "mix"}.get(name, name): value for name, value in vars(phase).items() if value}
        for phase in phases
    ]


def _other_epochs(recipe: Recipe, was: Any) -> dict[str, float]:
    """The epochs that differ; all of them where the state has but a digest."""
    now = dict(recipe.epochs)
    if not isinstance(was, Mapping):
        return {} if was == brief(now) else now
    return {
        name: now.get(name, 1) for name in {**was, **now} if was.get(name, 1) != now.get(name, 1)
    }


def _other_packing(
    was: Mapping[str, Any], now: Mapping[str, Any], sources: Iterable[str]
) -> dict[str, Any]:
    """The fields of `pack` that differ and are one for all sources; others follow by their size."""
    found = {}
    for name, field in PackSection.model_fields.items():
        before, after = (
            [facts.get(f"{each}.{name}", facts.get(name, field.default)) for each in sources]
            for facts in (was, now)
        )
        if before != after and len(set(after)) == 1:
            found[name] = after[0]
    return found


def _check_row(row: int, rows: int) -> None:
    if not isinstance(row, int) or not 0 <= row <= rows:
        raise InputError(
            f"cannot amend a mixture of {rows:,} rows from row {row!r} on: expected 0 to {rows:,}"
        )


def _revisions(mixed: Mixture) -> Sequence[Revision]:
    if isinstance(mixed, AmendedRows):
        return mixed.revisions
    assert isinstance(mixed, MixedRows)
    return [Revision(mixed, None, {})]


class AmendedRows(Mixture):
    """Mixtures one after another, each with its own recipe; the first begins at row 0."""

    def __init__(self, revisions: Sequence[Revision]) -> None:
        self.revisions, mixtures = list(revisions), [each.rows for each in revisions]
        first = next((each for each in mixtures if len(each)), mixtures[-1])
        timeline, last = _joined([each.timeline for each in mixtures]), mixtures[-1]
        super().__init__(last.tables, last.recipe, timeline, first.shape)
        self._mixtures = mixtures
        self._begins = np.array([each.timeline.start for each in mixtures])
        self._replaced = [
            (number, name, table, before.used(after.timeline.start)[name])
            for number, (before, after) in enumerate(pairwise(mixtures), 1)
            for name, table in before.tables.items()
            if after.tables[name] is not table
        ]
        """where another packing of a source follows: its rows up to there"""
        self._number_documents()

    def _number_documents(self) -> None:
        """Number the documents of each table once, even if it spans amendments."""
        self.documents, self._names_of = [], list[int]()
        self._numbers: list[Ints] = []
        """for each mixture, the number here of each of its `documents`"""
        first: dict[int, int] = {}
        for mixed in self._mixtures:
            numbers: list[int] = []
            for name, table in mixed.tables.items():
                if id(table) not in first:
                    first[id(table)] = len(self.documents)
                    self.documents += table.documents
                    self._names_of += [self.names.index(name)] * len(table.documents)
                numbers += range(first[id(table)], first[id(table)] + len(table.documents))
            self._numbers.append(np.array(numbers))

    def recipe_at(self, row: int) -> Recipe:
        begun = [each.recipe for each in self._mixtures if each.timeline.start <= row]
        return (begun or [self.recipe])[-1]

    def segments(self, rows: Ints) -> Segments:
        self._check_range(rows)

        def find(number: int, mine: Ints | slice) -> Segments:
            found = self._mixtures[number].segments(rows[mine])
            return replace(found, source=self._numbers[number][found.source])

        return Segments.gather(np.searchsorted(self._begins, rows, side="right") - 1, find)

    @property
    def lanes(self) -> int:
        return max(each.lanes for each in self._mixtures)

    def batch_key(self, rows: Ints) -> Key:
        number = np.searchsorted(self._begins, rows, side="right") - 1

        def find(n: int, mine: Ints) -> Key:
            mixed = self._mixtures[n]  # without lanes its batches keep the order of their rows
            return mixed.batch_key(mine) if mixed.lanes > 1 else np.zeros(len(mine), np.uint64)

        return joint_key(number, rows, find)

    def sections(self) -> Sequence[tuple[int, RowTable]]:
        found: list[tuple[int, AmendedRows]] = []
        for mixed in self._mixtures:
            last = found[-1][1] if found else None
            if len(mixed) and (last is None or mixed.shape != last.shape):
                view = copy(self)
                view.shape = mixed.shape
                found.append((mixed.timeline.start, view))
        return found or [(0, self)]

    def origins(self, found: Segments) -> Segments:
        source, document, start = found.source.copy(), found.document.copy(), found.start.copy()
        for number, documents in enumerate(self.documents):
            mine = np.flatnonzero(found.source == number)
            document[mine], start[mine] = documents.in_base(document[mine], start[mine])
            source[mine] = self._names_of[number]
        return replace(found, source=source, document=document, start=start)

    def _at(self, rows: int) -> tuple[int, MixedRows]:
        """The last mixture that begins before a row, and its number; else the first."""
        number = max(int(np.searchsorted(self._begins, rows)) - 1, 0)
        return number, self._mixtures[number]

    def token_counts(self, rows: int) -> dict[str, TokenCounts]:
        found = dict.fromkeys(self.names, TokenCounts())
        last, mixed = self._at(rows)
        for number, name, table, used in self._replaced:
            if number <= last:
                found[name] += table.total(used)
        for name, used in mixed.used(rows).items():
            found[name] += mixed.tables[name].total(used)
        return found

    def epochs(self, rows: int) -> dict[str, Fraction]:
        return dict.fromkeys(self.names, Fraction(0)) | self._at(rows)[1].epochs(rows)

    def rows_with(self, name: str, document: int, rows: int | None = None) -> list[int]:
        return [r for mixed in self._mixtures for r in mixed.rows_with(name, document, rows)]

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; that of the first recipe."""
        return self._mixtures[0].identity()

    @property
    def amendments(self) -> list[dict[str, Any]]:
        return [{"row": each.row, **each.facts} for each in self.revisions[1:]]


def _joined(timelines: Sequence[Timeline]) -> Timeline:
    """All phases and intervals, including those that an amendment shortened."""
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
