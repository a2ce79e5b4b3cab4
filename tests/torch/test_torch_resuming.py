"""Each loader goes on where another stopped, at any step."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from torch.utils.data import DataLoader

import jaxdata
import jaxdata.torch
from jaxdata.testing import assert_same_batches
from tests.torch.conftest import (
    BATCH,
    STEP,
    check,
    jax_state,
    loader,
    state_by_itself,
    state_of_batches,
    state_of_stateful,
    stateful,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


WAYS = {
    "jax": jax_state,
    "torch": state_by_itself,
    "Batches": state_of_batches,
    "StatefulDataLoader, 0 workers": state_of_stateful(0),
    "StatefulDataLoader, 1 worker": state_of_stateful(1),
    "StatefulDataLoader, 3 workers": state_of_stateful(3),
    "StatefulDataLoader, 2 workers, rare snapshots": state_of_stateful(2, every=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_goes_on_from_the_state_of_each(rows: Any, reference: Any, way: str) -> None:
    state = json.loads(json.dumps(WAYS[way](rows)))
    left = reference[STEP:]
    one = loader(rows)
    one.load_state_dict(state)
    assert one.get_state() == jax_state(rows), "one state for all"
    assert one.state_dict() == {**jax_state(rows), "skips": [], "amendments": []}
    check(one, left)
    for workers in (0, 2):
        again = loader(rows)
        again.load_state_dict(state)
        check(stateful(again, workers), left)
    batches = jaxdata.torch.Batches(rows, batch_size=BATCH)
    batches.set_state(state)
    check(DataLoader(batches, batch_size=None, num_workers=2), left)
    jax = jaxdata.Loader(rows, batch_size=BATCH)
    plain = loader(rows)
    plain.load_state_dict(state)
    jax.set_state(plain.state_dict())
    assert_same_batches(jax, left)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("workers", "every"), [(0, 1), (1, 4), (3, 1), (3, 4)])
def test_a_stateful_data_loader_restores_itself_at_every_step(
    rows: Any, reference: Any, workers: int, every: int
) -> None:
    one = stateful(loader(rows), workers, snapshot_every_n_steps=every)
    states = [one.state_dict()]
    for _ in one:
        states.append(json.loads(json.dumps(one.state_dict())))
    assert len(states) == len(reference) + 1
    for step in (0, 1, 6, len(reference) - 1):
        again = stateful(loader(rows), workers, snapshot_every_n_steps=every)
        again.load_state_dict(states[step])
        check(again, reference[step:])


def test_a_run_that_changes_all_the_time(rows: Any) -> None:
    """Rows come once, whatever reads them, with other workers, ranks and sizes at every stop."""
    state: Any = None
    seen: list[np.ndarray] = []
    plan = [(1, 2, 12), (2, 1, 8), (3, 0, 24), (1, 3, 20), (2, 2, 12)]
    for number, (world_size, workers, size) in enumerate(plan):
        last = number == len(plan) - 1
        parts, states = [], []
        for rank in range(world_size):
            one = loader(rows, size, rank=rank, world_size=world_size)
            if state is not None:
                one.load_state_dict(state)
            found = stateful(one, workers)
            parts.append(list(islice(found, None if last else 5)))
            states.append(found.state_dict())
        seen += [
            torch.cat([p["inputs"] for p in step]).numpy() for step in zip(*parts, strict=True)
        ]
        state = states[-1]
    whole = np.concatenate(seen)[: len(rows)]
    assert np.array_equal(whole, np.stack([rows[k]["inputs"] for k in range(len(rows))]))


def test_a_stateful_data_loader_of_batches_restores_itself(rows: Any, reference: Any) -> None:
    one = stateful(jaxdata.torch.Batches(rows, batch_size=BATCH), 2)
    list(islice(one, STEP))
    again = stateful(jaxdata.torch.Batches(rows, batch_size=BATCH), 2)
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
    check(again, reference[STEP:])
