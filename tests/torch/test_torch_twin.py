"""The twin of the trainer: the same model, from the same weights, on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.seeds import derive
from jaxdata.config import Config, load_config, open_data
from jaxdata.config.train_section import ModelSettings, OptimizerSettings, TrainSettings
from jaxdata.train.log import read_log
from jaxdata.train.model import init_state, make_optimizer, make_step
from tests.builders import dataset
from tests.torch.model import forward, mean_loss
from tests.torch.twin import Twin, jax_loss, learning_rate

VOCAB, STEPS = 96, 12


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, random = tmp_path_factory.mktemp("twin"), np.random.default_rng(0)
    texts = [random.integers(1, VOCAB, size) for size in random.integers(2, 90, 200)]
    texts.append(np.arange(VOCAB))
    masks = [random.integers(0, 2, len(text)) for text in texts]
    return {
        "dataset": str(dataset(folder / "data", {"a": texts}, masks={"a": masks})),
        "pack": {"seq_len": 48},
        "loader": {"batch_size": 4},
        "train": {
            "steps": STEPS,
            "log_every": 5,
            "output": str(folder / "run"),
            "model": {"layers": 2, "width": 32, "heads": 2},
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 4},
        },
    }


@pytest.mark.parametrize(
    ("model", "tolerance"),
    [
        ({"tied": False, "remat": True}, 1e-5),
        ({"dtype": "bfloat16"}, 2e-3),
    ],
)
def test_the_first_loss_is_that_of_jax(
    config: dict[str, Any], model: dict[str, Any], tolerance: float
) -> None:
    settings = {"layers": 2, "width": 32, "heads": 2, **model}
    one = Twin(load_config(config, {"train.model": settings}), "cpu", say=lambda _: None)
    for _ in range(3):
        batch = next(one.loader)
        loss, targets = mean_loss(forward(one.params, batch, ModelSettings(**settings)), batch)
        expected = jax_loss(one.weights, batch, TrainSettings(model=ModelSettings(**settings)))
        assert float(loss.detach()) == pytest.approx(expected, rel=tolerance)
        assert targets == batch["loss_mask"].sum() > 0
    one.loader.close()


@pytest.mark.exhaustive
def test_a_run_is_the_run_of_jax(config: dict[str, Any]) -> None:
    """All of it: rows, weights, rates, moments; floats drift apart slowly."""
    said: list[str] = []
    Twin(load_config(config), "cpu", said.append).run()
    ours = [r for r in read_log(Path(config["train"]["output"]) / "log-torch.jsonl") if "loss" in r]
    theirs = list(jax_steps(load_config(config)))
    assert len(ours) == len(theirs) == STEPS
    for a, b in zip(ours, theirs, strict=True):
        assert a["targets"] == b["targets"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=2e-2)
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5)
    assert ours[-1]["loss"] < ours[0]["loss"]
    assert said[0].startswith("loss of the first step: ")
    assert "waited for data" in said[-1]
    assert 0 <= ours[-1]["wait_share"] < 1


def jax_steps(config: Config) -> Iterator[dict[str, float]]:
    """The steps of `jaxdata train`, without its checkpoints."""
    optimizer = make_optimizer(config.train.optimizer, STEPS)
    vocabulary = len(open_data(config).token_bytes)
    state = init_state(derive(config.seed, "model") >> 1, config.train.model, vocabulary, optimizer)
    step = make_step(config.train.model, optimizer, SingleDeviceSharding(jax.devices()[0]))
    for batch in islice(jaxdata.load(config), STEPS):
        state, metrics = step(state, batch)
        yield {name: float(value) for name, value in metrics.items()}


def test_rates_are_those_of_optax() -> None:
    settings = OptimizerSettings(learning_rate=0.02, warmup_steps=7, final_fraction=0.3)
    for steps in (3, 8, 50):
        expected = optax.warmup_cosine_decay_schedule(0.0, 0.02, 7, max(steps, 8), 0.006)
        for step in range(steps + 3):
            assert learning_rate(settings, step, steps) == pytest.approx(
                float(expected(step)), rel=1e-5, abs=1e-9
            )
    assert learning_rate(OptimizerSettings(warmup_steps=0), 0, 10) == 1e-3
