"""MaxText's launcher and iterator, in a stand-in of what calls them.

`installed/test_maxtext.py` trains with it.
"""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grain
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.clients import maxtext
from jaxdata.feed.layouts import maxtext as layout
from tests import builders
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB

FITTING = {"max_target_length": SEQ_LEN, "vocab_size": VOCAB, "steps": 6, "eval_interval": -1}
FITTING |= {"global_batch_size_to_load": ROWS, "global_batch_size_to_train_on": ROWS}
FITTING |= {"global_batch_size_to_load_eval": 4, "dataset_type": "grain", "packing": True}
FITTING |= {"logical_axis_rules": "train", "logical_axis_rules_for_eval": "eval"}


def mesh(devices: int = 1) -> Mesh:
    return Mesh(jax.devices()[:devices], ("data",))


class Trainer:
    """MaxText's train.py, of which a checkpoint is its step and what it saves of its data."""

    def __init__(self, stand_in: Callable[..., Any], folder: Path) -> None:
        def get_input_data_sharding(config: Any, mesh: Any, rules: Any) -> NamedSharding:
            assert rules in ("train", "eval")
            return NamedSharding(mesh, PartitionSpec("data"))

        stand_in("maxtext.utils.sharding", get_input_data_sharding=get_input_data_sharding)
        self.interface = stand_in("maxtext.input_pipeline.input_pipeline_interface")
        self.module = stand_in("maxtext.trainers.pre_train.train", main=self.main)
        self.module.get_first_step = lambda model, state: state
        self.changed, self.folder = dict[str, Any](), folder
        self.devices, self.step, self.stopped = 1, 0, ""
        self.position: Any = None
        self.arguments: list[str] = []
        self.batches: list[Any] = []

    def main(self, argv: list[str]) -> None:
        self.arguments = argv
        config = SimpleNamespace(**FITTING | self.changed)
        iterator, _ = self.interface.create_data_iterator(config, mesh(self.devices))
        assert isinstance(iterator.local_iterator, grain.experimental.ElasticIterator)
        if self.position is not None:
            iterator.local_iterator.set_state(json.loads(json.dumps(self.position)))
        first = self.module.get_first_step("model", self.step)
        try:
            for self.step in range(first + 1, first + 1 + config.steps):
                self.batches.append(jax.device_get(next(iterator)))
        except (OSError, DatasetError) as failure:  # its loader_exception_guard, and its loop
            self.stopped = f"Training stopped: {failure}"
        if not getattr(config, "enable_emergency_checkpoint", False):
            self.position = iterator.local_iterator.get_state()
        iterator.local_iterator.close()

    def launch(self, run: Any, **changed: Any) -> None:
        self.changed = changed
        maxtext.main(["base.yml", f"jaxdata={builders.run(self.folder, **run)}", "steps=1"])


@pytest.fixture
def trainer(stand_in: Callable[..., Any], tmp_path: Path) -> Trainer:
    return Trainer(stand_in, tmp_path)


def iterators(run: Any, devices: int = 1, **changed: Any) -> Any:
    return maxtext.create_data_iterator(run)(SimpleNamespace(**FITTING | changed), mesh(devices))


def test_it_trains_on_the_rows_and_goes_on_by_position(trainer: Any, run: Any, caplog: Any) -> None:
    trainer.launch(run, steps=3)
    trainer.devices = 4
    trainer.launch(run, steps=3)
    assert not caplog.records, "it does not go on by its step"
    for found, rows in zip(trainer.batches, islice(jaxdata.load(run), 6), strict=True):
        expected = layout(rows)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
    assert trainer.arguments[:3] == ["maxtext", "base.yml", "steps=1"]
    assert "dataset_type=grain" in trainer.arguments
    assert not [each for each in trainer.arguments if each.startswith("jaxdata")]
    trainer.position = {"_global_next_index": 24}
    with pytest.raises(StateMismatch, match="it lacks 'fingerprint', it lacks 'version'"):
        trainer.launch(run)


def test_with_balance_accumulated_micro_batches_share_the_work(trainer: Trainer, run: Any) -> None:
    run["pack"] = {**run["pack"], "strategy": "pad"}
    run["curriculum"] = [{"rows": 60, "mix": {"pages": 1}}]
    batches = {}
    for balance in (None, "attention"):
        run["loader"] = {"batch_size": 16, "balance": balance}
        sizes = {"global_batch_size_to_load": 16, "global_batch_size_to_train_on": 16}
        iterator, _ = iterators(run, 2, **sizes, gradient_accumulation_steps=2)
        batches[balance] = jax.device_get(next(iterator))
        iterator.loader.close()
    rows = [sorted(batch["inputs"].tolist()) for batch in batches.values()]
    assert rows[0] == rows[1]
    sharding = NamedSharding(mesh(2), PartitionSpec("data"))
    native = jaxdata.load(run, loader={"microbatches": 2}, sharding=sharding)
    dealt = jax.device_get(next(native))["inputs"].reshape(2, 2, 4, SEQ_LEN)  # by device
    # As MaxText accumulates: number j of k is rows j, j + k, … of the global batch.
    taken = batches["attention"]["inputs"].reshape(8, 2, SEQ_LEN).swapaxes(0, 1)
    for number in range(2):
        assert (taken[number] == dealt[:, number].reshape(8, SEQ_LEN)).all()


