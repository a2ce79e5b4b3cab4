"""States of one run given to another: what is taken, and the words in which it is refused."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import SavedState, sealed
from jaxdata.feed.state import check_run, fingerprint, make_state, order_of

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
ORDERING = {"order", "block", "lanes", "chunk_bytes", "block_bytes"}


def state_of(run: Run, row: int = 0, amendments: Amendments = ()) -> SavedState:
    return SavedState(fingerprint(run), row, [], [], [*amendments], run)


def said(state: SavedState, run: Run, *more: Any, **named: Any) -> str | None:
    """The refusal, or None."""
    try:
        check_run(state, run, *more, **named)
    except StateMismatch as error:
        return str(error)
    return None


def flat(run: Run) -> Run:
    """Facts by the names that a refusal gives them."""
    found: Run = {"order": 1}
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


def remedy(name: str, was: Run) -> str:
    if name == "order" and flat(was)["order"] in (1, 2):
        order = flat(was)["order"]
        return (
            f"set order: {order} in the config's pack, or order={order} for jaxdata.pack, or start "
            "a new run"
        )
    if name.startswith("views"):
        view = flat(was).get(name)
        if view is None:
            return "read all its documents, as the run does, without documents=; or start a new run"
        return (
            "read the view that the run is of, with dataset.source(split, name, "
            f"documents='{view}'), or in a config documents: {view}; or start a new run"
        )
    if name.startswith("data"):
        return (
            "open the dataset that the run was started on (a new conversion changes its "
            "fingerprint); for a source that was appended to since, use dataset.source(split, "
            "name, generation=0), or in a config generations: {name: 0}"
        )
    if name.startswith("phases"):
        return "restore the curriculum of the run"
    return f"set {name} back, or start a new run"


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
    has_order = any(name.split(".")[-1] == "order" for name in names)
    lines = []
    for name in names:
        if has_view and name.startswith("data"):
            continue
        if has_order and name.split(".")[-1] in ORDERING - {"order"}:
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
    assert said(state_of(was), now) == refusal(was, now)
    assert said(state_of(was), {**was, "seed": 9}) == refusal(was, {**was, "seed": 9})
    assert said(state_of(was), was) is None


def test_a_fingerprint_without_its_facts_is_refused() -> None:
    state = state_of({"seed": 0})._replace(fingerprint="0" * 16)
    found = said(state, {"seed": 0}, free="what you like")
    assert found == (
        "the loader state belongs to another run; the same rows would not follow:\n"
        "  its fingerprint and its facts disagree\n(what you like may change freely)"
    )


def test_the_order_of_a_run_of_the_first_version_is_1() -> None:
    assert [order_of(run) for run in ({}, {"order": 1}, {"order": 2})] == [1, 1, 2]


AMENDMENTS = st.dictionaries(
    st.integers(0, 12),
    st.fixed_dictionaries({}, optional={"epochs": SMALL, "pack": st.just("new"), "was": SMALL}),
    max_size=3,
).map(lambda found: [{"row": row, **fields} for row, fields in found.items()])


def named(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in fields.items() if name != "row")


@given(AMENDMENTS, AMENDMENTS, st.integers(0, 13))
def test_no_row_that_was_consumed_changes(was: Amendments, now: Amendments, row: int) -> None:
    now = [{name: value for name, value in each.items() if name != "was"} for each in now]
    lines = []
    for at in range(row):
        one = [each for each in was if each["row"] == at and "was" not in each]
        other = [each for each in now if each["row"] == at]
        if one and not other:
            lines.append(
                f"  the state has an amendment at row {at} ({named(one[0])}), this run has none"
            )
        elif other and not one:
            lines.append(
                f"  this run has an amendment at row {at} ({named(other[0])}), the state has none"
            )
        elif one != other:
            lines.append(f"  the amendment at row {at} was {named(one[0])}, is {named(other[0])}")
    found = said(state_of({"seed": 0}, row, was), {"seed": 0}, now)
    if not lines:
        assert found is None
        return
    assert found == "\n".join(
        [
            f"the loader state is at row {row}; rows already consumed cannot be changed:",
            *lines,
            f"amend at row {row} or later, or resume from an earlier state",
        ]
    )


def test_large_rows_are_told_with_commas() -> None:
    amended = [{"row": 1_234_567, "epochs": 2}]
    given_ = [
        (amended, [], "the state has an amendment at row 1,234,567 (epochs 2), this run has none"),
        ([], amended, "this run has an amendment at row 1,234,567 (epochs 2), the state has none"),
        (
            amended,
            [{"row": 1_234_567, "epochs": 3, "a": "b"}],
            "the amendment at row 1,234,567 was epochs 2, is epochs 3, a 'b'",
        ),
    ]
    for was, now, line in given_:
        assert said(state_of({}, 1_234_568, was), {}, now) == (
            "the loader state is at row 1,234,568; rows already consumed cannot be changed:\n"
            f"  {line}\namend at row 1,234,568 or later, or resume from an earlier state"
        )


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
        found = said(state, now, amendments, first_dry)
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
        assert "rows already consumed cannot be changed" in (said(twin, now, amendments) or "")


@given(st.booleans(), st.booleans())
def test_what_only_one_of_two_runs_says_is_no_change_to_note(has: bool, had: bool) -> None:
    facts = {"on_exhaustion": "halt"}
    found = said(state_of(facts if had else {}), facts if has else {})
    assert (found is None) == (has == had)


@given(
    st.integers(0, 2**60),
    st.lists(st.just([0, 4]), max_size=1),
    st.lists(st.just([3, 9]), max_size=1),
    st.lists(st.just({"row": 4, "mix": (1, 2)}), max_size=1),
    st.none() | st.integers(0, 3),
)
def test_a_state_has_no_empty_fields(
    row: int, sizes: Any, skips: Any, amendments: Any, passes: int | None
) -> None:
    run = {"seed": 3, "mix": (0.5, 0.5)}
    found = make_state(run, row, sizes, skips, amendments, passes)
    facts = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
    expected: dict[str, Any] = {"version": 1, "fingerprint": facts[:16], "next_row": row}
    expected["batch_sizes"] = sizes
    if passes is not None:
        expected["passes"] = passes
    if skips:
        expected["skips"] = skips
    if amendments:
        expected["amendments"] = [{"row": 4, "mix": [1, 2]}]
    expected["run"] = {"seed": 3, "mix": [0.5, 0.5]}
    assert found == sealed(expected)
    assert [*found] == [*expected, "checksum"], "in this order"
    assert json.loads(json.dumps(found)) == found
    assert fingerprint(run) == found["fingerprint"]


def test_facts_are_compared_as_json_has_them() -> None:
    run = {"mix": (1, 2), "amount": 1.0}
    stored = json.loads(json.dumps(run))
    assert check_run(state_of(stored), run) == []
    amended = [{"row": 2, "mix": (1, 2)}]
    assert check_run(state_of({}, 7, json.loads(json.dumps(amended))), {}, amended) == []
    with pytest.raises(TypeError):
        make_state({"seed": np.int64(1)}, 0, [], [])
