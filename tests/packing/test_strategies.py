"""A strategy is registered in one place; everything else follows from the registry."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import ConfigError, InputError
from jaxdata.packing.settings import PackSettings
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.packing.strategies.pad import PAD
from jaxdata.testing import assert_rows_conserve, distinct_documents, write_dataset


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = replace(PAD, name="toy", description="one toy a row", takes_overlap=False)
    monkeypatch.setitem(STRATEGIES, "toy", strategy)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    documents = distinct_documents([5, 40, 17, 1, 9] * 8)
    write_dataset(tmp_path / "d", {"train/web": documents, "val/web": documents})
    path = tmp_path / "run.yaml"
    fields = {"dataset": str(tmp_path / "d"), "pack": {"strategy": "toy", "seq_len": 16}}
    path.write_text(yaml.safe_dump({**fields, "loader": {"batch_size": 4}}))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.mark.usefixtures("toy")
def test_a_toy_strategy_is_packed_with(config: Path) -> None:
    docs = jaxdata.open_dataset(config.parent / "d").source("train", "web")
    rows = jaxdata.pack(docs, seq_len=16, strategy="toy")
    assert assert_rows_conserve(rows) > 0
    assert rows.plan.rows == jaxdata.pack(docs, seq_len=16, strategy="pad").plan.rows
    with pytest.raises(InputError, match=r"toy cuts no windows .* strategy 'best_fit' or 'pad'"):
        jaxdata.pack(docs, seq_len=16, strategy="toy", overlap=2)
    mixed = jaxdata.load(config).rows
    assert mixed.sources["web"].table.settings.strategy == "toy"
    assert jaxdata.load(config, split="val").rows.table.identity()["strategy"] == "toy"
    for name in ("concat", "best_fit"):
        amended = mixed.amend(8, rows={"web": jaxdata.pack(docs, seq_len=8, strategy=name)})
        assert amended.epochs()["web"] == 1


@pytest.mark.usefixtures("toy")
def test_a_toy_strategy_is_known_on_the_command_line(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "validate", "--config", config, "--json")
    assert (status, json.loads(out)["ok"]) == (0, True), err
    status, out, err = run(capsys, "inspect", "--config", config, "--json")
    costs = {cost["strategy"]: cost for cost in json.loads(out)["packing"]}
    assert list(costs) == ["pad", "concat", "crop", "best_fit", "toy"]
    assert costs["toy"]["rows"] == costs["pad"]["rows"]
    status, out, _ = run(capsys, "inspect", "--config", config)
    assert "toy: one toy a row" in out
    status, _, err = run(capsys, "validate", "--config", config, "--pack.strategy", "tetris")
    expected = "'best_fit', 'concat', 'crop', 'pad' or 'toy'"
    assert status
    assert f"pack.strategy: should be {expected}, got 'tetris'" in " ".join(err.split())


def test_without_it_the_toy_is_unknown(config: Path) -> None:
    with pytest.raises(ConfigError, match="'best_fit', 'concat', 'crop' or 'pad', got 'toy'"):
        jaxdata.load(config)


def test_the_parameters_of_pack_are_the_fields_of_its_settings() -> None:
    shown = inspect.signature(jaxdata.pack).parameters
    fields = inspect.signature(PackSettings).parameters
    # One name, default and description a parameter: `pack` and `pack:` in configs show the fields.
    assert list(shown)[1:] == [name for name in fields if name != "shuffle"]
    for name, parameter in list(shown.items())[2:]:
        assert parameter.default == fields[name].default
    with pytest.raises(TypeError, match="unexpected keyword argument 'strategie'"):
        jaxdata.pack(jaxdata.ArrayDocuments([[1, 2]]), seq_len=4, strategie="pad")  # type: ignore[call-arg]


def test_a_misspelt_argument_is_named_with_what_was_meant() -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 3]])
    with pytest.raises(TypeError, match=r"pack\(\) got .* 'sed'; did you mean 'seed'\?"):
        jaxdata.pack(docs, seq_len=4, sed=3)  # type: ignore[call-arg]
