"""MaxText's launcher and iterator, in a stand-in of its training loop and its checkpoints.

`README.md` of the room says when the same was run in MaxText itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grain
import jax
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.clients import maxtext
from tests.clients.tiny import CLOSE, ROWS, SEQ_LEN, VOCAB, Tiny, by_hand, train

FITTING = {
    "max_target_length": SEQ_LEN,
    "vocab_size": VOCAB,
    "global_batch_size_to_load": ROWS,
    "global_batch_size_to_train_on": ROWS,
    "global_batch_size_to_load_eval": 4,
    "dataset_type": "grain",
    "packing": True,
    "enable_rampup_batch_size": False,
    "expansion_factor_real_data": -1,
    "eval_interval": -1,
    "steps": 6,
    "log_period": 2,
    "enable_emergency_checkpoint": False,
    "logical_axis_rules": "train",
    "logical_axis_rules_for_eval": "eval",
}


class MetricLogger:
    """As MaxText's: what is recorded of a step."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def record_train_metrics(self, metrics: Any, step: int, step_time: float) -> None:
        metrics["scalar"]["perf/step_time_seconds"] = step_time


@dataclass
class StandIn:
    """Trains as MaxText does, and checkpoints what it would."""

    folder: Path
    interface: Any
    logger: Any
    model: Tiny = field(default_factory=Tiny)
    devices: int = 1
    changed: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    module: Any = None
    """its train.py"""
    step: int = 0
    """of its checkpoint"""
    stopped: str = ""

    def main(self, argv: list[str]) -> None:
        self.arguments = argv
        given = dict(each.split("=", 1) for each in argv[2:])
        config = SimpleNamespace(**{**FITTING, **self.changed, "steps": int(given["steps"])})
        positions = not config.enable_emergency_checkpoint
        mesh = Mesh(jax.devices()[: self.devices], ("data",))
        iterator, _ = self.interface.create_data_iterator(config, mesh)
        saved = self.folder / "process_0.json"
        assert isinstance(iterator.local_iterator, grain.experimental.ElasticIterator)
        if saved.exists() and positions:
            iterator.local_iterator.set_state(json.loads(saved.read_text()))
        first = self.module.get_first_step("model", self.step)
        for step in range(first, first + config.steps):
            try:
                self.losses += train(self.model, iterator, loss_of, 1)
            except (OSError, DatasetError) as failure:  # its loader_exception_guard, and its loop
                self.stopped = f"Training stopped: {failure}"
                break
            self.metrics.append({"scalar": {}})
            self.logger(config).record_train_metrics(self.metrics[-1], step, 0.5)
        if positions:
            saved.write_text(json.dumps(iterator.local_iterator.get_state()))
        iterator.local_iterator.close()


def loss_of(model: Tiny, batch: Any) -> torch.Tensor:
    """As MaxText: documents by one segmentation, loss where the other is not 0."""
    ids = batch["inputs_segmentation"]
    costs = model.costs(batch["inputs"], batch["targets"], batch["inputs_position"], ids)
    kept = torch.from_numpy(jax.device_get(batch["targets_segmentation"]) != 0)
    return (costs * kept).sum() / kept.sum()


@pytest.fixture
def trainer(stand_in: Callable[..., Any], tmp_path: Path) -> StandIn:
    def get_input_data_sharding(config: Any, mesh: Any, rules: Any) -> NamedSharding:
        assert rules in ("train", "eval")
        return NamedSharding(mesh, PartitionSpec("data"))

    interface = stand_in("maxtext.input_pipeline.input_pipeline_interface")
    logger = type("OfThisTest", (MetricLogger,), {})
    stand_in("maxtext.utils.sharding", get_input_data_sharding=get_input_data_sharding)
    stand_in("maxtext.common.metric_logger", MetricLogger=logger)
    made = StandIn(tmp_path, interface, logger)
    made.module = stand_in("maxtext.trainers.pre_train.train", main=made.main)
    made.module.get_first_step = lambda model, state: state
    return made


@pytest.fixture
def run_file(run: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(run))  # JSON is YAML
    return f"jaxdata={path}"


def mesh(devices: int = 1) -> Mesh:
    return Mesh(jax.devices()[:devices], ("data",))


def launch(run_file: str, steps: int) -> None:
    maxtext.main(["base.yml", run_file, f"steps={steps}"])


