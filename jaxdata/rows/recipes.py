"""Making mixtures: of a recipe, and of one that is amended on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jaxdata.errors import InputError
from jaxdata.rows.course import Course
from jaxdata.rows.eras import Era, Recipe
from jaxdata.rows.mixture import MixedRows
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.phases import Phase
from jaxdata.rows.table import brief

__all__ = ["amended", "everything", "mixture"]

Tables = Mapping[str, PackedRows]
_MOST = 80  # characters of a fact in the state


def mixture(
    tables: Tables,
    phases: Sequence[Phase],
    epochs: Mapping[str, float],
    on_exhaustion: str,
) -> MixedRows:
    """The rows of a recipe; see `jaxdata.mix`."""
    courses = {name: Course(table) for name, table in tables.items()}
    recipe = Recipe(courses, list(phases), dict(epochs), on_exhaustion)
    for setting in ("seq_len", "positions"):
        recipe.shared(setting, list(courses))
    return MixedRows([Era(recipe)])


def everything(tables: Tables, epochs: Mapping[str, float]) -> list[Phase]:
    """All epochs of all sources; weights as their tokens are, so that all end together."""
    sizes = {name: table.summary.trained_tokens for name, table in tables.items()}
    return [Phase(weights={name: size * epochs.get(name, 1) for name, size in sizes.items()})]


def amended(
    mixed: MixedRows,
    row: int,
    tables: Tables,
    *,
    phases: Sequence[Phase] | None,
    epochs: Mapping[str, float] | None,
    on_exhaustion: str | None,
) -> MixedRows:
    """The same rows up to `row`, and another recipe from there on; see `MixedDataset.amend`."""
    if not 0 <= row <= len(mixed):
        raise InputError(
            f"cannot amend a mixture of {len(mixed):,} rows from row {row:,} on: expected a row "
            f"from 0 to {len(mixed):,}"
        )
    kept = [era for number, era in enumerate(mixed.eras) if not number or era.start < row]
    last = kept[-1].until(row)
    used, courses = last.used(row), dict(last.recipe.courses)
    for name, table in tables.items():
        courses[name] = _course(name, courses.get(name), used.get(name, 0), table)
        if courses[name] is not last.recipe.courses.get(name):
            used = {**used, name: 0}
    first, following = last.rest(row) if phases is None else (last.phases_before(row), phases)
    if not following:
        raise InputError(f"no phase is left at row {row:,}: give the phases that are to follow")
    recipe = Recipe(
        courses,
        list(following),
        {**last.recipe.epochs, **(epochs or {})},
        on_exhaustion or last.recipe.on_exhaustion,
    )
    era = Era(recipe, row, first, used)
    given = {"phases": phases, "epochs": epochs, "on_exhaustion": on_exhaustion}
    era.facts = _facts(era, tables, [name for name, value in given.items() if value is not None])
    return MixedRows([*kept[:-1], last, era])


def _course(name: str, course: Course | None, used: int, table: PackedRows) -> Course:
    """The course that a source goes on with, its rows from now on being those of a table."""
    if course is None:
        return Course(table)
    was, now = course.whole.documents[0], table.documents[0]
    if was.fingerprint != now.fingerprint:
        raise InputError(
            f"source {name!r} holds other documents than before: what of it was trained would not "
            "be known. Give the new documents another name"
        )
    return course if course.whole.settings == table.settings else course.repacked(used, table)


def _facts(era: Era, tables: Tables, changed: Sequence[str]) -> dict[str, Any]:
    """What an amendment changes, for the state."""
    facts = {
        "phases": [[phase.budget(era.seq_len), dict(phase.numbers)] for phase in era.phases],
        "epochs": dict(era.recipe.epochs),
        "on_exhaustion": era.recipe.on_exhaustion,
    }
    sources = {
        name: [table.documents[0].fingerprint[:8], asdict(table.settings)]
        for name, table in tables.items()
    }
    return {
        **{name: brief(facts[name], _MOST) for name in changed},
        **({"seq_len": era.seq_len, "sources": brief(sources, _MOST)} if sources else {}),
    }
