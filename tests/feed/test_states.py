"""States are parsed, not trusted: whatever comes back is refused by name, or the right stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import sealed
from tests.feed.mutations import mutations, refusal
from tests.feed.test_loader import DOCUMENTS, ROWS, TEXTS, loader

SKIPPED = (3, 9)
Make = Callable[[], jaxdata.Loader]


def sizes_and_skips() -> jaxdata.Loader:
    return loader([(0, 4), (40, 12), (80, 8)], skip_rows=[SKIPPED], prefetch=0)


@cache
def amended_rows() -> Any:
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(TEXTS, name=name), seq_len=32)
        for name in ("web", "code")
    }
    mixed = jaxdata.mix(rows, weights={"web": 0.6, "code": 0.4}, on_exhaustion="renormalize")
    return mixed.amend(60, epochs={"web": 1.5})


def amended() -> jaxdata.Loader:
    return loader(8, rows=amended_rows(), prefetch=0)


def megatron() -> jaxdata.Loader:
    from jaxdata.megatron import gpt

    return loader(8, rows=gpt(DOCUMENTS, seq_len=32), prefetch=0)


MAKERS: list[Make] = [sizes_and_skips, amended, megatron]


def moved(make: Make) -> dict[str, Any]:
    one = make()
    for _ in range(10):
        next(one)
    if make is sizes_and_skips:
        one.skip(2, 60)
        next(one)
        one.skip(100, 104)
    state: dict[str, Any] = json.loads(json.dumps(one.get_state()))
    return state


def to_come(one: jaxdata.Loader) -> list[int]:
    """The rows that are not delivered yet, in order."""
    steps = range(one.step, len(one))
    rows = [one.batch_rows(step) for step in steps]
    return np.concatenate(rows).tolist() if rows else []


def as_it_says(state: dict[str, Any], make: Make, total: int) -> list[int]:
    """The same by the words of a state: the rows from `next_row` on that no skip names."""
    ranges = [(max(skip[0], *skip[2:], 0), skip[1]) for skip in state.get("skips", [])]
    ranges += [SKIPPED] if make is sizes_and_skips else []
    rows = range(state["next_row"], total)
    return [row for row in rows if not any(first <= row < stop for first, stop in ranges)]


def damage(make: Make, state: dict[str, Any], count: int, seed: int) -> tuple[int, int]:
    """Restore damaged states; returns how many were refused, and how many taken."""
    refused, taken = 0, 0
    one = make()
    for each in mutations(state, count, seed):
        if refusal(one.set_state, each) is not None:
            refused += 1
            continue
        taken += 1
        if "checksum" in each:
            assert each["checksum"] == state["checksum"]
            assert one.get_state() == state, each
        assert to_come(one) == as_it_says(each, make, len(one.rows)), each
        one = make()  # a loader keeps the skips of every state
    return refused, taken


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_damaged_states(make: Make, checked: bool, count: int) -> None:
    state = moved(make)
    if not checked:
        del state["checksum"]
    refused, taken = damage(make, state, count, seed=count)
    assert refused > taken > 0


REFUSED: list[tuple[str, Any, str]] = [
    ("next_row", -1, "has next_row -1: expected a whole number of at least 0"),
    ("next_row", 7.0, "has next_row 7.0: expected a whole number"),
    ("next_row", True, "has next_row True: expected a whole number"),
    ("next_row", 2**63, "has next_row 9223372036854775808: expected a whole number"),
    ("next_row", 10**6, f"has next_row 1000000: expected 0 to {len(ROWS)}"),
    ("batch_sizes", [[0, 0]], "has batch_sizes [[0, 0]]: expected sizes of at least 1 by the row"),
    (
        "batch_sizes",
        [[4, 8], [4, 9]],
        "expected sizes of at least 1 by the row they begin at, like",
    ),
    ("batch_sizes", {"0": 4}, "has batch_sizes {'0': 4}: expected sizes"),
    ("skips", [[5, 3]], "has skips [[5, 3]]: expected ranges of rows [first, stop] or"),
    ("skips", [[5]], "has skips [[5]]: expected ranges of rows"),
    ("skips", [[1, 2, 3, 4]], "like [[4000, 4800]]"),
    ("skips", 7, "has skips 7: expected ranges"),
    (
        "amendments",
        [{"epochs": 2}],
        "has amendments [{'epochs': 2}]: expected changes with the row",
    ),
    ("run", [], "has run []: expected the facts of a run by name"),
    ("fingerprint", 7, "has fingerprint 7: expected 16 hex digits"),
    ("turn", 3, "has turn 3: expected the turn of a DataLoader's worker"),
    ("nxt_row", 3, "has 'nxt_row', which no loader state has: leave it out"),
    ("run", {1: 2}, "this is not a loader state: it has a field 1"),
    ("run", {"a": float("nan")}, "it holds nan, which JSON has not"),
    ("run", {"a": 10**5000}, "it holds a int, which JSON has not"),
    ("run", {"a": b"x"}, "it holds b'x', which JSON has not"),
    ("run", json.loads('{"a":' * 900 + "1" + "}" * 900), "more than 20 levels deep"),
    ("version", 2, "has version 2, this jaxdata reads version 1: use the jaxdata that saved it"),
    ("version", 1.0, "has version 1.0, this jaxdata"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_what_is_no_state_is_refused_by_name(name: str, value: Any, message: str) -> None:
    one = sizes_and_skips()
    state = {key: each for key, each in one.get_state().items() if key != "checksum"}
    said = refusal(one.set_state, {**state, name: value})
    assert said is not None
    assert message in said
    assert one.next_row == 0


def test_a_refusal_is_not_as_long_as_the_state() -> None:
    one = sizes_and_skips()
    long = {"version": 1, "next_row": 0, "fingerprint": "0" * 16, "run": {"a": ["x" * 10**6] * 3}}
    said = refusal(one.set_state, long)
    assert said is not None
    assert "a[0] was 'xxx" in said
    assert len(said) < 5_000


@pytest.mark.parametrize("given", [None, 7, "x", [1], [["version", 1]]])
def test_what_is_no_dict(given: Any) -> None:
    with pytest.raises(StateMismatch, match=r"this is not a loader state but .*: expected a dict"):
        loader().set_state(given)


def test_a_state_that_was_changed_is_refused_and_what_to_do_is_said() -> None:
    state = moved(sizes_and_skips)
    changed = {**state, "next_row": state["next_row"] + 1}
    with pytest.raises(StateMismatch) as caught:
        sizes_and_skips().set_state(changed)
    checksum = sealed(changed)["checksum"]
    assert str(caught.value) == (
        f"the loader state is damaged: its checksum is {state['checksum']!r}, that of its values "
        f"{checksum!r}. Restore an earlier checkpoint; if you changed the state yourself, leave "
        "out its checksum"
    )
    one = sizes_and_skips()
    one.set_state({name: value for name, value in changed.items() if name != "checksum"})
    assert one.next_row == state["next_row"] + 1


def test_what_other_libraries_make_of_json_is_the_same() -> None:
    state = moved(sizes_and_skips)
    skips = tuple(tuple(np.int64(row) for row in skip) for skip in state["skips"])
    one = sizes_and_skips()
    one.set_state(
        MappingProxyType({**state, "next_row": np.int32(state["next_row"]), "skips": skips})
    )
    assert one.get_state() == state


def test_many_late_skips_end() -> None:
    state = {name: value for name, value in moved(sizes_and_skips).items() if name != "checksum"}
    late = [[row, 10**6 + row, 10**7 - row] for row in range(30_000)]
    one = sizes_and_skips()
    one.set_state({**state, "skips": late})
    assert to_come(one)[:3] == as_it_says(state | {"skips": []}, sizes_and_skips, len(ROWS))[:3]