def test_six_steps_by_hand(trainer: StandIn, run: Any, run_file: str) -> None:
    launch(run_file, 6)
    model, native = Tiny(), jaxdata.load(run)
    batches, _ = maxtext.create_data_iterator(run)(SimpleNamespace(**FITTING), mesh())
    for loss, rows in zip(trainer.losses, native, strict=False):
        assert abs(loss - by_hand(model, rows)) < CLOSE
        assert [loss] == list(train(model, batches, loss_of, 1))
    assert len(trainer.losses) == 6
    # Three and three are six to the bit, on other devices, too.
    whole, trainer.losses, trainer.model = trainer.losses, [], Tiny()
    (trainer.folder / "process_0.json").unlink()
    launch(run_file, 3)
    trainer.devices = 4
    launch(run_file, 3)
    assert trainer.losses == whole
    first, second, third = (each["scalar"] for each in trainer.metrics[:3])
    assert first.keys() == third.keys() > second.keys() == {"perf/step_time_seconds"}
    assert 0 < first["data/tokens/pages"] < third["data/tokens/pages"]


def test_with_balance_accumulated_micro_batches_share_the_work(trainer: StandIn, run: Any) -> None:
    run["pack"] = {**run["pack"], "strategy": "pad"}
    run["curriculum"] = [{"rows": 60, "mix": {"pages": 1}}]
    batches = {}
    for balance in (None, "attention"):
        run["loader"] = {"batch_size": 16, "balance": balance}
        sizes = {"global_batch_size_to_load": 16, "global_batch_size_to_train_on": 16}
        config = SimpleNamespace(**FITTING | sizes, gradient_accumulation_steps=2)
        iterator, _ = maxtext.create_data_iterator(run)(config, mesh(2))
        batches[balance] = jax.device_get(next(iterator))
        iterator.loader.close()
    rows = [sorted(batch["inputs"].tolist()) for batch in batches.values()]
    assert rows[0] == rows[1]
    native = jaxdata.load(
        run, loader={"microbatches": 2}, sharding=NamedSharding(mesh(2), PartitionSpec("data"))
    )
    dealt = jax.device_get(next(native))["inputs"].reshape(2, 2, 4, SEQ_LEN)  # by device
    # As MaxText accumulates: number j of k is rows j, j + k, … of the global batch.
    taken = batches["attention"]["inputs"].reshape(8, 2, SEQ_LEN).swapaxes(0, 1)
    for number in range(2):
        assert (taken[number] == dealt[:, number].reshape(8, SEQ_LEN)).all()
    full = (
        (batches["attention"]["inputs_segmentation"] > 0).all(axis=-1).reshape(2, 4, 2).sum(axis=1)
    )
    assert full.max() - full.min() <= 1


