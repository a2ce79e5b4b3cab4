"""States of one run given to another: what is taken, and the words in which it is refused."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import SavedState, sealed
from jaxdata.feed.state import check_run, fingerprint, make_state

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
ORDERING = {"order", "block", "lanes", "segment_bytes", "pool_bytes"}


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


DATA = (
    "open the dataset that the run was started on (a new conversion changes its fingerprint); for "
    "a source that was appended to since, use dataset.source(split, name, generation=0), or in a "
    "config generations: {name: 0}"
)


def remedy(name: str, was: Run) -> str:
    value = flat(was).get(name)
    if name == "order" and value in (1, 2):
        return (
            f"set order: {value} in the config's pack, or order={value} for jaxdata.pack, or start "
            "a new run"
        )
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
    forged = state_of(was)._replace(fingerprint="0" * 16)
    assert said(forged, was, free="what you like") == (
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
    found = said(state_of({"seed": 0}, row, was), {"seed": 0}, now)
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
