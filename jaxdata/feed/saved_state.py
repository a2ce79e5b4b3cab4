"""States as they come back from a checkpoint: parsed, before anything in them is used.

A state carries a checksum of its values, so that one which was damaged or edited is refused. States
of the first versions have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from jaxdata.errors import StateMismatch
from jaxdata.facts import digest
from jaxdata.scalars import plain

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
        isinstance(each, dict) and is_row(each.get("row")) for each in value
    )


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