def test_a_checkpoint_without_position_goes_on_by_its_step(
    trainer: StandIn, run: Any, run_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Emergency checkpoints hold the model alone."""
    trainer.changed = {"enable_emergency_checkpoint": True}
    launch(run_file, 3)
    trainer.step = 3
    assert not caplog.records
    launch(run_file, 1)
    assert "has no position of the data: going on by its step 3, at row 24" in caplog.text
    expected = [by_hand(Tiny(), rows) for rows in islice(jaxdata.load(run), 3, 4)]
    trainer.model, trainer.losses = Tiny(), []
    launch(run_file, 1)
    assert trainer.losses == pytest.approx(expected, abs=CLOSE)


def test_checkpoints_without_position_need_the_launcher(
    trainer: StandIn, run: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("enable_emergency_checkpoint", "enable_multi_tier_checkpointing"):
        config = SimpleNamespace(**{**FITTING, name: True})
        with pytest.raises(InputError, match=f"{name}=True saves no position of the data: train"):
            maxtext.create_data_iterator(run)(config, mesh())
    trainer.changed = {"enable_emergency_checkpoint": True}
    skipping = {**run, "loader": {**run["loader"], "skip_rows": [[8, 16]]}}
    (tmp_path / "skipping.yaml").write_text(json.dumps(skipping))
    with pytest.raises(InputError, match="its step does not tell which rows were skipped"):
        launch(f"jaxdata={tmp_path}/skipping.yaml", 1)
    del trainer.module.get_first_step
    with pytest.raises(InputError, match="enable_emergency_checkpoint=True saves no position"):
        launch(f"jaxdata={tmp_path}/skipping.yaml", 1)


def test_what_ended_the_data_is_raised_at_the_end(
    trainer: StandIn, run_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MaxText itself ends as if it were done."""
    plain = jaxdata.Loader.__next__

    def fails_at_the_third(loader: Any) -> Any:
        if loader.next_row == 2 * ROWS:
            raise DatasetError("a shard is damaged")
        return plain(loader)

    monkeypatch.setattr(jaxdata.Loader, "__next__", fails_at_the_third)
    with pytest.raises(DatasetError, match="a shard is damaged"):
        launch(run_file, 6)
    assert trainer.stopped == "Training stopped: a shard is damaged"
    assert len(trainer.losses) == 2


def test_arguments_that_maxtext_needs(trainer: StandIn, run_file: str) -> None:
    launch(run_file, 1)
    assert trainer.arguments[:3] == ["maxtext", "base.yml", "steps=1"]
    assert "dataset_type=grain" in trainer.arguments
    assert not [each for each in trainer.arguments if each.startswith("jaxdata")]
    with pytest.raises(InputError, match=r"expected one argument jaxdata=<config>, got 0"):
        maxtext.main(["base.yml"])
    with pytest.raises(InputError, match=r"dataset_type=hf and jaxdata=.* remove dataset_type"):
        maxtext.main(["base.yml", run_file, "dataset_type=hf"])


def test_every_evaluation_has_the_same_rows(trainer: StandIn, run: Any) -> None:
    config = SimpleNamespace(**{**FITTING, "eval_interval": 1})
    _, evaluation = maxtext.create_data_iterator(run)(config, mesh())
    assert evaluation is not None
    passes = []
    next(evaluation)  # an evaluation that eval_steps broke off
    for _ in range(2):
        passes.append([jax.device_get(batch["inputs"]).tolist() for batch in evaluation])
    evaluation.reset()
    assert passes[0] == passes[1]
    assert passes[0][0] == jax.device_get(next(evaluation)["inputs"]).tolist()
    assert len(passes[0]) == 5
    assert len(passes[0][0]) == 4


@pytest.mark.parametrize("halts", [False, True])
def test_the_end_of_the_rows_stops_training(
    trainer: StandIn, run: Any, halts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dry = {"curriculum": [{"rows": 10**6, "mix": {"pages": 0.6, "code": 0.4}}]}
    halting = {**run, **dry, "on_exhaustion": "halt"}
    config = SimpleNamespace(**{**FITTING, "steps": 10**6})
    iterator, _ = maxtext.create_data_iterator(halting if halts else run)(config, mesh())
    steps = sum(1 for _ in iterator)
    assert steps == len(iterator.loader)
    assert f"the rows end after step {steps}, before MaxText's steps=1000000" in caplog.text


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"max_target_length": 64}, "MaxText's max_target_length is 64: set pack.seq_len to 64"),
        ({"vocab_size": 512}, "ids below 1,000, but MaxText's vocab_size is 512"),
        ({"global_batch_size_to_load": 16}, "loader.batch_size=8, but MaxText's global batch is 1"),
        ({"global_batch_size_to_train_on": 4}, "batches of 8 rows and trains on 4 of them"),
        ({"packing": False}, "packing=False lets some attention kernels mix the documents"),
        ({"enable_rampup_batch_size": True}, "loses the rows it holds back at every checkpoint"),
        ({"expansion_factor_real_data": 2}, "expansion_factor_real_data=2 reads for other hosts"),
        ({"colocated_python_data_input": True}, "moves iterators to other processes"),
        ({"enable_diloco": True}, "trains replicas on shapes of batches that are not rows"),
        ({"reuse_example_batch": 1}, "reuse_example_batch=1 trains on its first batch again and"),
        ({"use_tunix_gradient_accumulation": True}, "weighs targets by how few their micro-batch"),
        ({"dataset_type": "synthetic"}, "keeps no position of the data in checkpoints"),
    ],
)
def test_refused_before_the_first_step(
    trainer: StandIn, run_file: str, changed: Any, says: str
) -> None:
    trainer.changed = changed
    with pytest.raises(InputError, match=says):
        launch(run_file, 1)


def test_a_position_of_maxtexts_own_data_is_refused(trainer: StandIn, run_file: str) -> None:
    (trainer.folder / "process_0.json").write_text('{"_global_next_index": 24}')
    with pytest.raises(StateMismatch, match="it lacks 'fingerprint', it lacks 'version'"):
        launch(run_file, 1)
