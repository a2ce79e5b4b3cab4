"""A dataset and a config of it, and what `jaxdata preview` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.cli import main
from tests import builders


def planned(capsys: pytest.CaptureFixture[str], config: Path) -> tuple[int, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["preview", "--config", str(config), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    counts = {"web": 400, "code": 250, "wiki": 60, "val/web": 30}
    sources = {name: rng.integers(1, 150, count).tolist() for name, count in counts.items()}
    return builders.dataset(tmp_path / "d", sources, shard_documents=100)


@pytest.fixture
def config(dataset: Path, tmp_path: Path) -> Path:
    curriculum = [
        {"rows": 300, "mix": {"web": 6, "code": 3, "wiki": 1}},
        {"rows": 200, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}},
    ]
    return builders.run(
        tmp_path,
        dataset=str(dataset),
        pack={"seq_len": 64},
        curriculum=curriculum,
        epochs={"wiki": 4},
        loader={"batch_size": 8},
    )
