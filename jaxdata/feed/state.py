"""The state of a loader: one number, and the run that it belongs to.

One from a checkpoint is parsed and checked before anything in it is believed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.base.facts import differences, digest, itemized
from jaxdata.base.numbers import plain

STATE_VERSION = 1
_MOST = 2**63  # rows
_DEEPEST = 20
_MOST_BITS = 512
_SHOWN = 100  # characters of a value that is refused


class SavedState(NamedTuple):
    """A state that says what a state says; whose it is, is another question."""

    fingerprint: str
    next_row: int
    batch_sizes: list[list[int]]
    skips: list[list[int]]
    amendments: list[dict[str, Any]]
    run: dict[str, Any]
    passes: int = 0
    """over the rows, before this one"""
    position: Any = None
    """of a stream of text"""
    turn: Any = None
    """of a worker of torch's `DataLoader`"""


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with the checksum of its values: 8 hex digits; empty lists do not count."""
    facts = {name: value for name, value in state.items() if name != "checksum" and value != []}
    return {**state, "checksum": digest(facts)[:8]}


def parse_state(state: Any) -> SavedState:
    """The fields of a state, of the right types and within bounds.

    Raises:
        StateMismatch: naming the field that is wrong.
    """
    if not isinstance(state, Mapping):
        raise refused(f"this is not a loader state but {shown(state)}: expected a dict")
    fields = _plain(state)
    missing = {"version", "fingerprint", "next_row"} - set(fields)
    if missing:
        raise refused(f"this is not a loader state: it lacks {', '.join(sorted(missing))}")
    if not (is_row(fields["version"]) and fields["version"] == STATE_VERSION):
        raise refused(
            f"the loader state has version {shown(fields['version'])}, this jaxdata reads version "
            f"{STATE_VERSION}: use the jaxdata that saved it"
        )
    if "checksum" in fields and fields["checksum"] != sealed(fields)["checksum"]:
        raise refused(
            f"the loader state is damaged: its checksum is {shown(fields['checksum'])}, that of "
            f"its values {sealed(fields)['checksum']!r}. Restore an earlier checkpoint; if you "
            "changed the state yourself, leave out its checksum"
        )
    for name, value in fields.items():
        if name not in _FIELDS:
            raise refused(f"the loader state has {name!r}, which no loader state has: leave it out")
        is_right, expected = _FIELDS[name]
        if not is_right(value):
            raise refused(f"the loader state has {name} {shown(value)}: expected {expected}")
    empty: dict[str, Any] = {"batch_sizes": [], "skips": [], "amendments": [], "run": {}}
    named = {name: fields[name] for name in SavedState._fields if name in fields}
    return SavedState(**{**empty, **named})


def refused(reason: str) -> StateMismatch:
    """The error for a state; what cannot be printed in it is escaped."""
    return StateMismatch(reason.encode("utf-8", "backslashreplace").decode())


def is_row(value: Any) -> bool:
    """Whether a value of a state is a whole number that can count rows."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def are_sizes(value: Any) -> bool:
    """Whether a value of a state is sizes of batches by the rows they begin at."""
    if not _are_rows(value, (2,)):
        return False
    rising = all(one[0] < following[0] for one, following in pairwise(value))
    return rising and all(size > 0 for _, size in value)


def _are_ranges(value: Any) -> bool:
    return _are_rows(value, (2, 3)) and all(each[0] < each[1] for each in value)


def _are_rows(value: Any, lengths: tuple[int, ...]) -> bool:
    """Whether a value is a list of lists of rows, each of one of `lengths`."""
    return isinstance(value, list) and all(
        isinstance(each, list) and len(each) in lengths and all(map(is_row, each)) for each in value
    )


def _are_amendments(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and is_row(each.get("row")) and _is_replayable(each)
        for each in value
    )


