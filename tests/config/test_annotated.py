"""`jaxdata config`: every field with its meaning and its place, as a config that reads the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jaxdata.cli import main
from jaxdata.config import load_config, packaged_configs
from jaxdata.config.json_schema import config_schema

CONFIGS = packaged_configs()
FULL = """
sources: {web: data/mine, old: {dataset: "megatron:x", source: y}}
curriculum:
  - {tokens: 5e9, mix: {web: 1, old: .5}}
  - {steps: 1_000, batch_size: 8, mix: size**0.5}
amendments: [{at_row: 900_000, pack: {seq_len: 8192}, epochs: {web: 6}}]
loader: {batch_size: [[0, 256], [100_000, 512]], layout: {megatron: {cu_seqlens: true}}}
train: {optimizer: {learning_rate: 3e-4}}
"""

Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    def show(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["config", *arguments])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return out

    return show


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_printed_is_the_same_config(shown: Shown, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text(shown(name))
    assert load_config(copy).model_dump() == load_config(name).model_dump()


def test_lists_of_sections_are_the_same_config(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "full.yaml").write_text(FULL)
    (tmp_path / "copy.yaml").write_text(shown(str(tmp_path / "full.yaml")))
    before, after = (load_config(tmp_path / f"{each}.yaml") for each in ("full", "copy"))
    assert after.model_dump() == before.model_dump()


def test_each_field_has_its_value_its_place_and_its_default(shown: Shown, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("dataset: data/mine\npack:\n  seq_len: 512\n")
    lines = shown(str(config), "--seed", "3").splitlines()
    assert f"  seq_len: 512  # {config}, line 3; default 2048" in lines
    assert "seed: 3  # set by an override; default 0" in lines
    assert "  overlap: 0  # default" in lines
    assert "  # how windows share rows (best_fit | concat | crop | pad)" in lines


def test_a_variable_that_wins_is_named(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    assert "region: us-1  # set by an override; default null; AWS_DEFAULT_REGION is set" in shown(
        "demo", "--storage.s3.region", "us-1"
    )


def test_without_a_config_fields_have_their_defaults(shown: Shown) -> None:
    found = yaml.safe_load(shown())
    assert found == load_config({"dataset": "d"}).model_dump() | {"dataset": None}


def test_the_schema_that_ships_is_the_one_that_is_printed(shown: Shown) -> None:
    beside = next(iter(CONFIGS.values())).with_name("schema.json")
    assert json.loads(shown("--schema")) == json.loads(beside.read_text()), (
        "run: jaxdata config --schema > configs/schema.json"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_configs_name_the_schema_and_keep_it(name: str) -> None:
    text = CONFIGS[name].read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.validate(yaml.safe_load(text), config_schema())


@pytest.mark.parametrize(
    "given",
    [
        yaml.safe_load(FULL),
        {"dataset": "d", "curriculum": "proportional", "seed": "1_000"},
        {"dataset": "d", "curriculum": {"tokens": 5e9, "mix": {"web": 1}}},
    ],
)
def test_the_schema_takes_what_a_config_may_say(given: dict[str, Any]) -> None:
    jsonschema.validate(given, config_schema())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pack": {"strategy": "bestfit"}}, "'bestfit' is not one of ['best_fit', 'concat'"),
        ({"pack": {"seqlen": 3}}, "'seqlen' was unexpected"),
        ({"loader": {"num_workers": -1}}, "-1 is less than the minimum of 0"),
        ({"eval_tokens": 0}, "0 is less than the minimum of 1"),
        ({"seed": "many"}, "'many' does not match"),
    ],
)
def test_the_schema_refuses_what_a_config_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(jsonschema.ValidationError) as refused:
        jsonschema.validate({"dataset": "d", **given}, config_schema())
    assert message in refused.value.message
