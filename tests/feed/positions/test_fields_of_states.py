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
    STATE_VERSION,
    SavedState,
    are_sizes,
    is_row,
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


@given(LISTS | PAIRS, st.lists(st.tuples(ROWS, ROWS).map(list), max_size=3))
def test_sizes_of_batches_rise_from_row_to_row(lists: Any, asked: Any) -> None:
    for value in (lists, asked, [tuple(each) for each in asked], tuple(asked)):
        assert are_sizes(value) == sizes(value)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_a_range_that_is_skipped_has_a_row(numbers: list[int]) -> None:
    state = {**GOOD, "skips": [[0, 1], numbers]}
    if ranges([numbers]):
        assert parse_state(state).skips == state["skips"]
    else:
        assert said(state).startswith(f"the loader state has skips {[[0, 1], numbers]}: expected")


@given(ROWS | st.integers())
def test_a_row_is_a_whole_number_of_63_bits(value: Any) -> None:
    assert is_row(value) == row(value)


@given(st.sets(st.sampled_from(["version", "fingerprint", "next_row"])))
def test_what_is_lacking_is_named(lacking: set[str]) -> None:
    state = {name: value for name, value in GOOD.items() if name not in lacking}
    if lacking:
        names = ", ".join(sorted(lacking))
        assert said(state) == f"this is not a loader state: it lacks {names}"
    else:
        assert isinstance(parse_state(state), SavedState)


@pytest.mark.parametrize("version", [0, 2, True, 1.0, "1", None, 2**70])
def test_another_version_is_refused(version: Any) -> None:
    assert STATE_VERSION == 1
    assert said({**GOOD, "version": version}) == (
        f"the loader state has version {version!r}, this jaxdata reads version 1: use the jaxdata "
        "that saved it"
    )


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


@pytest.mark.parametrize("state", [None, 7, "state", [1], [("version", 1)], set()])
def test_what_is_no_dict_is_refused(state: Any) -> None:
    assert said(state) == f"this is not a loader state but {state!r}: expected a dict"


def test_strange_fields_are_named() -> None:
    found = said({**GOOD, "row": 3, "skips": 7})
    assert found == "the loader state has 'row', which no loader state has: leave it out"
    assert said({**GOOD, 5: 3}) == "this is not a loader state: it has a field 5"
    assert said({**GOOD, "run": {"a": {None: 1}}}) == (
        "this is not a loader state: it has a field None"
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
    for level in range(depth):
        value = {"a": value} if kind == "dict" or (kind == "both" and level % 2) else [value]
    return value


@pytest.mark.parametrize("kind", ["dict", "list", "both"])
def test_a_state_is_at_most_20_levels_deep(kind: str) -> None:
    for depth in range(15, 19):
        value = nested(depth, kind)
        assert parse_state({**GOOD, "run": {"x": value}}).run == {"x": value}
    for depth in (19, 20, 900):
        assert said({**GOOD, "run": {"x": nested(depth, kind)}}) == (
            "this is not a loader state: it is more than 20 levels deep"
        )


@pytest.mark.parametrize(
    "value", [2**512 - 1, -(2**512) + 1, 1e308, -0.5, "", "\ud800", False, None, 0]
)
def test_values_of_json_are_taken(value: Any) -> None:
    assert parse_state({**GOOD, "run": {"a": [value]}}).run == {"a": [value]}


@pytest.mark.parametrize(
    "value", [2**512, -(2**512), float("inf"), float("-inf"), float("nan"), b"x", {1}, 1j, object]
)
def test_what_json_has_not_is_refused(value: Any) -> None:
    assert said({**GOOD, "run": {"a": [value]}}) == (
        f"this is not a loader state: it holds {shown(value)}, which JSON has not"
    )


@given(st.integers(0, 120))
def test_a_message_shows_the_first_100_characters(length: int) -> None:
    text = "x" * length
    whole = f"'{text}'"
    assert shown(text) == (whole if length <= 98 else f"'{'x' * 99}…")


def test_what_cannot_be_shown_is_told_by_its_type() -> None:
    endless: list[Any] = []
    for _ in range(5_000):
        endless = [endless]
    assert shown(10**5_000) == "a int"
    assert shown(endless) == "a list"


def test_a_refusal_can_be_printed() -> None:
    assert str(refused("a \ud800 b")) == "a \\ud800 b"
    assert str(refused("näher")) == "näher"
