"""A mixture whose recipe changes during the run: amendments, made and offered."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jaxdata.base.errors import InputError, brief
from jaxdata.rows.mixing.mixture import Mixture, Part, lay_out
from jaxdata.rows.mixing.phases import Amendment, Phase, Recipe, Weights, check_names, check_weights
from jaxdata.rows.mixing.remaining import SourceCursor
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSection

_MOST = 80  # characters of a fact in the state


def amended(mixed: Mixture, row: int, changes: Amendment) -> Mixture:
    """The same rows up to `row`, another recipe from `row` on; see `MixedDataset.amend`.

    Amendments add up whatever the order in which they are made: one at the same row is joined with
    `changes`, and those at later rows are made anew.
    """
    _check_row(row, len(mixed))
    if changes.weights is not None:
        check_named(changes.weights, [*mixed.names, *changes.tables])
    first, *later = mixed.parts
    asked = {each.row: each.changes for each in later if each.changes and each.row >= row}
    here = asked.pop(row, None)
    parts = [first, *(each for each in later if each.row < row)]
    parts = _amended(parts, row, here.joined(changes) if here else changes)
    for at, again in asked.items():
        try:
            _check_row(at, parts[-1].timeline.end)
            parts = _amended(parts, at, again)
        except InputError as error:
            raise InputError(
                f"the amendment at row {at:,} no longer fits: {error}. To leave it out, amend the "
                "mixture as it was before it"
            ) from None
    return Mixture(parts)


def _check_row(row: int, rows: int) -> None:
    if not isinstance(row, int) or not 0 <= row <= rows:
        raise InputError(
            f"cannot amend a mixture of {rows:,} rows from row {row!r} on: expected 0 to {rows:,}"
        )


def check_named(weights: Weights, names: Sequence[str]) -> None:
    """Refuse weights that are none, or not of sources of these names."""
    if not isinstance(weights, Mapping | str):
        raise InputError(f"weights {weights!r}: expected a number for each source by name")
    check_weights(weights)
    if not isinstance(weights, str):
        check_names(names, weights, "the weights name")


def _amended(parts: Sequence[Part], row: int, changes: Amendment) -> list[Part]:
    """The recipes of a run, the last one up to `row`, and another one that begins there."""
    *unchanged, last = parts
    last = last._replace(timeline=last.timeline.until(row))
    used, tables = last.used(row), dict(last.tables)
    for name, table in changes.tables.items():
        was = tables.get(name)
        tables[name] = (
            SourceCursor(table) if was is None else _following(name, was, used[name], table)
        )
        if tables[name] is not was:
            used[name] = 0
    first_phase, phases = _following_phases(last, row, changes)
    recipe = Recipe(
        phases,
        {**last.recipe.epochs, **(changes.epochs or {})},
        changes.on_exhaustion or last.recipe.on_exhaustion,
    )
    recipe.check(list(tables))
    made = lay_out(tables, recipe, used, row, first_phase)
    return [*unchanged, last, made._replace(changes=changes, facts=_facts(made, changes))]


def _following(name: str, was: SourceCursor, used: int, table: PackedRows) -> SourceCursor:
    """The rows of a source after `used` of its rows, packed like `table` from then on."""
    if was.whole.documents[0].fingerprint != table.documents[0].fingerprint:
        raise InputError(
            f"source {name!r} has other documents than before, so its untrained remainder is "
            "unknown; give the new documents another name"
        )
    return was if was.whole.settings == table.settings else was.repacked(used, table)


def _following_phases(last: Part, row: int, changes: Amendment) -> tuple[int, list[Phase]]:
    """The number of the next phase, and the phases that follow: those given or those remaining."""
    passed, phases = _remaining_phases(last.recipe, row - last.row, last.shape.seq_len)
    first_phase = last.timeline.first_phase + passed
    if changes.phases is not None:
        phases = list(changes.phases)
    if not phases:
        raise InputError(f"no phase is left at row {row}; pass the phases to follow")
    if changes.weights is not None:
        phases[0] = replace(phases[0], weights=changes.weights)
    if changes.phases is not None or changes.weights is not None:
        begun = [each.phase + 1 for each in last.timeline.intervals]
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


def _facts(part: Part, changes: Amendment) -> dict[str, Any]:
    """The changes of an amendment, for the state."""
    facts = {
        "phases": part.timeline.asked,
        "epochs": dict(part.recipe.epochs),
        "on_exhaustion": part.recipe.on_exhaustion,
    }
    changed = [name for name in facts if getattr(changes, name) is not None]
    found = {name: brief(facts[name], _MOST) for name in changed}
    sources = {
        name: [table.documents[0].fingerprint[:8], table.settings.facts()]
        for name, table in changes.tables.items()
    }
    if sources:
        found |= {"seq_len": part.shape.seq_len, "sources": brief(sources, _MOST)}
    # Weights whole: a run is replayed from them.
    asked = {"weights": changes.weights, "asked_at": changes.asked_at}
    return found | {name: value for name, value in asked.items() if value is not None}


def amendment_for(table: Any, was: Mapping[str, Any], row: int) -> dict[str, Any]:
    """What an amendment says, as in a config, that leads a run over to these rows at `row`.

    Args:
        table: rows of another recipe than the run's.
        was: the run's identity, as its state has it; a state may hold anything.
        row: where the run is.

    Raises:
        InputError: there is no such amendment; the message says why.
    """
    if not isinstance(table, Mixture):
        raise InputError("only rows of jaxdata.mix can be amended")
    first, *later = table.parts
    if later and later[0].row <= row:
        raise InputError(f"what differs is before row {later[0].row:,}, where one begins already")
    now = first.identity()
    kept = _by_source(was, "data").keys() & now["data"].keys()
    if whole := _never_amended(was, now, kept):
        raise InputError(f"{' and '.join(whole)} must be the same for a whole run")
    epochs, before = dict(first.recipe.epochs), was.get("epochs")
    if isinstance(before, Mapping):  # else the state has but a digest of many
        names = [*{**before, **epochs}]
        epochs = {n: epochs.get(n, 1) for n in names if before.get(n, 1) != epochs.get(n, 1)}
    elif before == brief(epochs):
        epochs = {}
    mode = first.recipe.on_exhaustion
    found = {
        "curriculum": _other_phases(first, was, row),
        "epochs": epochs,
        "on_exhaustion": mode if mode != was.get("on_exhaustion") else None,
        "pack": _other_packing(was, now, kept or table.names),
    }
    return {name: value for name, value in found.items() if value}


def _by_source(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A fact by source."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


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
    amended = {"phases", "epochs", "on_exhaustion", *PackSection.model_fields}
    return sorted(found - amended)


def _other_phases(part: Part, was: Mapping[str, Any], row: int) -> list[dict[str, Any]]:
    """What is left of the phases at a row, as a curriculum of a config; none if they are equal."""
    seq_len = was.get("seq_len")
    if not isinstance(seq_len, int) or seq_len < 1:
        seq_len = part.shape.seq_len
    asked = [[each.budget(seq_len), dict(each.numbers)] for each in part.timeline.phases]
    if brief(asked) == was.get("phases"):
        return []
    _, phases = _remaining_phases(part.recipe, row, seq_len)
    if not phases:
        raise InputError(f"the curriculum ends before row {row:,}")
    return [
        {{"weights": "mix"}.get(name, name): value for name, value in vars(phase).items() if value}
        for phase in phases
    ]


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
