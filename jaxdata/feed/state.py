"""The state of a loader: one number, and the run that it belongs to.

It is the same on every host, for any number of hosts, workers and devices. `run` holds the named
facts behind the fingerprint, so that a refusal can list what changed. How a state is parsed:
`saved_state`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdata.facts import differences, digest, itemized
from jaxdata.feed.saved_state import STATE_VERSION, SavedState, refused, sealed

_REMEDIES = {
    "data": "open the dataset that the run was started on (a new conversion changes its "
    "fingerprint); for a source that was appended to since, use dataset.source(split, name, "
    "generation=0), or in a config generations: {name: 0}",
    "phases": "restore the curriculum of the run",
}
_VIEWS = "views"
"""the fact that names the views through which sources are read"""
_FREELY = (
    "batch size, hosts, mesh, workers, prefetch and skips, and by an amendment the recipe from the "
    "state's row on,"
)


def fingerprint(run: Mapping[str, Any]) -> str:
    """16 hex digits over the facts that determine every row."""
    return digest(run)[:16]


def make_state(
    run: Mapping[str, Any],
    next_row: int,
    batch_sizes: list[list[int]],
    skips: list[list[int]],
    amendments: Sequence[Mapping[str, Any]] = (),
    passes: int | None = None,
) -> dict[str, Any]:
    """The state as plain JSON values, without empty fields."""
    return sealed(
        {
            "version": STATE_VERSION,
            "fingerprint": fingerprint(run),
            "next_row": next_row,
            "batch_sizes": batch_sizes,
            **({} if passes is None else {"passes": passes}),
            **({"skips": skips} if skips else {}),
            **({"amendments": json.loads(json.dumps(amendments))} if amendments else {}),
            "run": json.loads(json.dumps(run)),
        }
    )


def check_run(
    state: SavedState,
    run: Mapping[str, Any],
    amendments: Sequence[Mapping[str, Any]] = (),
    first_dry: float = math.inf,
    free: str = _FREELY,
) -> list[dict[str, Any]]:
    """Refuse a state of another run, with one line for each fact that differs.

    Args:
        state: where the run was.
        run: the facts of this run.
        amendments: the amendments of this run.
        first_dry: row at which a source first runs dry in this run.
        free: other things that may change, for the message.

    Returns:
        Changes to note in later states: those that the state already notes, and facts that change
        now and do not affect any row before the state's.
    """
    was = state.run
    free_ones = _free_facts(state, amendments, first_dry)
    names = [name for name in free_ones if name in run and name in was]
    changes = {name: run[name] for name in names if run[name] != was[name]}
    now = {**run, **{name: was[name] for name in changes}}
    if state.fingerprint != fingerprint(now):
        changed = _changes(was, json.loads(json.dumps(now)))
        _refuse([f"{line}: {_remedy(name, was)}" for name, line in changed.items()], free)
    _check_past(state, amendments)
    noted = [each for each in state.amendments if "was" in each]
    noted += [
        {"row": state.next_row, name: value, "was": was[name]} for name, value in changes.items()
    ]
    return noted


def _refuse(lines: Sequence[str], free: str) -> None:
    raise refused(
        "the loader state belongs to another run; the same rows would not follow:\n"
        + "\n".join(f"  {line}" for line in lines or ["its fingerprint and its facts disagree"])
        + f"\n({free} may change freely)"
    )


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """By name, what differs; if the view of documents does, without fingerprints that follow."""
    changed = differences(itemized(was), itemized(now))
    if any(_field(name) == _VIEWS for name in changed):
        changed = {name: line for name, line in changed.items() if _field(name) != "data"}
    return changed


def _field(name: str) -> str:
    """The fact of a run that an itemized one is of."""
    return name.split("[")[0]


def _remedy(name: str, was: Mapping[str, Any]) -> str:
    """What to do about a fact that differs."""
    if _field(name) == _VIEWS:
        return _view_remedy(itemized(was).get(name))
    return _REMEDIES.get(_field(name), f"set {name} back, or start a new run")


def _view_remedy(was: Any) -> str:
    """What to do where documents are those of another view, or of none."""
    if was is None:
        return "read all its documents, as the run does, without documents=; or start a new run"
    return (
        f"read the view that the run is of, with dataset.source(split, name, documents={was!r}), "
        f"or in a config documents: {was}; or start a new run"
    )


def _check_past(state: SavedState, amendments: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state if the rows before it came from another recipe.

    Amendments at the state's row or later may change.
    """
    row = state.next_row
    was = _before(row, [each for each in state.amendments if "was" not in each])
    now = _before(row, json.loads(json.dumps(list(amendments))))
    lines = [
        _line(was.get(at), now.get(at), at)
        for at in sorted(was.keys() | now.keys())
        if was.get(at) != now.get(at)
    ]
    if lines:
        raise refused(
            f"the loader state is at row {row:,}; rows already consumed cannot be changed:\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\namend at row {row:,} or later, or resume from an earlier state"
        )


def _free_facts(
    state: SavedState, amendments: Sequence[Mapping[str, Any]], first_dry: float
) -> list[str]:
    """Facts of a run that no row before its state depends on.

    `on_exhaustion`, since a run that halts has no state beyond that row; and `epochs`, as long as
    no source has run dry.
    """
    row = state.next_row
    dry_before = state.run.get("on_exhaustion") not in ("halt", "refuse")
    amended = _before(row, state.amendments) or _before(row, amendments)
    if dry_before or amended or row > first_dry:
        return ["on_exhaustion"]
    return ["on_exhaustion", "epochs"]


def _before(row: int, amendments: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {
        each["row"]: {name: value for name, value in each.items() if name != "row"}
        for each in amendments
        if each["row"] < row
    }


def _line(was: Mapping[str, Any] | None, now: Mapping[str, Any] | None, row: int) -> str:
    if was is None:
        return f"this run has an amendment at row {row:,} ({_named(now)}), the state has none"
    if now is None:
        return f"the state has an amendment at row {row:,} ({_named(was)}), this run has none"
    return f"the amendment at row {row:,} was {_named(was)}, is {_named(now)}"


def _named(amendment: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in (amendment or {}).items())