def _is_replayable(amendment: dict[str, Any]) -> bool:
    """Whether an amendment that a running loader made has what it asked for."""
    asked = "asked_at" not in amendment or is_row(amendment["asked_at"])
    weights = isinstance(amendment.get("weights"), dict | str)
    return asked and (weights or "asked_at" not in amendment)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "version": (lambda _: True, ""),
    "checksum": (lambda _: True, ""),
    "fingerprint": (lambda value: isinstance(value, str), "16 hex digits"),
    "next_row": (is_row, "a whole number of at least 0"),
    "batch_sizes": (
        are_sizes,
        "sizes of at least 1 by the row they begin at, like [[0, 256], [100000, 512]]",
    ),
    "skips": (
        _are_ranges,
        "ranges of rows [first, stop] or [first, stop, row at which they were skipped], like "
        "[[4000, 4800]]",
    ),
    "amendments": (_are_amendments, "changes with the row each begins at, like [{'row': 4000, …}]"),
    "run": (lambda value: isinstance(value, dict), "the facts of a run by name"),
    "passes": (is_row, "a whole number of at least 0"),
    "position": (lambda value: isinstance(value, dict), "the place of a stream by name"),
    "turn": (lambda value: isinstance(value, dict), "the turn of a DataLoader's worker by name"),
}
"""Name of a field -> whether a value is right, and what is expected instead."""


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it: tuples are lists, numbers of numpy are Python's own."""
    if isinstance(value, Mapping | list | tuple) and depth == _DEEPEST:
        raise refused(f"this is not a loader state: it is more than {_DEEPEST} levels deep")
    if isinstance(value, Mapping):
        if strange := [name for name in value if not isinstance(name, str)]:
            raise refused(f"this is not a loader state: it has a field {shown(strange[0])}")
        return {name: _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    value = plain(value)
    whole = isinstance(value, int) and value.bit_length() <= _MOST_BITS
    finite = isinstance(value, float) and math.isfinite(value)
    if not (value is None or isinstance(value, str | bool) or whole or finite):
        raise refused(f"this is not a loader state: it holds {shown(value)}, which JSON has not")
    return value


def shown(value: Any) -> str:
    """The beginning of any value at all, for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, endless levels
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_REMEDIES = {
    "data": "open the dataset that the run was started on (a new conversion changes its "
    "fingerprint); for a source that was appended to since, use dataset.source(split, name, "
    "generation=0), or in a config generations: {name: 0}",
    "phases": "restore the curriculum of the run",
    "functions": "restore the text of the functions of map and filter, and the values they refer "
    "to, or start a new run",
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
    amendment: Callable[[], Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Refuse a state of another run, with one line for each fact that differs.

    Args:
        state: where the run was.
        run: the facts of this run.
        amendments: the amendments of this run.
        first_dry: row at which a source first runs dry in this run.
        free: other things that may change, for the message.
        amendment: makes what an amendment at the state's row has to say, for the message, or raises
            InputError.

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
        lines = [f"{line}: {_remedy(name, was)}" for name, line in changed.items()]
        offered = _offered(state.next_row, amendment, amendments) if lines and amendment else ""
        _refuse(lines, free, offered)
    _check_past(state, amendments)
    noted = [each for each in state.amendments if "was" in each]
    noted += [
        {"row": state.next_row, name: value, "was": was[name]} for name, value in changes.items()
    ]
    return noted


def _offered(
    row: int, amendment: Callable[[], Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> str:
    """The lines that lead a run over to another recipe, or why there are none."""
    try:
        entry = [{"at_row": row, **amendment()}]
    except InputError as error:
        return f"\nNo amendment leads that run over to this recipe: {error}."
    lines = yaml.safe_dump(
        entry, default_flow_style=None, sort_keys=False, allow_unicode=True, width=math.inf
    )
    where = "the amendments of its config" if others else "its config"
    return (
        f"\nTo go on by this recipe from row {row:,}, set back what differs and add to {where} "
        f"(in Python, these are arguments of mixed.amend({row}, …)):\n"
        + "amendments:\n" * (not others)
        + lines.rstrip()
    )


def _refuse(lines: Sequence[str], free: str, offered: str) -> None:
    raise refused(
        "the loader state belongs to another run; the same rows would not follow:\n"
        + "\n".join(f"  {line}" for line in lines or ["its fingerprint and its facts disagree"])
        + f"\n({free} may change freely)"
        + offered
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
