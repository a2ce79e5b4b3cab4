"""Rows of several sources mixed by exact shares of trained tokens, phase after phase."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import SourceExhausted
from jaxdata.rows.amounts import Amounts
from jaxdata.rows.course import Course
from jaxdata.rows.eras import Era
from jaxdata.rows.phases import Phase
from jaxdata.rows.stretches import Exhaustion, Stretch
from jaxdata.rows.table import Segments, brief
from jaxdata.rows.unread import origin

__all__ = ["MixedRows"]

Ints = NDArray[np.int64]


class MixedRows:
    """The row table of a mixture (see `RowTable`): row -> (phase, source, row of source).

    Made by `recipes.mixture`, and by `recipes.amended` from another.

    Args:
        eras: recipes in force one after the other; the first from row 0 on.
    """

    def __init__(self, eras: Sequence[Era]) -> None:
        self.eras = list(eras)
        self.names = list(eras[-1].recipe.courses)
        """the sources, in the order that `select` counts them"""
        self.phases: list[Phase] = []
        """all phases, those that an amendment cut short included"""
        for era in eras:
            self.phases[era.first_phase :] = era.phases
        self.stretches: list[Stretch] = [s for era in eras for s in era.layout.stretches]
        self.budgets: list[int | None] = []
        """rows asked of each; None where it goes on until a source runs dry"""
        for era in eras:
            self.budgets[era.first_phase :] = [phase.budget(era.seq_len) for phase in era.phases]
        self.exhaustions: list[Exhaustion] = [e for era in eras for e in era.layout.exhaustions]
        shape = next((era for era in eras if era.layout.stretches), eras[-1])
        self.seq_len, self.positions = shape.seq_len, shape.positions
        self._starts = np.array([stretch.start for stretch in self.stretches], np.int64)
        self._era = np.repeat(np.arange(len(eras)), [len(e.layout.stretches) for e in eras])
        self._number_courses()

    def _number_courses(self) -> None:
        """One number for each course, also where it goes on through an amendment."""
        self._courses: list[Course] = []
        self._course = np.zeros((len(self.eras), len(self.names)), np.int64)
        for number, era in enumerate(self.eras):
            for source, course in enumerate(era.recipe.courses.values()):
                if course not in self._courses:
                    self._courses.append(course)
                self._course[number, source] = self._courses.index(course)
        self.documents = [each for course in self._courses for each in course.documents]
        counts = [len(course.documents) for course in self._courses]
        self._first_documents = np.cumsum([0, *counts]).tolist()

    def __len__(self) -> int:
        return sum(stretch.rows for stretch in self.stretches)

    @property
    def on_exhaustion(self) -> str:
        """What happens where a source runs dry, by the last recipe."""
        return self.eras[-1].recipe.on_exhaustion

    @property
    def halted(self) -> Exhaustion | None:
        """The exhaustion at which the mixture ends before its budget, if any."""
        return self.eras[-1].layout.halted

    @property
    def sections(self) -> list[tuple[int, MixedRows]]:
        """Where rows take another shape: the first row, and this table with that shape."""
        found: list[tuple[int, MixedRows]] = []
        for era in self.eras:
            shape = (era.seq_len, era.positions)
            if not era.layout.stretches:
                continue
            if not found or shape != (found[-1][1].seq_len, found[-1][1].positions):
                view = copy(self)
                view.seq_len, view.positions = shape
                found.append((era.start, view))
        return found

    def select(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(phase, source, row of the source's course) of rows of the mixture; int64 (rows,) each.

        A course counts from 0 where an amendment packs its source anew.
        """
        _, phase, source, rank = self._select(rows)
        return phase, source, rank

    def _select(self, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"a row lies outside this mixture of {len(self)} rows")
        phase, source, rank = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            mine, stretch = np.flatnonzero(which == number), self.stretches[number]
            source[mine], rank[mine] = stretch.tree.select(rows[mine] - stretch.start)
            rank[mine] += np.asarray(stretch.base)[source[mine]]
            phase[mine] = stretch.phase
        return self._era[which], phase, source, rank

    def counts(self, rows: int) -> dict[str, int]:
        """Rows of each source among the first `rows` of the mixture."""
        totals = dict.fromkeys(self.names, 0)
        for (_, name), count in self._taken(rows).items():
            totals[name] += count
        return totals

    def _taken(self, rows: int) -> dict[tuple[int, str], int]:
        """Rows of each (course, name) among the first `rows` of the mixture."""
        taken: dict[tuple[int, str], int] = {}
        for era, stretch in zip(self._era.tolist(), self.stretches, strict=True):
            if stretch.start < rows:
                here = stretch.tree.counts(min(rows - stretch.start, stretch.rows))
                for source, count in enumerate(here):
                    key = (int(self._course[era, source]), self.names[source])
                    taken[key] = taken.get(key, 0) + count
        return taken

    def amounts(self, rows: int) -> dict[str, Amounts]:
        """See `Counted`."""
        found = dict.fromkeys(self.names, Amounts())
        for (course, name), count in self._taken(rows).items():
            found[name] += self._courses[course].amounts(count)
        return found

    def epoch_rows(self) -> dict[str, int]:
        """See `Counted`; as the last recipe packs them."""
        return {name: len(c.whole) for name, c in self.eras[-1].recipe.courses.items()}

    def epochs(self, rows: int) -> dict[str, Fraction]:
        """How often each source was read in the first `rows` of the mixture."""
        era = max((e for e in self.eras if e.start < rows), key=_start, default=self.eras[0])
        used, courses = era.used(rows), era.recipe.courses
        return {
            name: courses[name].epochs_after(used[name]) if name in courses else Fraction(0)
            for name in self.names
        }

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`."""
        era, _, source, rank = self._select(rows)
        course = self._course[era, source]
        parts = []
        for number in np.unique(course).tolist():
            mine = np.flatnonzero(course == number)
            found = self._courses[number].segments(rank[mine])
            first = self._first_documents[number]
            parts.append(replace(found, row=mine[found.row], source=found.source + first))
        return Segments.join(parts) if parts else Segments(*([np.empty(0, np.int64)] * 6))

    def origins(self, found: Segments) -> Segments:
        """The same segments as the dataset counts, whatever an amendment packed anew.

        That is the number of the source in `names`, of the document in it, and the start there.
        """
        if len(self.eras) == 1:
            return found
        source, document, start = found.source.copy(), found.document.copy(), found.start.copy()
        owner = {id(course): name for name, course in self._named()}
        for number, course in enumerate(self._courses):
            for each in range(self._first_documents[number], self._first_documents[number + 1]):
                mine = np.flatnonzero(found.source == each)
                _, document[mine], start[mine] = origin(
                    self.documents[each], found.document[mine], found.start[mine]
                )
                source[mine] = self.names.index(owner[id(course)])
        return replace(found, source=source, document=document, start=start)

    def _named(self) -> list[tuple[str, Course]]:
        return [pair for era in self.eras for pair in era.recipe.courses.items()]

    def rows_with(self, name: str, document: int) -> list[int]:
        """Rows that hold a part of a document of a source, increasing; nothing is scanned for it.

        Which row of the mixture has a row of a course is found by bisection.
        """
        found: set[int] = set()
        for key, taken in self._taken(len(self)).items():
            if key[1] == name:
                ranks = self._courses[key[0]].rows_with(document, taken)
                found |= {self._row_of(key, rank) for rank in ranks}
        return sorted(found)

    def _row_of(self, key: tuple[int, str], rank: int) -> int:
        def taken(row: int) -> int:
            return self._taken(row + 1).get(key, 0)

        return bisect_left(range(len(self)), rank + 1, key=taken)

    def identity(self) -> dict[str, Any]:
        """See `RowTable`; that of the first recipe. Facts that all sources share are named once."""
        era = self.eras[0]
        named = {name: course.whole for name, course in era.recipe.courses.items()}
        each = [table.identity() for table in named.values()]
        shared = {
            key: value for key, value in each[0].items() if all(e[key] == value for e in each)
        }
        own = {
            f"{name}.{key}": value
            for name, facts in zip(named, each, strict=True)
            for key, value in facts.items()
            if key not in shared and key != "data"
        }
        return {
            **shared,
            **own,
            "data": brief({name: t.documents[0].fingerprint[:8] for name, t in named.items()}),
            "phases": brief([[p.budget(era.seq_len), dict(p.numbers)] for p in era.phases]),
            "epochs": brief(dict(era.recipe.epochs)),
            "on_exhaustion": era.recipe.on_exhaustion,
        }

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """What was changed on the way, from which row on: plain JSON values, long ones digests."""
        return [{"row": era.start, **era.facts} for era in self.eras[1:]]

    def end(self) -> SourceExhausted | None:
        """The error with which a loader ends after the last row, where the budget is not met."""
        halted = self.halted
        if halted is None:
            return None
        if self.on_exhaustion == "renormalize":
            return SourceExhausted(
                f"{halted}, the last that was left; the run halts there. To go on: more epochs, "
                "or other sources"
            )
        return SourceExhausted(
            f"{halted}; the run halts there. To go on: on_exhaustion='renormalize', or more "
            f"epochs of {halted.source!r}"
        )


def _start(era: Era) -> int:
    return era.start
