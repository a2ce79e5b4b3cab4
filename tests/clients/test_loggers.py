"""The lines by which a loader's report goes to loggers, as the README of feed has them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxdata
from tests.conftest import ROOT

TABLE = (ROOT / "jaxdata/feed/README.md").read_text()


def line_of(logger: str) -> str:
    (found,) = re.findall(rf"^\| {logger}.* \| `([^|]+)` \|$", TABLE, re.MULTILINE)
    return found


@pytest.fixture
def loader() -> jaxdata.Loader:
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 8, name="train/web")
    loader = jaxdata.Loader(jaxdata.mix({"web": jaxdata.pack(docs, seq_len=3)}), batch_size=2)
    next(loader)
    return loader


def expected(loader: jaxdata.Loader) -> dict[str, float]:
    found = {**loader.scalars()}
    assert found["tokens/web"] == found["tokens"] == 6
    return found


def test_tensorboard(loader: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        exec(line_of("TensorBoard"), {"writer": writer, "loader": loader})
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    found = {name: read.Scalars(name) for name in read.Tags()["scalars"]}
    assert set(found) == {f"data/{name}" for name in expected(loader)}
    assert (found["data/tokens/web"][0].value, found["data/tokens/web"][0].step) == (6, 1)


def test_weights_and_biases(loader: Any) -> None:
    """A stand-in: wandb 0.31 took the line offline, and leaves a process behind."""
    seen: list[Any] = []
    wandb = SimpleNamespace(log=lambda values, *, step: seen.append((values, step)))
    exec(line_of("Weights"), {"wandb": wandb, "loader": loader})
    ((values, step),) = seen
    assert (set(values), step) == ({f"data/{name}" for name in expected(loader)}, 1)


def test_prometheus(loader: Any) -> None:
    client = pytest.importorskip("prometheus_client", reason="prometheus_client comes with ray")
    registry = client.CollectorRegistry()
    setup = re.search(r"`gauge = (Gauge\([^`]+)\)`", TABLE)
    assert setup
    given = {"Gauge": client.Gauge, "registry": registry}
    gauge = eval(f"{setup[1]}, registry=registry)", given)
    exec(line_of("Prometheus"), {"gauge": gauge, "loader": loader})
    assert registry.get_sample_value("jaxdata", {"name": "share/web"}) == 1
    text = client.generate_latest(registry).decode()
    assert all(f'name="{name}"' in text for name in expected(loader))
