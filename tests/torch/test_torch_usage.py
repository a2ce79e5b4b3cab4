"""Configs, processes, and what is refused in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import jaxdata
import jaxdata.torch
from jaxdata.errors import DatasetError, InputError, StateMismatch
from jaxdata.installing import install_command
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset
from tests.conftest import ROOT
from tests.feed.pod import end
from tests.torch.conftest import (
    BATCH,
    check,
    loader,
    stateful,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def test_remote_data_is_refused_in_a_forked_worker() -> None:
    dataset = write_dataset("memory://torch", {"train/a": distinct_documents([30, 50, 20] * 20)})
    rows = jaxdata.pack(dataset.source("train", "a"), seq_len=32)
    next(loader(rows, 2))
    for dataset in (loader(rows, 2), jaxdata.torch.Batches(rows, batch_size=2)):
        with pytest.raises(DatasetError, match=r"forked process: start workers with 'spawn'"):
            next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))


def test_a_running_loader_may_be_forked(rows: Any, reference: Any) -> None:
    """Its thread and its worker processes stay with the parent, who goes on."""
    one = loader(rows, num_workers=2)
    check([next(one)], reference[:1])
    check(stateful(one, 2), reference[1:])
    check(one, reference[1:])
    one.close()


def test_a_config_is_loaded(path: Path) -> None:
    config = {
        "dataset": str(path),
        "pack": {"seq_len": 32},
        "curriculum": {"mix": {"web": 1, "code": 1}},
        "loader": {"batch_size": 6, "num_workers": 1},
        "on_exhaustion": "renormalize",
    }
    expected = list(jaxdata.load(config))
    check(jaxdata.torch.load(config), expected)
    second = jaxdata.torch.load(config, rank=1, world_size=2, **{"loader.layout": "megatron"})
    assert np.array_equal(next(second)["tokens"].numpy(), expected[0]["inputs"][3:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 1}, "rank=1, world_size=None: give both"),
        ({"rank": 0, "world_size": 5}, "batch_size=12 cannot be divided among 5 shards"),
        ({"sharding": object()}, "give rank= and world_size= for tensors"),
        ({"expand": "device"}, "expand='device' makes arrays on devices"),
    ],
)
def test_settings_that_make_no_sense(rows: Any, settings: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        loader(rows, **settings)
    assert message in str(caught.value)


def test_the_states_of_others_are_refused(rows: Any) -> None:
    one = loader(rows)
    with pytest.raises(StateMismatch, match="has none of a jaxdata"):
        one.load_state_dict(stateful(list(range(10)), 1).state_dict())
    with pytest.raises(StateMismatch, match="this is not a loader state"):
        one.load_state_dict({"model": 3})


def test_ranks_are_those_of_torchrun(
    rows: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    check([next(loader(rows))], [{name: a[4:8] for name, a in reference[0].items()}])


def test_without_torch_it_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; import jaxdata; jaxdata.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = f"torch is not installed; install it with: {install_command('torch')}"
    assert expected in done.stderr


def run_processes(path: Path, output: Path, state: Any, steps: int | None) -> Any:
    """Two processes of `torch.distributed`; each writes its part and its state."""
    output.mkdir()
    job = {"path": str(path), "output": str(output), "state": state, "steps": steps}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.ranks", json.dumps(job), str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    finally:
        end(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    parts = [np.load(output / f"{rank}.npz") for rank in range(2)]
    states = [json.loads((output / f"{rank}.json").read_text()) for rank in range(2)]
    assert states[0] == states[1]
    return {key: np.concatenate([part[key] for part in parts], axis=1) for key in parts[0]}, states


@pytest.mark.exhaustive
def test_two_processes_of_torch_distributed(
    path: Path, rows: Any, reference: Any, tmp_path: Path
) -> None:
    found, states = run_processes(path, tmp_path / "first", None, 6)
    jax = jaxdata.Loader(rows, batch_size=BATCH)
    jax.set_state(states[0])
    assert_same_batches([next(jax) for _ in range(4)], reference[6:10])
    second, _ = run_processes(path, tmp_path / "second", jax.get_state(), None)
    for key, array in found.items():
        whole = np.concatenate([array, np.stack([b[key] for b in reference[6:10]]), second[key]])
        assert np.array_equal(whole, np.stack([batch[key] for batch in reference]))
