"""The policies of `tools/examples`: their papers' formulas, and the same decisions after a kill."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxdata
from tests.builders import documents
from tests.conftest import ROOT

NAMES = ("web", "code", "books")
POLICIES: dict[str, Callable[..., Any]] = {
    name: runpy.run_path(str(ROOT / f"tools/examples/{name}.py"))[kind]
    for name, kind in {"odm": "OnlineDataMixing", "doremi": "ExcessLoss"}.items()
}
LOSSES = [
    ([3.5, 1.2, 0.0], [7, 4, 0]),
    ([2.0, 9.0, 0.5], [4, 3, 2]),
    ([8.25, 0.0, 4.0], [11, 0, 2]),
    ([1.5, 2.25, 6.0], [6, 3, 2]),
]
# Computed from the papers' formulas in decimal arithmetic of 40 digits.
TABLES = {
    "odm": [
        [0.333333333333, 0.333333333333, 0.333333333333],
        [0.333333333333, 0.333333333333, 0.333333333333],
        [0.331009876702, 0.336161421097, 0.332828702201],
        [0.323639716544, 0.334137001251, 0.342223282205],
    ],
    "doremi": [
        [0.412247692227, 0.337580286594, 0.250172021178],
        [0.087593045304, 0.870833431235, 0.041573523461],
        [0.010634228783, 0.971968066681, 0.017397704535],
        [0.005968341904, 0.849489991397, 0.144541666700],
    ],
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gives_the_weights_of_its_paper(name: str) -> None:
    policy = POLICIES[name](3)
    for (sums, counts), expected in zip(LOSSES, TABLES[name], strict=True):
        assert policy.update(sums, counts) == pytest.approx(expected, abs=1e-11)


def steered(name: str, steps: int, saved: str | None = None) -> list[str]:
    """What is saved after each step of a run, from a state on."""
    rows = {
        each: jaxdata.pack(jaxdata.ArrayDocuments(documents(80, seed=seed)), seq_len=32)
        for seed, each in enumerate(NAMES)
    }
    mixed = jaxdata.mix(rows, weights=dict.fromkeys(rows, 1), on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=4, extras=["source"])
    policy = POLICIES[name](3)
    if saved:
        kept, state = json.loads(saved)
        policy = POLICIES[name](3, **kept)
        loader.set_state(state)
    found = []
    while loader.step < steps:
        batch = next(loader)
        losses = np.where(batch["source"] == 1, 2.0, 1 / (1 + batch["positions"]))
        weights = policy.update(*jaxdata.losses_by_source(batch, losses, sources=3))
        loader.reweigh(dict(zip(loader.source_names, weights, strict=True)))
        found.append(json.dumps([vars(policy), loader.get_state()]))
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_a_killed_and_resumed_run_takes_the_same_decisions(name: str) -> None:
    whole = steered(name, 8)
    amendments = json.loads(whole[-1])[1]["amendments"]
    assert len(amendments) == 8
    assert len({json.dumps(each["weights"]) for each in amendments}) > 4
    for step in (0, 3, 6):
        assert steered(name, 8, whole[step]) == whole[step + 1 :]
