"""A loader that trainers iterate over: one pass each `iter()`, or an error, never nothing."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.testing import distinct_documents

LENGTHS = np.random.default_rng(0).integers(1, 40, 120)
DOCUMENTS = jaxdata.ArrayDocuments(distinct_documents(LENGTHS))
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32)
MIXED = jaxdata.mix({"a": ROWS}, epochs={"a": 1.5})
SIDES = [jaxdata.ArrayDocuments([[1, n, 0] for n in range(2, 9)], [[0, 1, 1]] * 7)] * 2
PAIRS = jaxdata.pairs(*SIDES, seq_len=4)
KINDS = {
    **{"packed": ROWS, "mixed": MIXED, "pairs": PAIRS},
    "part": ROWS[:20].map(dict),
}
FACES = {"jax": jaxdata.Loader, "torch": jaxdata.torch.Loader}


def loader(face: str = "jax", rows: Any = ROWS, **settings: Any) -> Any:
    settings = {"batch_size": 8, "reiterable": True, "prefetch": 0, **settings}
    return FACES[face](rows, **settings)


def rows_of(batches: Any, name: str = "inputs") -> list[list[int]]:
    """The rows of some batches, without those that complete one."""
    return [row.tolist() for batch in batches for row in batch[name] if row.any()]


def expected(rows: Any, number: int, name: str = "inputs") -> list[list[int]]:
    """The rows of a pass, in order: of an epoch, as grain numbers them."""
    first = 0 if rows is MIXED else number * len(rows)
    return [rows[first + row][name].tolist() for row in range(len(rows))]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rows", KINDS.values(), ids=KINDS)
def test_each_iter_is_a_pass_of_the_next_epoch(face: str, rows: Any) -> None:
    name = "chosen_inputs" if rows is PAIRS else "inputs"
    one = loader(face, rows)
    for number in range(3):
        assert one.passes == (number - 1 if number else 0)
        found = rows_of(one, name)
        assert sorted(found) == sorted(expected(rows, number, name))
        assert one.passes == number
        assert one.next_row == len(rows)
    assert (rows_of(loader(face, rows), name) == found) == (rows is MIXED)


@settings(max_examples=10)
@given(st.sampled_from([*FACES]), st.integers(0, 40), st.sampled_from([4, 8]))
def test_a_state_in_any_pass_goes_on_there(face: str, steps: int, batch_size: int) -> None:
    """On two hosts of another batch size: first comes the rest of the pass."""
    one = loader(face)
    for _ in range(steps // len(one)):
        list(one)
    list(islice(one, steps % len(one)))
    state = json.loads(json.dumps(one.get_state()))
    rest, following = rows_of(one), rows_of(islice(one, 2))
    parts = [{"shard": (n, 2)} if face == "jax" else {"rank": n, "world_size": 2} for n in (0, 1)]
    others = [loader(face, batch_size=batch_size, **part) for part in parts]
    for other in others:
        other.set_state(state)
    assert sorted(rows_of(chain(*others))) == sorted(rest)
    found = rows_of(chain(*(islice(other, 16 // batch_size) for other in others)))
    assert sorted(found) == sorted(following)


def test_a_pass_is_reported_and_left() -> None:
    one = loader()
    list(one)
    whole = one.report()
    list(islice(one, 5))
    assert (whole.passes, one.report().passes, one.report().rows) == (0, 1, 40)
    half = one.report().tokens
    rest = sum(int(batch["loss_mask"].sum()) for batch in one)
    assert half + rest == one.report().tokens == whole.tokens == sum(LENGTHS - 1)
    assert half > 0 < rest
    one.seek(step=3)
    assert (one.passes, one.next_row) == (1, 24)
    one.reset()
    assert (one.passes, one.next_row) == (0, 0)
    one.seek(row=len(ROWS))
    assert len(list(one)) == len(one)
    assert one.passes == 1, "at the end of one pass the next begins"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("drop", [False, True])
def test_the_end_by_count_is_an_end(face: str, drop: bool) -> None:
    """Trainers count steps, and never see the StopIteration."""
    one = loader(face, reiterable=False, drop_remainder=drop)
    for _ in range(len(one)):
        next(one)
    with pytest.raises(InputError, match=r"at its end.* reset\(\), .*; or make it with reitera"):
        list(one)
    one.reset()
    assert len(list(one)) == len(one)
    again = loader(face, drop_remainder=drop)
    counts = [len([next(pass_) for _ in range(len(one))]) for pass_ in map(iter, [again] * 2)]
    assert counts == [len(one)] * 2
    assert again.passes == 1
    with pytest.raises(StateMismatch, match=r"in pass 2 over the rows.* with reiterable=True"):
        one.set_state(again.get_state())


def test_a_run_that_halts_says_so_instead() -> None:
    phases = [jaxdata.Phase(rows=999, weights={"a": 1})]
    mixed = jaxdata.mix({"a": ROWS}, phases=phases, on_exhaustion="halt")
    for reiterable in (False, True):
        one = loader(rows=mixed, reiterable=reiterable)
        for _ in range(2):
            with pytest.raises(SourceExhausted):
                list(one)
        assert one.step == len(one)
