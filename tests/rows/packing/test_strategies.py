"""A strategy is registered in one place; everything else follows from the registry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, InputError
from jaxdata.rows.packing.strategies import PAD, STRATEGIES
from jaxdata.testing import assert_rows_conserve
from tests import commands
from tests.builders import run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    sources = {name: [5, 40, 17, 1, 9] * 8 for name in ("web", "val/web")}
    pack = {"strategy": "toy", "seq_len": 16}
    return run(tmp_path, sources, pack=pack, loader={"batch_size": 4})


def test_a_toy_strategy_is_packed_with_and_known_on_the_command_line(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'best_fit', 'concat', 'crop' or 'pad', got 'toy'"):
        jaxdata.load(config)
    toy = replace(PAD, name="toy", description="one toy a row", takes_overlap=False)
    monkeypatch.setitem(STRATEGIES, "toy", toy)
    docs = jaxdata.open_dataset(config.parent / "d").source("train", "web")
    rows = jaxdata.pack(docs, seq_len=16, strategy="toy")
    assert assert_rows_conserve(rows) > 0
    assert rows.plan.rows == jaxdata.pack(docs, seq_len=16, strategy="pad").plan.rows
    with pytest.raises(InputError, match=r"toy cuts no windows .* strategy 'best_fit' or 'pad'"):
        jaxdata.pack(docs, seq_len=16, strategy="toy", overlap=2)
    mixed = jaxdata.load(config).rows
    assert mixed.sources["web"].table.settings.strategy == "toy"
    assert jaxdata.load(config, split="val").rows.table.identity()["strategy"] == "toy"
    told = json.loads(commands.run("inspect", "--config", config, "--json").stdout)["packing"]
    costs = {cost["strategy"]: cost["rows"] for cost in told}
    assert list(costs) == ["pad", "concat", "crop", "best_fit", "toy"]
    assert costs["toy"] == costs["pad"]
