"""States in torch are parsed too, a `StatefulDataLoader`'s and those of its workers."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata
import jaxdata.torch
from jaxdata.errors import JaxdataError, StateMismatch
from jaxdata.feed.saved_state import sealed
from jaxdata.torch.worker_steps import Turn
from tests.feed.mutations import mutations
from tests.feed.test_loader import ROWS

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
COUNTS = [1_000, pytest.param(10_000, marks=pytest.mark.exhaustive)]
WORKERS = 2


def loader(worker: bool = False) -> jaxdata.torch.Loader:
    one = jaxdata.torch.Loader(ROWS, batch_size=8, skip_rows=[(40, 50)], prefetch=0)
    if worker:
        one._become_worker(Turn(0, WORKERS, 0))
    return one


def plain(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.fixture(scope="module")
def stateful() -> Any:
    """The state of a `StatefulDataLoader` with workers, after some steps."""
    one = StatefulDataLoader(loader(), batch_size=None, num_workers=WORKERS)
    list(islice(one, 5))
    return plain(one.state_dict())


def taken(one: jaxdata.torch.Loader, state: Any) -> bool:
    """Whether a state is taken; a step beyond the end is refused as `seek` refuses it."""
    try:
        one.load_state_dict(state)
    except JaxdataError:
        return False
    return True


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_states(count: int) -> None:
    one = loader()
    list(islice(one, 5))
    state = plain(one.state_dict())
    for each in mutations(state, count, seed=count):
        one = loader()
        if taken(one, each) and "checksum" in each:
            assert one.state_dict() == state, each


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_states_of_a_worker(count: int) -> None:
    one = loader(worker=True)
    list(islice(one, 3))
    state = plain(one.state_dict())
    assert state["turn"]["ahead"] == 1
    for each in mutations(state, count, seed=count):
        one = loader(worker=True)
        if taken(one, each) and "checksum" in each:
            assert plain(one.state_dict()) == state, each


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_states_of_a_data_loader(stateful: Any, count: int) -> None:
    """What torchdata says of them has no checksum: which worker was the last, and steps since."""
    states, followed = [], 0
    for worker in stateful["_snapshot"]["_worker_snapshots"].values():
        one = loader()
        one.load_state_dict(worker["fetcher_state"]["dataset_iter_state"])
        states.append(one.state_dict())
    for each in mutations(stateful, count, seed=count):
        one = loader()
        if taken(one, each):
            one.seek(step=one.step - (each.get("_steps_since_snapshot") or 0))
            assert one.state_dict() in states, each
            followed += 1
    assert followed > count / 10


def test_a_turn_is_checked_by_name(stateful: Any) -> None:
    one = loader(worker=True)
    state = one.state_dict()
    for wrong in ({"ahead": WORKERS}, {"ahead": -1}, {"ahead": "1"}, {"batch_sizes": [[0, 0]]}):
        with pytest.raises(
            StateMismatch, match=r"has turn .*: expected steps `ahead`, fewer than 2"
        ):
            one.load_state_dict(sealed({**state, "turn": {**state["turn"], **wrong}}))
    with pytest.raises(StateMismatch, match="has turn None: expected steps `ahead`"):
        one.load_state_dict(loader().state_dict())
    with pytest.raises(StateMismatch, match="has _steps_since_snapshot 'x': expected a whole"):
        loader().load_state_dict({**stateful, "_steps_since_snapshot": "x"})


def test_a_damaged_state_in_a_worker_process(stateful: Any) -> None:
    """As torchdata hands it to the copy in a worker."""
    inner = stateful["_snapshot"]["_worker_snapshots"]["worker_1"]["fetcher_state"]
    inner["dataset_iter_state"]["next_row"] += 8
    again = StatefulDataLoader(loader(), batch_size=None, num_workers=WORKERS)
    again.load_state_dict(stateful)
    with pytest.raises(StateMismatch, match="the loader state is damaged: its checksum is"):
        list(again)
