"""Which amendments of a recipe a loader state has behind it: those cannot be edited any more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdata.errors import StateMismatch

__all__ = ["check_past", "free_facts"]

Amendment = Mapping[str, Any]


def check_past(state: Mapping[str, Any], amendments: Sequence[Amendment]) -> None:
    """Refuse a state if the recipe of the rows before it was another.

    An amendment at the state's row or later is the future, which may be changed.
    """
    row = state["next_row"]
    was = _before(row, [each for each in state.get("amendments", ()) if "was" not in each])
    now = _before(row, json.loads(json.dumps(list(amendments))))
    lines = [
        _line(was.get(at), now.get(at), at)
        for at in sorted(was.keys() | now.keys())
        if was.get(at) != now.get(at)
    ]
    if lines:
        raise StateMismatch(
            f"the loader state is at row {row:,}; what was consumed before cannot be edited:\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\namend at row {row:,} or later, or go on from an earlier state"
        )


def free_facts(
    state: Mapping[str, Any], amendments: Sequence[Amendment], first_dry: float
) -> list[str]:
    """Facts of a run that no row before its state depends on.

    What is done where a source runs dry: a run that halts has no state beyond that. And how often
    sources may be read, as long as that made no difference yet.
    """
    row = state["next_row"]
    dry_before = state.get("run", {}).get("on_exhaustion") not in ("halt", "refuse")
    amended = _before(row, state.get("amendments", ())) or _before(row, amendments)
    if dry_before or amended or not isinstance(row, int) or row > first_dry:
        return ["on_exhaustion"]
    return ["on_exhaustion", "epochs"]


def _before(row: Any, amendments: Sequence[Amendment]) -> dict[int, Amendment]:
    return {
        each["row"]: {name: value for name, value in each.items() if name != "row"}
        for each in amendments
        if isinstance(row, int) and each["row"] < row
    }


def _line(was: Amendment | None, now: Amendment | None, row: int) -> str:
    if was is None:
        return f"this run is amended at row {row:,} ({_facts(now)}), that of the state was not"
    if now is None:
        return f"the run of the state was amended at row {row:,} ({_facts(was)}), this one is not"
    return f"the amendment at row {row:,} was {_facts(was)}, is {_facts(now)}"


def _facts(amendment: Amendment | None) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in (amendment or {}).items())
