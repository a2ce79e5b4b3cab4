"""What comes back as a state, field by field, against rules that are written out here."""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import (
    parse_state,
    refused,
    sealed,
    shown,
)

GOOD = {"version": 1, "fingerprint": "0123456789abcdef", "next_row": 7}
ROWS = st.sampled_from([0, 1, 2, 3, 5, 8, 2**63 - 1, 2**63, -1, True, 1.0, "1", None])
LISTS = st.lists(st.lists(ROWS, max_size=4), max_size=3)
PAIRS = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=3), max_size=3)
VALUES = ROWS | LISTS | PAIRS | st.dictionaries(st.sampled_from(["row", "was", "a"]), ROWS)


def row(value: Any) -> bool:
    return type(value) is int and value in range(2**63)


def pairs(value: Any, lengths: set[int]) -> bool:
    return type(value) is list and all(
        type(each) is list and len(each) in lengths and False not in [row(one) for one in each]
        for each in value
    )


def sizes(value: Any) -> bool:
    if not pairs(value, {2}):
        return False
    begins = [begin for begin, _ in value]
    return begins == sorted({*begins}) and 0 not in [size for _, size in value]


def ranges(value: Any) -> bool:
    return pairs(value, {2, 3}) and all(each[1] > each[0] for each in value)


def amendments(value: Any) -> bool:
    return type(value) is list and all(
        type(each) is dict and row(each.get("row")) for each in value
    )


def record(value: Any) -> bool:
    return type(value) is dict


RULES = {
    "fingerprint": (lambda value: type(value) is str, "16 hex digits"),
    "next_row": (row, "a whole number of at least 0"),
    "batch_sizes": (
        sizes,
        "sizes of at least 1 by the row they begin at, like [[0, 256], [100000, 512]]",
    ),
    "skips": (
        ranges,
        "ranges of rows [first, stop] or [first, stop, row at which they were skipped], like "
        "[[4000, 4800]]",
    ),
    "amendments": (amendments, "changes with the row each begins at, like [{'row': 4000, …}]"),
    "run": (record, "the facts of a run by name"),
    "passes": (row, "a whole number of at least 0"),
    "position": (record, "the place of a stream by name"),
    "turn": (record, "the turn of a DataLoader's worker by name"),
}


def said(state: Any) -> str:
    with pytest.raises(StateMismatch) as caught:
        parse_state(state)
    return str(caught.value)


@given(
    st.sampled_from(sorted(RULES)),
    VALUES | st.lists(st.dictionaries(st.sampled_from(["row", "was"]), ROWS), max_size=3),
)
def test_a_field_is_taken_or_named_with_what_was_expected(name: str, value: Any) -> None:
    is_right, expected = RULES[name]
    state = {**GOOD, name: value}
    if is_right(value):
        found = parse_state(state)
        assert getattr(found, name) == value
        empty = {"batch_sizes": [], "skips": [], "amendments": [], "run": {}, "passes": 0}
        others = {**empty, "position": None, "turn": None, **GOOD, name: value}
        del others["version"]
        assert found._asdict() == others
    else:
        begin = repr(value) if len(repr(value)) <= 100 else f"{value!r:.100}…"
        assert said(state) == f"the loader state has {name} {begin}: expected {expected}"


def checksum(state: dict[str, Any]) -> str:
    facts = {name: state[name] for name in state if name != "checksum" and state[name] != []}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@given(st.dictionaries(st.sampled_from(["skips", "batch_sizes", "passes", "run"]), VALUES))
def test_a_checksum_is_of_the_values_without_empty_lists(fields: dict[str, Any]) -> None:
    state = {**GOOD, **fields}
    found = sealed(state)
    assert found == {**state, "checksum": checksum(state)}
    assert sealed(found) == found
    assert sealed({**state, "amendments": []})["checksum"] == found["checksum"]
    assert sealed({**state, "next_row": 8})["checksum"] != found["checksum"]


def test_a_wrong_checksum_is_said_before_wrong_fields() -> None:
    whole = sealed({**GOOD, "skips": [[1, 4]], "passes": 0})
    assert parse_state(whole).skips == [[1, 4]]
    for changed in ({**whole, "next_row": -8}, {**whole, "checksum": 7}, {**whole, "checksum": ""}):
        assert said(changed) == (
            f"the loader state is damaged: its checksum is {changed['checksum']!r}, that of its "
            f"values {checksum(changed)!r}. Restore an earlier checkpoint; if you changed the "
            "state yourself, leave out its checksum"
        )


def test_numbers_of_numpy_and_tuples_are_those_of_json() -> None:
    skips = ((np.int64(1), np.uint8(4)), [5, np.int32(9), 2])
    run = MappingProxyType({"share": np.float32(0.1), "is": np.True_, "none": None, "pair": (1,)})
    found = parse_state(MappingProxyType({**GOOD, "skips": skips, "run": run}))
    assert found.skips == [[1, 4], [5, 9, 2]]
    assert {type(number) for each in found.skips for number in each} == {int}
    assert json.dumps(found.run) == '{"share": 0.1, "is": true, "none": null, "pair": [1]}'


def nested(depth: int, kind: str) -> Any:
    """Containers within each other, a number in the innermost."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if kind == "dict" else [value]
    return value


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_a_state_is_at_most_20_levels_deep(kind: str) -> None:
    whole = nested(18, kind)
    assert parse_state({**GOOD, "run": {"x": whole}}).run == {"x": whole}
    for depth in (19, 900):
        assert said({**GOOD, "run": {"x": nested(depth, kind)}}) == (
            "this is not a loader state: it is more than 20 levels deep"
        )


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *((each, f" but {each!r}: expected a dict") for each in (None, 7, [("version", 1)], set())),
        ({}, ": it lacks fingerprint, next_row, version"),
        ({"version": 1, "next_row": 7}, ": it lacks fingerprint"),
        ({**GOOD, 5: 3}, ": it has a field 5"),
        ({**GOOD, "run": {"a": {None: 1}}}, ": it has a field None"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, message: str) -> None:
    assert said(state) == f"this is not a loader state{message}"


@pytest.mark.parametrize("version", [2, True, 1.0, "1", 2**70])
def test_another_version_or_field_is_refused(version: Any) -> None:
    assert said({**GOOD, "version": version}) == (
        f"the loader state has version {version!r}, this jaxdata reads version 1: use the jaxdata "
        "that saved it"
    )
    assert said({**GOOD, "row": 3, "skips": 7}) == (
        "the loader state has 'row', which no loader state has: leave it out"
    )


def test_values_are_those_of_json() -> None:
    taken = [2**512 - 1, -(2**512) + 1, 1e308, -0.5, "", "\ud800", False, None, 0]
    assert parse_state({**GOOD, "run": {"a": taken}}).run == {"a": taken}
    infinite = float("inf"), float("-inf"), float("nan")
    for value in (2**512, -(2**512), *infinite, b"x", {1}, 1j, object):
        assert said({**GOOD, "run": {"a": [value]}}) == (
            f"this is not a loader state: it holds {shown(value)}, which JSON has not"
        )


def test_a_message_shows_the_first_100_characters_and_can_be_printed() -> None:
    for length in (0, 97, 98, 99, 120):
        assert shown("x" * length) == (f"'{'x' * length}'" if length <= 98 else f"'{'x' * 99}…")
    endless: list[Any] = []
    for _ in range(5_000):
        endless = [endless]
    assert (shown(10**5_000), shown(endless)) == ("a int", "a list")
    assert str(refused("a \ud800 näher")) == "a \\ud800 näher"