def test_a_checkpoint_without_position_goes_on_by_step(trainer: Any, run: Any, caplog: Any) -> None:
    """Emergency checkpoints hold the model alone; only the launcher hears of their step."""
    emergency = {"enable_emergency_checkpoint": True}
    trainer.launch(run, steps=3, **emergency)
    assert not caplog.records
    trainer.launch(run, steps=1, **emergency)
    assert "has no position of the data: going on by its step 3, at row 24" in caplog.text
    (rows,) = islice(jaxdata.load(run), 3, 4)
    assert np.array_equal(trainer.batches[-1]["inputs"], rows["inputs"])
    for name in ("enable_emergency_checkpoint", "enable_multi_tier_checkpointing"):
        with pytest.raises(InputError, match=f"{name}=True saves no position of the data: train"):
            iterators(run, **{name: True})
    run["loader"] = {**run["loader"], "skip_rows": [[8, 16]]}
    with pytest.raises(InputError, match="its step does not tell which rows were skipped"):
        trainer.launch(run, **emergency)


def test_what_ended_the_data_is_raised_at_the_end(trainer: Any, run: Any, monkeypatch: Any) -> None:
    """MaxText itself ends as if it were done."""
    plain = jaxdata.Loader.__next__

    def fails_at_the_third(loader: Any) -> Any:
        if loader.next_row == 2 * ROWS:
            raise DatasetError("a shard is damaged")
        return plain(loader)

    monkeypatch.setattr(jaxdata.Loader, "__next__", fails_at_the_third)
    with pytest.raises(DatasetError, match="a shard is damaged"):
        trainer.launch(run)
    assert trainer.stopped == "Training stopped: a shard is damaged"
    assert len(trainer.batches) == 2


def test_every_evaluation_has_the_same_rows(trainer: Trainer, run: Any) -> None:
    _, evaluation = iterators(run, eval_interval=1)
    next(evaluation)  # an evaluation that eval_steps broke off
    passes = [[jax.device_get(batch["inputs"]).tolist() for batch in evaluation] for _ in range(2)]
    assert passes[0] == passes[1]
    assert [len(rows) for rows in passes[0]] == [4] * 5


@pytest.mark.parametrize("halts", [False, True])
def test_the_end_of_rows_stops_training(trainer: Any, run: Any, halts: bool, caplog: Any) -> None:
    dry = {"curriculum": [{"rows": 10**6, "mix": {"pages": 0.6, "code": 0.4}}]}
    halting = {**run, **dry, "on_exhaustion": "halt"}
    iterator, _ = iterators(halting if halts else run, steps=10**6)
    steps = sum(1 for _ in iterator)
    assert steps == len(iterator.loader)
    assert f"the rows end after step {steps}, before MaxText's steps=1000000" in caplog.text


def test_what_disagrees_is_refused_before_the_first_step(trainer: Trainer, run: Any) -> None:
    for changed, says in (
        ({"max_target_length": 64}, "MaxText's max_target_length is 64: set pack.seq_len to 64"),
        ({"vocab_size": 512}, "ids below 1,000, but MaxText's vocab_size is 512"),
        ({"global_batch_size_to_load": 16}, "loader.batch_size=8, but MaxText's global batch is 1"),
        ({"global_batch_size_to_train_on": 4}, "batches of 8 rows and trains on 4 of them"),
        ({"packing": False}, "packing=False of MaxText with a run of jaxdata: give True; without"),
        ({"expansion_factor_real_data": 2}, "expansion_factor_real_data=2 of MaxText .*: give -1"),
        ({"enable_diloco": True}, "give False; replicas train on shapes of batches that are not"),
    ):
        with pytest.raises(InputError, match=says):
            iterators(run, **changed)
    for arguments, says in (
        ([], r"expected one argument jaxdata=<config>, got 0"),
        (["jaxdata=a.yaml", "dataset_type=hf"], r"dataset_type=hf and jaxdata=.* remove dataset_t"),
    ):
        with pytest.raises(InputError, match=says):
            maxtext.main(["base.yml", *arguments])
