"""States: field by field as they come back, and fact by fact as they are compared."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import StateMismatch
from jaxdata.feed.state import SavedState, check_run, fingerprint, make_state, parse_state, sealed

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


RULES = {
    "fingerprint": lambda value: type(value) is str,
    "next_row": row,
    "batch_sizes": sizes,
    "skips": ranges,
    "amendments": amendments,
    "run": lambda value: type(value) is dict,
    "passes": row,
    "position": lambda value: value is None or type(value) is dict,
}


def said(state: Any) -> str:
    with pytest.raises(StateMismatch) as caught:
        parse_state(state)
    return str(caught.value)


@given(
    st.sampled_from(sorted(RULES)),
    VALUES | st.lists(st.dictionaries(st.sampled_from(["row", "was"]), ROWS), max_size=3),
)
def test_a_field_is_taken_or_named(name: str, value: Any) -> None:
    state = {**GOOD, name: value}
    if RULES[name](value):
        found = parse_state(state).model_dump()
        empty = {"batch_sizes": [], "skips": [], "amendments": [], "run": {}, "passes": 0}
        expected = {**empty, "position": None, "turn": None, **state}
        assert json.loads(json.dumps(found)) == expected
    else:
        assert said(state).startswith(f"the loader state makes no sense: {name}")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        *((each, "is not a loader state but a") for each in (None, 7, [("version", 1)], set())),
        ({}, "this is not a loader state: it lacks 'fingerprint', it lacks 'version'"),
        ({**GOOD, "row": 3}, "this is not a loader state: it has 'row', which no loader state"),
        ({**GOOD, 5: 3}, "this is not a loader state, which is plain JSON: Dict key must be str"),
        *(
            ({**GOOD, "run": {"a": value}}, "which is plain JSON: ")
            for value in (2**64, b"x", {1}, 1j, "\ud800", json.loads("[" * 900 + "]" * 900))
        ),
        *(
            ({**GOOD, "version": each}, f"has version {each!r}, this jaxdata reads version 1: use")
            for each in (2, True, "1")
        ),
        ({**GOOD, "turn": {"worker": 0}}, "makes no sense: turn.workers"),
        ({**GOOD, "skips": [[3, 1, 2]]}, "skips (3, 1, 2): expected rows [first, stop] with first"),
        ({**GOOD, "amendments": [{"row": 3, "asked_at": 2}]}, "expected a change with the row it"),
        ({**GOOD, "amendments": [{"row": 3, "asked_at": -2, "weights": {}}]}, "expected a change"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, message: str) -> None:
    assert message in said(state)
    assert said(state).isprintable()


def checksum(state: dict[str, Any]) -> str:
    facts = {name: state[name] for name in state if name != "checksum" and state[name] != []}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@given(st.dictionaries(st.sampled_from(["skips", "batch_sizes", "passes", "run"]), VALUES))
def test_a_checksum_is_of_the_values_without_empty_lists(fields: dict[str, Any]) -> None:
    state = {**GOOD, **fields}
    found = sealed(state)
    assert found == {**state, "checksum": checksum(state)}
    assert sealed({**found, "amendments": []})["checksum"] == found["checksum"]
    assert sealed({**state, "next_row": 8})["checksum"] != found["checksum"]
    wrong = {**found, "checksum": "0" * 8, "next_row": -8}
    assert f"its checksum is '00000000', that of its values '{checksum(wrong)}'. Re" in said(wrong)


def test_numbers_of_numpy_and_tuples_are_those_of_json() -> None:
    skips = ((np.int64(1), np.uint8(4)), [5, np.int32(9), 2])
    run = {"share": np.float32(0.1), "is": np.True_, "none": None, "pair": (1,)}
    found = parse_state({**GOOD, "skips": skips, "run": run})
    assert found.skips == [(1, 4), (5, 9, 2)]
    assert json.dumps(found.run) == '{"share": 0.1, "is": true, "none": null, "pair": [1]}'


Run = dict[str, Any]
Amendments = list[dict[str, Any]]
SMALL = st.integers(0, 1)
RUNS = st.fixed_dictionaries(
    {"data": st.just({"web": "a1"}) | st.just({"web": "b2", "code": "a1"})},
    optional={
        "seed": SMALL,
        "order": st.integers(1, 3),
        "lanes": SMALL,
        "web.lanes": SMALL,
        "web.order": st.integers(1, 2),
        "phases": st.lists(SMALL, min_size=1, max_size=2),
        "views": st.sampled_from([{"web": "dedup"}, {"web": "best"}]),
        "epochs": SMALL,
        "on_exhaustion": st.sampled_from(["halt", "refuse", "renormalize"]),
    },
)


def state_of(run: Run, row: int = 0, amendments: Amendments = ()) -> SavedState:
    given_ = {"fingerprint": fingerprint(run), "next_row": row, "amendments": [*amendments]}
    return SavedState(version=1, **given_, run=run)


def table(amendments: Amendments = (), dry: Any = ()) -> Any:
    exhaustions = [SimpleNamespace(row=each) for each in dry]
    return SimpleNamespace(amendments=[*amendments], exhaustions=exhaustions)


def answer(state: SavedState, run: Run, *more: Any, **named: Any) -> str | None:
    """The refusal, or None."""
    try:
        check_run(state, run, *more, **named)
    except StateMismatch as error:
        return str(error)
    return None


def differing(was: Run, now: Run) -> list[str]:
    """What is to be said of two runs without amendments, at row 0 of a run that is not dry."""
    free = {"on_exhaustion"}
    if was.get("on_exhaustion") in ("halt", "refuse"):
        free.add("epochs")
    now = {**now, **{name: was[name] for name in free if name in was and name in now}}
    old, new = (
        {
            f"{name}[{key}]" if key is not None else name: inner
            for name, value in run.items()
            for key, inner in (
                value.items()
                if isinstance(value, dict)
                else enumerate(value)
                if isinstance(value, list)
                else [(None, value)]
            )
        }
        for run in (was, now)
    )
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    has_view = any(name.startswith("views") for name in names)
    return [
        f"{name} was {old.get(name, 'absent')!r}, is {new.get(name, 'absent')!r}: "
        for name in names
        if not (has_view and name.startswith("data"))
    ]


REMEDIES = {
    "data[web]": "open the dataset that the run was started on (a new conversion changes its",
    "phases[0]": "restore the curriculum of the run",
    "views[web]": "read all its documents, as the run does, without documents=; or start a new",
    "seed": "set seed back, or start a new run",
}


@given(RUNS, RUNS)
def test_a_state_of_another_run_is_refused_fact_by_fact(was: Run, now: Run) -> None:
    lines = (answer(state_of(was), now) or "").replace("'absent'", "absent").splitlines()[1:-1]
    expected = [line.replace("'absent'", "absent") for line in differing(was, now)]
    assert [line[2 : len(each) + 2] for line, each in zip(lines, expected, strict=True)] == expected
    for line in lines:
        name = line.split(" was ")[0].strip()
        if name in REMEDIES and not (name == "views[web]" and "absent" not in line.split(",")[0]):
            assert f": {REMEDIES[name]}" in line
    assert answer(state_of(was), was) is None
    forged = state_of(was).model_copy(update={"fingerprint": "0" * 16})
    assert answer(forged, was, free="what you like") == (
        "the loader state belongs to another run; the same rows would not follow:\n"
        "  its fingerprint and its facts disagree\n(what you like may change freely)"
    )


def test_a_state_of_a_view_says_which_to_read() -> None:
    told = answer(state_of({"views": {"web": "dedup"}}), {"views": {}})
    assert told is not None
    assert "views[web] was 'dedup', is absent: read the view that the run is of, with data" in told
    assert "documents='dedup'), or in a config documents: dedup; or start a new run" in told


FAR = 400_000
AMENDMENTS = st.dictionaries(
    st.integers(0, 12).map(FAR.__mul__),
    st.fixed_dictionaries({}, optional={"epochs": SMALL, "pack": st.just("new"), "was": SMALL}),
    max_size=3,
).map(lambda found: [{"row": row, **fields} for row, fields in found.items()])


@given(AMENDMENTS, AMENDMENTS, st.integers(0, 13).map(FAR.__mul__))
def test_no_row_that_was_consumed_changes(was: Amendments, now: Amendments, row: int) -> None:
    now = [{name: value for name, value in each.items() if name != "was"} for each in now]
    old = {each["row"]: each for each in was if "was" not in each}
    new = {each["row"]: each for each in now}
    lines = []
    for at in sorted({*old, *new}, key=lambda at: f"{at:,}"):
        shown = [{k: v for k, v in each.get(at, {}).items() if k != "row"} for each in (old, new)]
        if at < row and old.get(at) != new.get(at):
            one, other = (
                repr(s) if at in o else "absent" for s, o in zip(shown, (old, new), strict=True)
            )
            lines.append(f"  the amendment at row {at:,} in the state: {one}, here: {other}\n")
    expected = (
        f"the loader state is at row {row:,}; rows already consumed cannot be changed:\n"
        f"{''.join(lines)}amend at row {row:,} or later, or resume from an earlier state"
    )
    found = answer(state_of({"seed": 0}, row, was), {"seed": 0}, table(now))
    assert found == (expected if lines else None)


@given(
    st.sampled_from(["halt", "refuse", "renormalize"]),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=2),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=1),
)
def test_what_no_row_before_depends_on_is_noted_where_it_changes(
    how: str, row: int, dry: list[int], other_how: bool, other_epochs: bool, amended: list[int]
) -> None:
    was = {"seed": 0, "on_exhaustion": how, "epochs": {"web": 1}}
    now = {**was, "epochs": {"web": 2}} if other_epochs else was
    now = {**now, "on_exhaustion": "another"} if other_how else now
    amendments = [{"row": at, "pack": "new"} for at in amended]
    noted = [{"row": 0, "epochs": 5, "was": 4}] if row == 9 else []
    epochs_are_free = (
        how != "renormalize"
        and row <= min(dry, default=9)
        and all(at >= row for at in amended)
        and not noted
    )
    state = state_of(was, row, [*amendments, *noted])
    if other_epochs and not epochs_are_free:
        found = answer(state, now, table(amendments, dry))
        assert found is not None
        assert "  epochs[web] was 1, is 2: set epochs[web] back, or start a new run" in found
        assert "on_exhaustion" not in found
        return
    told = list(noted)
    if other_how:
        told.append({"row": row, "on_exhaustion": "another", "was": how})
    if other_epochs:
        told.append({"row": row, "epochs": {"web": 2}, "was": {"web": 1}})
    assert check_run(state, now, table(amendments, dry)) == told
    twin = state.model_copy(update={"amendments": noted})
    if any(at < row for at in amended):
        assert "rows already consumed cannot be changed" in (
            answer(twin, now, table(amendments)) or ""
        )


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
    more = {"passes": passes, "skips": skips, "amendments": amendments}
    found = make_state(run, row, batch_sizes=[[0, 4]], **more)
    facts = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    kept = {name: value for name, value in more.items() if value not in (None, [])}
    expected = {
        **{"version": 1, "fingerprint": facts[:16], "next_row": row, "batch_sizes": [[0, 4]]},
        **json.loads(json.dumps(kept)),
        "run": {"seed": 3, "mix": [0.5, 0.5]},
    }
    assert found == sealed(expected)
    state = state_of(found["run"], 5, found.get("amendments", []))
    assert check_run(state, run, table(amendments)) == [], "facts are compared as JSON has them"
