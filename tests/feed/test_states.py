"""States: field by field as they come back, and fact by fact as they are compared."""

from __future__ import annotations

import hashlib
import json
import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import StateMismatch
from jaxdata.feed.state import (
    SavedState,
    check_run,
    fingerprint,
    make_state,
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


Run = dict[str, Any]
Amendments = list[dict[str, Any]]
FREELY = (
    "batch size, hosts, mesh, workers, prefetch and skips, and by an amendment the recipe from the "
    "state's row on,"
)
SMALL = st.integers(0, 1)
RUNS = st.fixed_dictionaries(
    {"data": st.dictionaries(st.sampled_from(["web", "code"]), st.sampled_from(["a1", "b2"]))},
    optional={
        "seed": SMALL,
        "order": st.integers(1, 3),
        "lanes": SMALL,
        "web.lanes": SMALL,
        "web.order": st.integers(1, 2),
        "phases": st.lists(SMALL, max_size=2),
        "views": st.dictionaries(st.just("web"), st.sampled_from(["dedup", "best"])),
        "epochs": SMALL,
        "on_exhaustion": st.sampled_from(["halt", "refuse", "renormalize"]),
    },
)


def state_of(run: Run, row: int = 0, amendments: Amendments = ()) -> SavedState:
    return SavedState(fingerprint(run), row, [], [], [*amendments], run)


def answer(state: SavedState, run: Run, *more: Any, **named: Any) -> str | None:
    """The refusal, or None."""
    try:
        check_run(state, run, *more, **named)
    except StateMismatch as error:
        return str(error)
    return None


def flat(run: Run) -> Run:
    """Facts by the names that a refusal gives them."""
    found: Run = {}
    for name, value in run.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                found[f"{name}[{key}]"] = inner
        elif isinstance(value, list):
            for key, inner in enumerate(value):
                found[f"{name}[{key}]"] = inner
        else:
            found[name] = value
    return found


DATA = (
    "open the dataset that the run was started on (a new conversion changes its fingerprint); for "
    "a source that was appended to since, or deleted from, use dataset.source(split, name, "
    "generation=0), or in a config generations: {name: 0}"
)


def remedy(name: str, was: Run) -> str:
    value = flat(was).get(name)
    if name.startswith("views") and value is None:
        return "read all its documents, as the run does, without documents=; or start a new run"
    if name.startswith("views"):
        return (
            "read the view that the run is of, with dataset.source(split, name, "
            f"documents='{value}'), or in a config documents: {value}; or start a new run"
        )
    known = {"data": DATA, "phases": "restore the curriculum of the run"}
    return known.get(name.split("[")[0], f"set {name} back, or start a new run")


def refusal(was: Run, now: Run) -> str | None:
    """What is to be said of two runs without amendments, at row 0 of a run that is not dry."""
    free = {"on_exhaustion"}
    if was.get("on_exhaustion") in ("halt", "refuse"):
        free.add("epochs")
    now = {**now, **{name: was[name] for name in free if name in was and name in now}}
    if json.dumps(was, sort_keys=True) == json.dumps(now, sort_keys=True):
        return None
    old, new = flat(was), flat(now)
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    has_view = any(name.startswith("views") for name in names)
    lines = []
    for name in names:
        if has_view and name.startswith("data"):
            continue
        one, other = (repr(each[name]) if name in each else "absent" for each in (old, new))
        lines.append(f"  {name} was {one}, is {other}: {remedy(name, was)}")
    lines = lines or ["  its fingerprint and its facts disagree"]
    return "\n".join(
        [
            "the loader state belongs to another run; the same rows would not follow:",
            *lines,
            f"({FREELY} may change freely)",
        ]
    )


@given(RUNS, RUNS)
def test_a_state_of_another_run_is_refused_fact_by_fact(was: Run, now: Run) -> None:
    assert answer(state_of(was), now) == refusal(was, now)
    assert answer(state_of(was), {**was, "seed": 9}) == refusal(was, {**was, "seed": 9})
    assert answer(state_of(was), was) is None
    forged = state_of(was)._replace(fingerprint="0" * 16)
    assert answer(forged, was, free="what you like") == (
        "the loader state belongs to another run; the same rows would not follow:\n"
        "  its fingerprint and its facts disagree\n(what you like may change freely)"
    )


FAR = 400_000
AMENDMENTS = st.dictionaries(
    st.integers(0, 12).map(FAR.__mul__),
    st.fixed_dictionaries({}, optional={"epochs": SMALL, "pack": st.just("new"), "was": SMALL}),
    max_size=3,
).map(lambda found: [{"row": row, **fields} for row, fields in found.items()])


def named(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in fields.items() if name != "row")


@given(AMENDMENTS, AMENDMENTS, st.integers(0, 13).map(FAR.__mul__))
def test_no_row_that_was_consumed_changes(was: Amendments, now: Amendments, row: int) -> None:
    now = [{name: value for name, value in each.items() if name != "was"} for each in now]
    old = {each["row"]: each for each in was if "was" not in each}
    new = {each["row"]: each for each in now}
    lines = []
    for at in sorted({*old, *new}):
        one, other = old.get(at), new.get(at)
        if at >= row or one == other:
            continue
        if other is None:
            said_of = f"the state has an amendment at row {at:,} ({named(one)}), this run has none"
        elif one is None:
            said_of = (
                f"this run has an amendment at row {at:,} ({named(other)}), the state has none"
            )
        else:
            said_of = f"the amendment at row {at:,} was {named(one)}, is {named(other)}"
        lines.append(f"  {said_of}\n")
    expected = (
        f"the loader state is at row {row:,}; rows already consumed cannot be changed:\n"
        f"{''.join(lines)}amend at row {row:,} or later, or resume from an earlier state"
    )
    found = answer(state_of({"seed": 0}, row, was), {"seed": 0}, now)
    assert found == (expected if lines else None)


@given(
    st.sampled_from(["halt", "refuse", "renormalize"]),
    st.integers(0, 9),
    st.integers(0, 9) | st.just(math.inf),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=1),
)
def test_what_no_row_before_depends_on_is_noted_where_it_changes(
    how: str, row: int, first_dry: float, other_how: bool, other_epochs: bool, amended: list[int]
) -> None:
    was = {"seed": 0, "on_exhaustion": how, "epochs": {"web": 1}}
    now = {**was, "epochs": {"web": 2}} if other_epochs else was
    now = {**now, "on_exhaustion": "another"} if other_how else now
    amendments = [{"row": at, "pack": "new"} for at in amended]
    noted = [{"row": 0, "epochs": 5, "was": 4}] if row == 9 else []
    epochs_are_free = (
        how != "renormalize" and row <= first_dry and all(at >= row for at in amended) and not noted
    )
    state = state_of(was, row, [*amendments, *noted])
    if other_epochs and not epochs_are_free:
        found = answer(state, now, amendments, first_dry)
        assert found is not None
        assert "  epochs[web] was 1, is 2: set epochs[web] back, or start a new run" in found
        assert "on_exhaustion" not in found
        return
    told = list(noted)
    if other_how:
        told.append({"row": row, "on_exhaustion": "another", "was": how})
    if other_epochs:
        told.append({"row": row, "epochs": {"web": 2}, "was": {"web": 1}})
    assert check_run(state, now, amendments, first_dry) == told
    twin = state._replace(amendments=noted)
    if any(at < row for at in amended):
        assert "rows already consumed cannot be changed" in (answer(twin, now, amendments) or "")


@given(
    st.integers(0, 2**60),
    st.lists(st.just([3, 9]), max_size=1),
    st.lists(st.just({"row": 4, "mix": (1, 2)}), max_size=1),
    st.none() | st.integers(0, 3),
)
def test_a_state_is_plain_json_without_empty_fields(
    row: int, skips: Any, amendments: Any, passes: int | None
) -> None:
    run = {"seed": 3, "mix": (0.5, 0.5)}
    found = make_state(run, row, [[0, 4]], skips, amendments, passes)
    facts = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    more = {"passes": passes, "skips": skips, "amendments": [{"row": 4, "mix": [1, 2]}]}
    given_ = {"passes": passes is not None, "skips": skips, "amendments": amendments}
    expected = {
        **{"version": 1, "fingerprint": facts[:16], "next_row": row, "batch_sizes": [[0, 4]]},
        **{name: value for name, value in more.items() if given_[name]},
        "run": {"seed": 3, "mix": [0.5, 0.5]},
    }
    assert found == sealed(expected)
    assert [*found] == [*expected, "checksum"], "in this order"
    state = state_of(found["run"], 5, found.get("amendments", []))
    assert check_run(state, run, amendments) == [], "facts are compared as JSON has them"
