"""A loader that trainers iterate over: one pass each `iter()`, or an error, never nothing."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import jaxdata
import jaxdata.torch
from jaxdata.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.testing import assert_same_batches, distinct_documents

LENGTHS = np.random.default_rng(0).integers(1, 40, 120)
DOCUMENTS = jaxdata.ArrayDocuments(distinct_documents(LENGTHS))
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32)
MIXED = jaxdata.mix({"a": ROWS}, epochs={"a": 1.5})
SIDES = [jaxdata.ArrayDocuments([[1, n, 0] for n in range(2, 9)], [[0, 1, 1]] * 7)] * 2
PAIRS = jaxdata.pairs(*SIDES, seq_len=4)
KINDS = {
    **{"packed": ROWS, "mixed": MIXED, "mapped": ROWS.map(dict), "pairs": PAIRS},
    **{"part": ROWS[:20], "part of a mixture": MIXED[:20].map(dict)},
}
MIXTURES = [KINDS["mixed"], KINDS["part of a mixture"]]
FACES = {"jax": jaxdata.Loader, "torch": jaxdata.torch.Loader}


def loader(face: str = "jax", rows: Any = ROWS, **settings: Any) -> Any:
    settings = {"batch_size": 8, "reiterable": True, "prefetch": 0, **settings}
    return FACES[face](rows, **settings)


def rows_of(batches: Any, name: str = "inputs") -> list[list[int]]:
    """The rows of some batches, without those that complete one."""
    return [row.tolist() for batch in batches for row in batch[name] if row.any()]


def expected(rows: Any, number: int, name: str = "inputs") -> list[list[int]]:
    """The rows of a pass, in order: of an epoch, as grain numbers them."""
    first = 0 if rows in MIXTURES else number * len(rows)
    return [rows[first + row][name].tolist() for row in range(len(rows))]


def in_order(found: list[list[int]]) -> list[list[int]]:
    return sorted(found)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rows", KINDS.values(), ids=KINDS)
def test_each_iter_is_a_pass_of_the_next_epoch(face: str, rows: Any) -> None:
    name = "chosen_inputs" if rows is PAIRS else "inputs"
    one = loader(face, rows)
    for number in range(3):
        assert one.passes == (number - 1 if number else 0)
        found = rows_of(one, name)
        assert in_order(found) == in_order(expected(rows, number, name))
        assert one.passes == number
        assert one.next_row == len(rows)
    assert (rows_of(loader(face, rows), name) == found) == (rows in MIXTURES)


def test_every_pass_has_each_target_once() -> None:
    one = loader()
    for _ in range(3):
        found = np.concatenate([batch["targets"][batch["loss_mask"]] for batch in one])
        assert sorted(found) == sorted(np.concatenate([text["tokens"][1:] for text in DOCUMENTS]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("face", FACES)
@given(st.integers(0, 40), st.sampled_from([0, 1]), st.sampled_from([4, 8]))
def test_a_state_in_any_pass_goes_on_there(
    face: str, steps: int, prefetch: int, batch_size: int
) -> None:
    whole = loader(face)
    each = len(whole)
    batches = [batch for _ in range(8) for batch in whole]
    one = loader(face, prefetch=prefetch)
    for _ in range(steps // each):
        list(one)
    list(islice(one, steps % each))
    state = json.loads(json.dumps(one.get_state()))
    if batch_size == 8:
        other = loader(face, prefetch=prefetch)
        other.set_state(state)
        assert_same_batches(list(other), batches[steps : (steps // each + 1) * each])
        assert_same_batches(islice(other, 2), batches[(steps // each + 1) * each :][:2])
        other.close()
    other = loader(face, batch_size=batch_size)
    other.set_state(state)
    stop = (steps // each + 1) * each
    assert in_order(rows_of(other)) == in_order(rows_of(batches[steps:stop]))


def test_hosts_of_any_number_make_the_same_passes() -> None:
    one, halves = loader(), [loader(shard=(part, 2), num_workers=part) for part in range(2)]
    for _ in range(2):
        for whole, *parts in zip(one, *halves, strict=True):
            for name in whole:
                assert np.array_equal(whole[name], np.concatenate([part[name] for part in parts]))
    assert [half.get_state() for half in halves] == [one.get_state()] * 2
    for half in halves:
        half.close()


def test_the_rest_of_a_pass_comes_before_the_next_one() -> None:
    one = loader()
    first = [next(iter(one)), *islice(one, 3), *one]
    assert_same_batches(first, loader())
    assert one.passes == 0


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


def test_a_run_that_halts_says_so_instead() -> None:
    mixed = jaxdata.mix(
        {"a": ROWS}, phases=[jaxdata.Phase(rows=999, weights={"a": 1})], on_exhaustion="halt"
    )
    for reiterable in (False, True):
        one = loader(rows=mixed, reiterable=reiterable)
        for _ in range(len(one)):
            next(one)
        with pytest.raises(SourceExhausted):
            list(one)
        with pytest.raises(InputError, match="at its end"):
            iter(one)


def test_a_later_pass_is_not_taken_for_the_first() -> None:
    one = loader()
    list(one), next(iter(one))
    with pytest.raises(StateMismatch, match=r"in pass 2 over the rows.* with reiterable=True"):
        loader(reiterable=False).set_state(one.get_state())
    state = {name: value for name, value in one.get_state().items() if name != "checksum"}
    with pytest.raises(StateMismatch, match="passes -1: expected a whole number of at least 0"):
        loader().set_state({**state, "passes": -1})


def test_workers_of_a_dataloader_cannot_count_passes() -> None:
    with pytest.raises(InputError, match=r"reiterable=True in a worker of a DataLoader: the load"):
        next(iter(DataLoader(loader("torch"), batch_size=None, num_workers=1)))
    here = DataLoader(loader("torch"), batch_size=None)
    assert in_order(rows_of(here)) == in_order(expected(ROWS, 0))
    assert in_order(rows_of(here)) == in_order(expected(ROWS, 1))
