"""What a loader delivers: the same batches whoever makes them, pass after pass, or an error."""

import json
from itertools import chain, islice
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError, SourceExhausted, StateMismatch
from jaxdata.testing import assert_same_batches, assert_same_on_hosts
from tests.builders import documents

DOCUMENTS = jaxdata.ArrayDocuments(documents(400, longest=119), name="train/a")
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32, block_bytes=12800)


def loader(batch_size: Any = 24, rows: Any = ROWS, **settings: Any) -> jaxdata.Loader:
    return jaxdata.Loader(rows, batch_size=batch_size, **settings)


REFERENCE = list(loader(prefetch=0))


@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_and_prefetch_change_nothing(num_workers: int) -> None:
    one = loader(num_workers=num_workers, prefetch=5)
    assert assert_same_batches(one, REFERENCE) == len(REFERENCE) == len(one)


def test_hosts_have_their_part_of_the_batch_and_the_last_one_is_completed_or_dropped() -> None:
    """Of 24 hosts, some have no row at all in the last batch, and the same number of steps."""
    assert assert_same_on_hosts(lambda shard: loader(shard=shard), [3, 24]) == len(REFERENCE)
    empty, last = -len(ROWS) % 24, REFERENCE[-1]
    assert not any(array[-empty:].any() for array in last.values())
    assert last["segment_ids"][:-empty].any(axis=1).all()
    assert_same_batches(loader(drop_remainder=True), REFERENCE[:-1])
    next(loader())["inputs"][:] = -1  # belongs to the caller
    assert_same_batches([next(loader())], REFERENCE[:1])


REFUSED: list[Any] = [
    ({"batch_size": 0}, "batch_size=0: expected a whole number of at least 1"),
    ({"skip_rows": [(3, 3)]}, "cannot skip rows (3, 3): expected (a, b) with 0 <= a < b <= "),
    ({"skip_rows": [(1, 2.5)]}, "skip_rows: [(1, 2.5)]: expected pairs of rows"),
    ({"num_workers": -1}, "num_workers=-1: expected at least 0"),
    ({"shard": (2, 2)}, "shard=(2, 2): expected (i, n) with 0 <= i < n"),
    ({"batch_size": [(0, 24), (70, 12)], "shard": (0, 24)}, "batch_size=12 cannot be divided"),
    ({"batch_size": 6, "sharding": 4}, "a batch of 6 rows of 32 does not divide over"),
    ({"sharding": 4, "shard": (0, 1)}, "give sharding= (jax arrays) or shard=(i, n) (nump"),
    ({"rows": DOCUMENTS}, "a loader is given rows, not a ArrayDocuments: pack a source"),
    ({"rows": "data/mine"}, "a loader is given rows, not a str: pack a source first"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    if devices := settings.get("sharding"):  # forks import this module: JAX begins with its devices
        settings = settings | {"sharding": on_devices(devices)}
    with pytest.raises(InputError) as caught:
        loader(**settings)
    assert message in str(caught.value)


def on_devices(count: int) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:count]), ("x",)), PartitionSpec("x"))


IN_A_WORKER = pytest.param({"num_workers": 1}, marks=pytest.mark.slow)


@pytest.mark.parametrize("settings", [{"prefetch": 0}, {"prefetch": 2}, IN_A_WORKER])
def test_an_error_while_reading_reaches_the_trainer(settings: dict[str, Any]) -> None:
    def broken(row: Any) -> Any:
        raise ZeroDivisionError("in the user's function")

    one = loader(rows=ROWS.map(broken), **settings)
    for _ in range(1 + ("prefetch" in settings)):  # an error is no end
        with pytest.raises(ZeroDivisionError, match="in the user's function"):
            next(one)
    assert one.wait_seconds > 0
    one.close()


def test_a_loader_tells_of_itself() -> None:
    one = loader([(0, 24), (70, 12)])
    assert repr(one) == f"Loader({len(ROWS)} rows in {len(one)} batches, at row 0)"
    assert repr(loader(10**4)).endswith(" rows in 1 batch, at row 0)")
    assert (one.batch_sizes, one.reiterable) == ([(0, 24), (70, 12)], False)
    assert (one.reads, one.halt(), one.step_of_row(len(ROWS))) == (None, None, None)
    with pytest.raises(InputError, match="step='0': expected a whole number"):
        one.batch_rows("0")  # type: ignore[arg-type]


def test_a_row_of_your_own_is_delivered_as_a_batch_is() -> None:
    one = loader(sharding=on_devices(4), layout="maxtext")
    assert_same_batches([one.sample()], REFERENCE[:1])
    assert_same_batches([one.deliver(one.sample())], [next(one)])


