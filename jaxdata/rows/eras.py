"""A recipe, laid out: in force from row 0 on, or from an amendment on to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from jaxdata.errors import InputError
from jaxdata.rows.course import Course
from jaxdata.rows.phases import Phase, check_names, check_phases
from jaxdata.rows.stretches import Layout, Supply, lay_out
from jaxdata.rows.weights import exact

__all__ = ["Era", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What a mixture is asked for."""

    courses: Mapping[str, Course]
    phases: Sequence[Phase]
    epochs: Mapping[str, float]
    on_exhaustion: str

    def __post_init__(self) -> None:
        check_phases(self.phases)
        for number, phase in enumerate(self.phases):
            if not isinstance(phase.weights, str):
                check_names(list(self.courses), phase.weights, f"phase {number} weighs")
        check_names(list(self.courses), self.epochs, "epochs names")
        _check_epochs(self.epochs)

    def weighed(self) -> list[Phase]:
        """The phases with a number for each source."""
        sizes = {name: c.whole.summary.trained_tokens for name, c in self.courses.items()}
        phases = [phase.weighed(sizes) for phase in self.phases]
        for name in self.courses:
            if not sizes[name] and any(phase.weight(name) for phase in phases):
                raise InputError(f"source {name!r} has no rows to train on, yet a phase weighs it")
        return phases

    def shared(self, setting: str, names: Sequence[str]) -> Any:
        """A setting that rows of these sources have in common; raises InputError."""
        values = {name: getattr(self.courses[name].whole, setting) for name in names}
        if len(set(values.values())) != 1:
            raise InputError(f"sources of a mixture must share one {setting}, these have {values}")
        return next(iter(values.values()))


class Era:
    """A recipe from a row on, laid out.

    Args:
        recipe: what was asked for.
        start: row of the mixture.
        first_phase: number of its first phase in the mixture.
        used: rows of each source's course that were taken before.
    """

    def __init__(
        self,
        recipe: Recipe,
        start: int = 0,
        first_phase: int = 0,
        used: Mapping[str, int] | None = None,
    ) -> None:
        self.recipe, self.start, self.first_phase = recipe, start, first_phase
        self.facts: dict[str, Any] = {}
        """what an amendment changed, as plain JSON values"""
        self.phases = recipe.weighed()
        weighed = [n for n in recipe.courses if any(phase.weight(n) for phase in self.phases)]
        self.seq_len: int = recipe.shared("seq_len", weighed)
        self.positions: str = recipe.shared("positions", weighed)
        self._used = {name: (used or {}).get(name, 0) for name in recipe.courses}
        self.layout = lay_out(
            self._supplies(),
            self.phases,
            seq_len=self.seq_len,
            on_exhaustion=recipe.on_exhaustion,
            start=start,
            first_phase=first_phase,
        )

    def _supplies(self) -> list[Supply]:
        supplies = []
        for name, course in self.recipe.courses.items():
            epochs = exact(self.recipe.epochs.get(name, 1))
            rows, density = course.rows_in(epochs), course.tokens_per_row(epochs)
            supplies.append(Supply(name, rows, density, self._used[name]))
        return supplies

    def until(self, row: int) -> Era:
        """The same era, ended at a row."""
        cut, whole = copy(self), self.layout
        stretches = [
            replace(stretch, rows=min(stretch.rows, row - stretch.start))
            for stretch in whole.stretches
            if stretch.start < row
        ]
        met = [exhaustion for exhaustion in whole.exhaustions if exhaustion.row < row]
        cut.layout = Layout(stretches, met, None)
        return cut

    def used(self, row: int) -> dict[str, int]:
        """Rows of each source's course that were taken before `row` of the mixture."""
        stretches = [stretch for stretch in self.layout.stretches if stretch.start < row]
        if not stretches:
            return self._used
        return dict(zip(self.recipe.courses, stretches[-1].used(row), strict=True))

    def phases_before(self, row: int) -> int:
        """How many phases, of the whole mixture, began before `row`."""
        stretches = [stretch for stretch in self.layout.stretches if stretch.start < row]
        return stretches[-1].phase + 1 if stretches else self.first_phase

    def rest(self, row: int) -> tuple[int, list[Phase]]:
        """The phases from `row` on, the first of them as far as it is left, and its number."""
        begin = self.start
        for number, phase in enumerate(self.recipe.phases):
            budget = phase.budget(self.seq_len)
            if budget is None or row < begin + budget:
                first = phase.after(max(row - begin, 0), self.seq_len)
                return self.first_phase + number, [first, *self.recipe.phases[number + 1 :]]
            begin += budget
        return self.first_phase + len(self.recipe.phases), []


def _check_epochs(epochs: Mapping[str, float]) -> None:
    for name, times in epochs.items():
        if not isinstance(times, int | float) or not 0 <= times < math.inf:
            raise InputError(f"epochs of {name!r}: {times!r}; expected a number of at least 0")
