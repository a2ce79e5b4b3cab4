"""A dataset and a config of it; what `jaxdata validate` says, beside what the run delivers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from jaxdata.cli import main
from jaxdata.testing import distinct_documents, write_dataset


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["validate", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def planned(capsys: pytest.CaptureFixture[str], config: Path, *more: str) -> tuple[int, Any]:
    status, out, _ = run(capsys, "--config", str(config), "--json", *more)
    return status, json.loads(out)


def delivered(config: Path, phases: list[dict[str, Any]], **overrides: Any) -> list[Counter[str]]:
    """Targets with loss by phase and source, counted in the batches."""
    loader = jaxdata.load(config, loader={"extras": ["source"]}, **overrides)
    counts: list[Counter[str]] = [Counter() for _ in phases]
    starts = [phase["first_row"] for phase in phases if phase["first_row"] is not None]
    row = 0
    for batch in loader:
        for loss, source in zip(batch["loss_mask"], batch["source"], strict=True):
            if source[0] >= 0:
                phase = int(np.searchsorted(starts, row, side="right")) - 1
                counts[phase][loader.source_names[source[0]]] += int(loss.sum())
                row += 1
    return counts


def compare(found: dict[str, Any], counts: list[Counter[str]]) -> None:
    for phase, count in zip(found["phases"], counts, strict=True):
        tokens = {name: source["tokens"] for name, source in phase["sources"].items()}
        assert {name: count[name] for name in tokens} == tokens
        assert set(count) <= set(tokens)
        assert phase["tokens"] == sum(count.values())
    assert found["tokens"] == sum(phase["tokens"] for phase in found["phases"])


def write_config(path: Path, **fields: Any) -> Path:
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    sources = {
        f"train/{name}": distinct_documents(rng.integers(1, 150, count))
        for name, count in {"web": 400, "code": 250, "wiki": 60}.items()
    }
    sources["val/web"] = distinct_documents(rng.integers(2, 100, 30))
    write_dataset(tmp_path / "d", sources, shard_documents=100)
    return tmp_path / "d"


CURRICULUM = [
    {"rows": 300, "mix": {"web": 6, "code": 3, "wiki": 1}},
    {"rows": 200, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}},
]


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> Path:
    return write_config(
        tmp_path / "run.yaml",
        dataset=str(dataset),
        pack={"seq_len": 64},
        curriculum=CURRICULUM,
        epochs={"wiki": 4},
        loader={"batch_size": 8},
    )
