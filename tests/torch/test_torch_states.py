"""States in torch: of a loader, of the workers of a `DataLoader`, of ranks; damaged ones too."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
import torch.multiprocessing
from hypothesis import given, settings, strategies as st

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.feed.state import sealed
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import ROWS
from tests.torch.conftest import BATCH, check, loader, stateful

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
STEP = 7


def plain(state: Any) -> Any:
    return json.loads(json.dumps(state))


class Workers:
    """What a `DataLoader` makes of a loader, without processes: steps of its copies in turn."""

    def __init__(self, make: Callable[[], jaxdata.torch.Loader], number: int, state: Any) -> None:
        self.copies = [make() for _ in range(number or 1)]
        for worker, one in enumerate(self.copies):
            if state is not None:
                one.load_state_dict(state)
            if number:
                one._become_worker(worker, number)
        self.last = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            for number, one in enumerate(self.copies):
                batch = next(one, None)
                if batch is None:
                    return
                self.last = number
                yield batch

    def state(self) -> Any:
        return plain(self.copies[self.last].state_dict())


SIZES = st.sampled_from([6, 12, 18])
LEG = st.tuples(st.integers(1, 3), st.integers(0, 3), SIZES, st.integers(1, 9))
LEGS = st.lists(LEG, max_size=5)


@cache
def inputs() -> Any:
    return np.stack([ROWS[row]["inputs"] for row in range(len(ROWS))])


@settings(max_examples=12)
@given(LEGS)
def test_a_run_of_ever_other_ranks_workers_and_sizes_has_every_row_once(legs: Any) -> None:
    state, seen = None, list[Any]()
    for world_size, workers, size, steps in [*legs, (1, 2, 7, None)]:
        parts, states = [], []
        for rank in range(world_size):
            given_ = {"rank": rank, "world_size": world_size, "prefetch": 0}
            one = Workers(lambda s=size, more=given_: loader(ROWS, s, **more), workers, state)
            parts.append(list(islice(one, steps)))
            states.append(one.state())
        whole = [{**each, "turn": None, "checksum": None} for each in states]
        assert all(each == whole[0] for each in whole), "ranks have one state"
        seen += [torch.cat([part["inputs"] for part in step]) for step in zip(*parts, strict=True)]
        state = states[0]
    assert np.array_equal(torch.cat(seen).numpy()[: len(ROWS)], inputs())


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (2, 3)])
def test_a_stateful_data_loader_goes_on_as_itself_and_as_any_other(
    rows: Any, reference: Any, workers: int, every: int
) -> None:
    one = stateful(loader(rows), workers, snapshot_every_n_steps=every)
    list(islice(one, STEP))
    state = plain(one.state_dict())
    again = stateful(loader(rows), workers, snapshot_every_n_steps=every)
    again.load_state_dict(state)
    check(again, reference[STEP:])
    other = loader(rows)
    other.load_state_dict(state)
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH)
    assert other.get_state() == batches.get_state(STEP), "one state for all"
    batches.set_state(state)
    twin = stateful(batches, 0)
    list(islice(twin, 2))
    third = stateful(batches, 0)
    third.load_state_dict(plain(twin.state_dict()))
    check(islice(third, 1), reference[STEP + 2 : STEP + 3])
    jax = jaxdata.Loader(rows, batch_size=BATCH)
    jax.set_state(other.state_dict())
    check(islice(other, 2), reference[STEP : STEP + 2])
    check([batches[0]], reference[STEP : STEP + 1])
    assert_same_batches([next(jax)], reference[STEP : STEP + 1])


def test_torchs_own_checkpoints(rows: Any, tmp_path: Path) -> None:
    """Of a state in `torch.distributed.checkpoint` nothing is lost; a plain file needs no code."""
    one = loader(rows)
    next(one)
    one.skip(30, 40)
    next(one)
    torch.distributed.checkpoint.save({"loader": one}, checkpoint_id=tmp_path / "all")
    other = loader(rows, 6)
    torch.distributed.checkpoint.load({"loader": other}, checkpoint_id=tmp_path / "all")
    assert other.state_dict() == one.state_dict()
    torch.save(one.state_dict(), tmp_path / "one")
    assert torch.load(tmp_path / "one", weights_only=True) == one.state_dict()


@pytest.fixture(scope="module")
def of_a_data_loader() -> Any:
    """The state of a `StatefulDataLoader` with workers, after some steps."""
    one = stateful(loader(ROWS, 8, skip_rows=[(40, 50)], prefetch=0), 2)
    list(islice(one, 5))
    return plain(one.state_dict())


@pytest.mark.parametrize("steps", [None, -1, 0.5, True, "1"])
def test_a_damaged_state_is_refused(of_a_data_loader: Any, steps: Any) -> None:
    """What torchdata says of it has no checksum."""
    damaged = {**of_a_data_loader, "_steps_since_snapshot": steps}
    for state in (damaged, {"_snapshot": {"_last_yielded_worker_id": 0}}, {"_snapshot": []}):
        with pytest.raises(StateMismatch, match="has none of a jaxdata"):
            loader(ROWS, 8, skip_rows=[(40, 50)]).load_state_dict(state)


ALONE = "the workers of this StatefulDataLoader cannot resume independently: its state"


def test_workers_cannot_go_on_alone_with_other_sizes_or_turns(of_a_data_loader: Any) -> None:
    inner = of_a_data_loader["_snapshot"]["_worker_snapshots"]["worker_1"]["fetcher_state"]
    state = inner["dataset_iter_state"]
    right, skips = state["turn"], [(40, 50)]
    turns = [{**right, "ahead": 2}, {**right, "batch_sizes": [[0, 4]]}]
    wrong = [(8, skips, sealed({**state, "turn": turn})) for turn in turns]
    wrong += [(4, skips, state), (8, [*skips, (700, 705)], state)]
    for size, skipped, given_ in wrong:
        one = loader(ROWS, size, skip_rows=skipped)
        one._become_worker(1, 2)
        with pytest.raises(StateMismatch, match=ALONE):
            one.load_state_dict(given_)
    for more, says in (
        ({"device": "cpu"}, r"device='cpu' in a worker of a DataLoader: leave it out"),
        ({"reiterable": True}, r"reiterable=True in a worker of a DataLoader: the loader"),
    ):
        with pytest.raises(InputError, match=says):
            loader(ROWS, **more)._become_worker(0, 1)