SHORT = jaxdata.pack(jaxdata.ArrayDocuments(documents(120, longest=39)), seq_len=32)
MIXED = jaxdata.mix({"a": SHORT}, epochs={"a": 1.5})
SIDES = [jaxdata.ArrayDocuments([[1, n, 0] for n in range(2, 9)], [[0, 1, 1]] * 7)] * 2
PAIRS = jaxdata.pairs(*SIDES, seq_len=4)
KINDS = {"packed": SHORT, "mixed": MIXED, "pairs": PAIRS, "part": SHORT[:20].map(dict)}
FACES = {"jax": jaxdata.Loader, "torch": jaxdata.torch.Loader}


def again(face: str = "jax", rows: Any = SHORT, **settings: Any) -> Any:
    """A loader that begins its rows again at each `iter()`."""
    return FACES[face](rows, **{"batch_size": 8, "reiterable": True, "prefetch": 0, **settings})


def rows_of(batches: Any, name: str = "inputs") -> list[list[int]]:
    """The rows of some batches, without those that complete one."""
    return [row.tolist() for batch in batches for row in batch[name] if row.any()]


@pytest.mark.parametrize("rows", KINDS.values(), ids=KINDS)
def test_each_iter_is_a_pass_of_the_next_epoch(rows: Any) -> None:
    name = "chosen_inputs" if rows is PAIRS else "inputs"
    one = again("torch" if rows is MIXED else "jax", rows)
    for number in range(3):
        assert one.passes == (number - 1 if number else 0)
        found = rows_of(one, name)
        first = 0 if rows is MIXED else number * len(rows)  # of an epoch, as grain numbers them
        expected = [rows[first + row][name].tolist() for row in range(len(rows))]
        assert sorted(found) == sorted(expected)
        assert (one.passes, one.next_row) == (number, len(rows))
    assert (rows_of(again(rows=rows), name) == found) == (rows is MIXED)


@settings(max_examples=10)
@given(st.sampled_from([*FACES]), st.integers(0, 40), st.sampled_from([4, 8]))
def test_a_state_in_any_pass_goes_on_there(face: str, steps: int, batch_size: int) -> None:
    """On two hosts of another batch size: first comes the rest of the pass."""
    one = again(face)
    for _ in range(steps // len(one)):
        list(one)
    list(islice(one, steps % len(one)))
    state = json.loads(json.dumps(one.get_state()))
    rest, following = rows_of(one), rows_of(islice(one, 2))
    parts = [{"shard": (n, 2)} if face == "jax" else {"rank": n, "world_size": 2} for n in (0, 1)]
    others = [again(face, batch_size=batch_size, **part) for part in parts]
    for other in others:
        other.set_state(state)
    assert sorted(rows_of(chain(*others))) == sorted(rest)
    found = rows_of(chain(*(islice(other, 16 // batch_size) for other in others)))
    assert sorted(found) == sorted(following)


def test_a_pass_is_left_by_going_anywhere() -> None:
    one = again()
    list(one)
    list(islice(one, 5))
    one.seek(step=3)
    assert (one.passes, one.next_row) == (1, 24)
    one.reset()
    assert (one.passes, one.next_row) == (0, 0)
    one.seek(row=len(SHORT))
    assert len(list(one)) == len(one)
    assert one.passes == 1, "at the end of one pass the next begins"


@pytest.mark.parametrize("drop", [False, True])
def test_the_end_by_count_is_an_end(drop: bool) -> None:
    """Trainers count steps, and never see the StopIteration."""
    one = again(reiterable=False, drop_remainder=drop)
    for _ in range(len(one)):
        next(one)
    with pytest.raises(InputError, match=r"at its end.* reset\(\), .*; or make it with reitera"):
        list(one)
    other = again(drop_remainder=drop)
    counts = [len([next(pass_) for _ in range(len(one))]) for pass_ in map(iter, [other] * 2)]
    assert (counts, other.passes) == ([len(one)] * 2, 1)
    with pytest.raises(StateMismatch, match=r"in pass 2 over the rows.* with reiterable=True"):
        one.set_state(other.get_state())


def test_a_run_that_halts_says_so_instead() -> None:
    phases = [jaxdata.Phase(rows=999, weights={"a": 1})]
    mixed = jaxdata.mix({"a": SHORT}, phases=phases, on_exhaustion="halt")
    for reiterable in (False, True):
        one = again(rows=mixed, reiterable=reiterable)
        for _ in range(2):
            with pytest.raises(SourceExhausted):
                list(one)
        assert one.step == len(one)
