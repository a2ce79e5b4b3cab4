"""States: field by field as they come back, and fact by fact as they are compared."""

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import StateMismatch
from jaxdata.feed.state import SavedState, check_run, fingerprint, make_state, parse_state, sealed

GOOD = {"version": 1, "fingerprint": "0123456789abcdef", "next_row": 7}
ROWS = st.sampled_from([0, 1, 2, 3, 5, 8, 2**63 - 1, 2**63, -1, True, 1.0, "1", None])
LISTS = st.lists(st.lists(ROWS, max_size=4), max_size=3)
PAIRS = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=3), max_size=3)
VALUES = ROWS | LISTS | PAIRS | st.dictionaries(st.sampled_from(["row", "was", "a"]), ROWS)
"""what may stand where something else should"""


def row(value: Any) -> bool:
    return type(value) is int and value in range(2**63)


def pairs(value: Any, *lengths: int) -> bool:
    return type(value) is list and all(
        type(each) is list and len(each) in lengths and all(map(row, each)) for each in value
    )


def sizes(value: Any) -> bool:
    begins = [begin for begin, _ in value] if pairs(value, 2) else [1, 0]
    return begins == sorted({*begins}) and 0 not in [size for _, size in value]


RULES = {
    "fingerprint": lambda value: type(value) is str,
    "next_row": row,
    "batch_sizes": sizes,
    "skips": lambda value: pairs(value, 2, 3) and all(each[1] > each[0] for each in value),
    "amendments": lambda value: (
        type(value) is list and all(type(each) is dict and row(each.get("row")) for each in value)
    ),
    "run": lambda value: type(value) is dict,
    "passes": row,
    "position": lambda value: value is None or type(value) is dict,
}


def said(state: Any) -> str:
    with pytest.raises(StateMismatch) as caught:
        parse_state(state)
    return str(caught.value)


CHANGES = st.lists(st.dictionaries(st.sampled_from(["row", "was"]), ROWS), max_size=3)


@given(st.sampled_from(sorted(RULES)), VALUES | CHANGES)
def test_a_field_is_taken_or_named(name: str, value: Any) -> None:
    state = {**GOOD, name: value}
    if RULES[name](value):
        empty = {"batch_sizes": [], "skips": [], "amendments": [], "run": {}, "passes": 0}
        expected = {**empty, "position": None, "turn": None, **state}
        assert json.loads(json.dumps(parse_state(state).model_dump())) == expected
    else:
        assert said(state).startswith(f"the loader state makes no sense: {name}")


NO_STATES: list[Any] = [
    (None, "is not a loader state but a NoneType"),
    ([("version", 1)], "is not a loader state but a list"),
    ({}, "this is not a loader state: it lacks 'fingerprint', it lacks 'version'"),
    ({**GOOD, "row": 3}, "this is not a loader state: it has 'row', which no loader state"),
    ({**GOOD, 5: 3}, "this is not a loader state, which is plain JSON: Dict key must be str"),
    *(
        ({**GOOD, "run": {"a": value}}, "which is plain JSON: ")
        for value in (2**64, b"x", "\ud800", json.loads("[" * 900 + "]" * 900))
    ),
    ({**GOOD, "version": 2}, "has version 2, this jaxdata reads version 1: use the jaxdata"),
    ({**GOOD, "version": True}, "has version True, this jaxdata reads version 1"),
    ({**GOOD, "turn": {"worker": 0}}, "makes no sense: turn.workers"),
    ({**GOOD, "skips": [[3, 1, 2]]}, "skips (3, 1, 2): expected rows [first, stop] with first"),
    ({**GOOD, "amendments": [{"row": 3, "asked_at": 2}]}, "expected a change with the row it"),
    ({**GOOD, "amendments": [{"row": 3, "asked_at": -2, "weights": {}}]}, "expected a change"),
]


@pytest.mark.parametrize(("state", "message"), NO_STATES)
def test_what_is_no_state_is_refused(state: Any, message: str) -> None:
    assert message in said(state)
    assert said(state).isprintable()


@given(st.dictionaries(st.sampled_from(["skips", "batch_sizes", "passes", "run"]), VALUES))
def test_a_checksum_is_of_the_values_without_empty_lists(fields: dict[str, Any]) -> None:
    def checksum(state: dict[str, Any]) -> str:
        facts = {name: state[name] for name in state if name != "checksum" and state[name] != []}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]

    state = {**GOOD, **fields}
    found = sealed(state)
    assert found == {**state, "checksum": checksum(state)}
    assert sealed({**found, "amendments": []})["checksum"] == found["checksum"]
    wrong = {**found, "checksum": "0" * 8, "next_row": -8}
    assert f"its checksum is '00000000', that of its values '{checksum(wrong)}'. Re" in said(wrong)


def test_numbers_of_numpy_and_tuples_are_those_of_json_and_empty_fields_are_left_out() -> None:
    skips = ((np.int64(1), np.uint8(4)), [5, np.int32(9), 2])
    run = {"share": np.float32(0.1), "is": np.True_, "none": None, "pair": (1,)}
    found = parse_state({**GOOD, "skips": skips, "run": run})
    assert found.skips == [(1, 4), (5, 9, 2)]
    assert json.dumps(found.run) == '{"share": 0.1, "is": true, "none": null, "pair": [1]}'
    run = {"seed": 3, "mix": (0.5, 0.5)}
    made = make_state(run, 2**60, skips=[], passes=None, amendments=[{"row": 4, "mix": (1, 2)}])
    facts = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    expected = {"version": 1, "fingerprint": facts[:16], "next_row": 2**60}
    expected |= {"amendments": [{"row": 4, "mix": [1, 2]}], "run": {"seed": 3, "mix": [0.5, 0.5]}}
    assert made == sealed(expected)
    amended = state_of(made["run"], 5, made["amendments"])
    assert check_run(amended, run, table([{"row": 4, "mix": (1, 2)}])) == [], "as JSON has them"


