"""The state of a loader: one number, and what it belongs to.

The same on every host, for any number of hosts, workers and devices. `run` holds the named
facts behind the fingerprint, so that a refusal can say what was and what is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdata.errors import StateMismatch
from jaxdata.feed.amendments import check_past, free_facts

__all__ = ["STATE_VERSION", "check_state", "fingerprint", "make_state"]

STATE_VERSION = 1
_REMEDIES = {
    "data": "open the dataset the run was started on (converting again changes its fingerprint); "
    "of a source that was added to since, dataset.source(split, name, generation=0), or in a "
    "config generations: {name: 0}, is what it was",
    "phases": "restore the curriculum of the run",
}
_FREELY = (
    "batch size, hosts, mesh, workers, prefetch, skips, and from the state's row on, by an "
    "amendment, the recipe"
)


def fingerprint(run: Mapping[str, Any]) -> str:
    """16 hex digits over the facts that determine every row."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]


def make_state(
    run: Mapping[str, Any],
    next_row: int,
    batch_sizes: list[list[int]],
    skips: list[list[int]],
    amendments: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The state as plain JSON values; what is empty is left out."""
    return {
        "version": STATE_VERSION,
        "fingerprint": fingerprint(run),
        "next_row": next_row,
        "batch_sizes": batch_sizes,
        **({"skips": skips} if skips else {}),
        **({"amendments": json.loads(json.dumps(amendments))} if amendments else {}),
        "run": json.loads(json.dumps(run)),
    }


def check_state(
    state: Mapping[str, Any],
    run: Mapping[str, Any],
    amendments: Sequence[Mapping[str, Any]] = (),
    first_dry: float = math.inf,
    free: str = _FREELY,
) -> list[dict[str, Any]]:
    """Refuse a state of another run, one line for each fact that differs.

    Args:
        state: what `make_state` made.
        run: the facts of this run.
        amendments: what this run changes on the way.
        first_dry: row at which a source first runs dry in this run.
        free: what else may change.

    Returns:
        What the state says was changed that neither run asked for as an amendment, and what
        changes now without a row before it being another.
    """
    missing = {"version", "fingerprint", "next_row"} - set(state)
    if missing:
        raise StateMismatch(f"this is no loader state: it lacks {', '.join(sorted(missing))}")
    if state["version"] != STATE_VERSION:
        raise StateMismatch(
            f"the loader state has version {state['version']}, this jaxdata reads version "
            f"{STATE_VERSION}: use the jaxdata that saved it"
        )
    was = state.get("run", {})
    free_ones = free_facts(state, amendments, first_dry)
    names = [name for name in free_ones if name in run and name in was]
    changes = {name: run[name] for name in names if run[name] != was[name]}
    now = {**run, **{name: was[name] for name in changes}}
    if state["fingerprint"] != fingerprint(now):
        _refuse(_differences(_facts(was), _facts(json.loads(json.dumps(now)))), free)
    check_past(state, amendments)
    noted = [dict(each) for each in state.get("amendments", ()) if "was" in each]
    noted += [
        {"row": state["next_row"], name: value, "was": was[name]} for name, value in changes.items()
    ]
    return noted


def _refuse(lines: Sequence[str], free: str) -> None:
    raise StateMismatch(
        "the loader state belongs to another run; the same rows would not follow:\n"
        + "\n".join(f"  {line}" for line in lines or ["its fingerprint and its facts disagree"])
        + f"\n({free} may change freely)"
    )


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    """The run by name, what is said of each source or phase by a name of its own."""
    facts = {}
    for name, value in run.items():
        if isinstance(value, dict):
            facts.update({f"{name}[{key}]": inner for key, inner in value.items()})
        elif isinstance(value, list):
            facts.update({f"{name}[{number}]": inner for number, inner in enumerate(value)})
        else:
            facts[name] = value
    return facts


def _differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return [
        f"{name} was {_show(was, name)}, is {_show(now, name)}: "
        + _REMEDIES.get(name.split("[")[0], f"set {name} back, or start a new run")
        for name in names
    ]


def _show(facts: dict[str, Any], name: str) -> str:
    return repr(facts[name]) if name in facts else "not there"