Amendments = list[dict[str, Any]]


def state_of(run: dict[str, Any], row: int = 0, amendments: Amendments = ()) -> SavedState:
    given_ = {"fingerprint": fingerprint(run), "next_row": row, "amendments": [*amendments]}
    return SavedState(version=1, **given_, run=run)


def table(amendments: Amendments = (), dry: Any = ()) -> Any:
    exhaustions = [SimpleNamespace(row=each) for each in dry]
    return SimpleNamespace(amendments=[*amendments], exhaustions=exhaustions)


def answer(state: SavedState, run: dict[str, Any], *more: Any, **named: Any) -> str:
    """The refusal; nothing where there is none."""
    try:
        check_run(state, run, *more, **named)
    except StateMismatch as error:
        return str(error)
    return ""


WAS: dict[str, Any] = {"seed": 0, "phases": [1, 2], "on_exhaustion": "renormalize"}
WAS |= {"data": {"web": "a1", "code": "c3"}, "views": {"web": "dedup"}}
OTHER = "data[web] was 'a1', is 'b2': open the dataset that the run was started on (a new"
UNREAD = "views[web] was 'dedup', is absent: read the view that the run is of, with data"
READ = "views[code] was absent, is 'x': read all its documents, as the run does, without"


OTHER_RUNS: list[Any] = [
    ({"seed": 1}, ["seed was 0, is 1: set seed back, or start a new run"]),
    ({"order": 3}, ["order was absent, is 3: set order back, or start a new run"]),
    ({"phases": [7]}, ["phases[0] was 1, is 7: restore the curriculum of", "phases[1]"]),
    ({"data": {"web": "b2", "code": "c3"}}, [OTHER]),
    ({"data": {"web": "b2"}, "views": {}}, [UNREAD]),
    ({"views": {"web": "dedup", "code": "x"}}, [READ]),
    ({"on_exhaustion": "halt"}, []),
]


@pytest.mark.parametrize(("change", "lines"), OTHER_RUNS)
def test_a_state_of_another_run_is_refused_fact_by_fact(change: Any, lines: list[str]) -> None:
    said = answer(state_of(WAS), {**WAS, **change}, free="what you like").splitlines()
    for each, line in zip(said[1:-1], lines, strict=True):
        assert each.startswith(f"  {line}")
    if lines:
        assert said[0].startswith("the loader state belongs to another run; the same rows would no")
        assert said[-1] == "(what you like may change freely)"
    forged = answer(state_of(WAS).model_copy(update={"fingerprint": "0" * 16}), {**WAS, **change})
    assert lines or "  its fingerprint and its facts disagree\n" in forged


EPOCHS = st.fixed_dictionaries({}, optional={"epochs": st.integers(0, 1)})
SOME = st.dictionaries(st.integers(0, 12), EPOCHS, max_size=3)
AMENDMENTS = SOME.map(lambda some: [{"row": row, **fields} for row, fields in some.items()])


@given(AMENDMENTS, AMENDMENTS, st.integers(0, 13))
def test_no_row_that_was_consumed_changes(was: Amendments, now: Amendments, row: int) -> None:
    old, new = ({each["row"]: each for each in some} for some in (was, now))
    changed = {at for at in {*old, *new} if at < row and old.get(at) != new.get(at)}
    noted = {"row": 0, "on_exhaustion": "halt", "was": "refuse"}
    said = answer(state_of({"seed": 0}, row, [*was, noted]), {"seed": 0}, table(now))
    found = [line for line in said.splitlines() if line.startswith("  the amendment at row ")]
    assert {int(line.split()[4]) for line in found} == changed
    assert bool(said) == bool(changed)


ENDS, PLACES = st.sampled_from(["halt", "refuse", "renormalize"]), st.integers(0, 9)


@given(ENDS, PLACES, st.lists(PLACES, max_size=2), st.booleans(), st.lists(PLACES, max_size=1))
def test_what_no_row_before_depends_on_is_noted_where_it_changes(
    how: str, row: int, dry: list[int], other_epochs: bool, amended: list[int]
) -> None:
    """How a run ends is free; epochs are while no source has run dry and nothing was amended."""
    was = {"seed": 0, "on_exhaustion": how, "epochs": {"web": 1}}
    now = {**was, "on_exhaustion": "another", "epochs": {"web": 2 if other_epochs else 1}}
    amendments = [{"row": at, "pack": "new"} for at in amended]
    state = state_of(was, row, amendments)
    free = how != "renormalize" and row <= min(dry, default=9) and row <= min(amended, default=9)
    if other_epochs and not free:
        found = answer(state, now, table(amendments, dry))
        assert "  epochs[web] was 1, is 2: set epochs[web] back, or start a new run" in found
        assert "on_exhaustion" not in found
        return
    told = [{"row": row, "on_exhaustion": "another", "was": how}]
    told += [{"row": row, "epochs": {"web": 2}, "was": {"web": 1}}] * other_epochs
    assert check_run(state, now, table(amendments, dry)) == told
