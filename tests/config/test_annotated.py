"""`jaxdata config`: every field with its meaning and its place, as a config that reads the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jaxdata.config import load_config, packaged_configs
from jaxdata.config.annotated import config_schema
from tests.commands import run

CONFIGS = packaged_configs()
FULL = """
sources: {web: data/mine, old: {dataset: "megatron:x", source: y}}
curriculum:
  - {tokens: 5e9, mix: {web: 1, old: .5}}
  - {steps: 1_000, batch_size: 8, mix: size**0.5}
amendments: [{at_row: 900_000, pack: {seq_len: 8192}, epochs: {web: 6}}]
loader:
  batch_size: [[0, 256], [100_000, 512]]
  layout: {megatron: {cu_seqlens: true}}
  objective: {mtp: 3}
train: {optimizer: {learning_rate: 3e-4}}
"""


def shown(*arguments: Path | str) -> str:
    return run("config", *arguments).stdout


@pytest.mark.parametrize("name", [*CONFIGS, "full"])
def test_what_is_printed_is_the_same_config(tmp_path: Path, name: str) -> None:
    copy, full = tmp_path / "copy.yaml", tmp_path / "full.yaml"
    full.write_text(FULL)
    given = str(full) if name == "full" else name
    copy.write_text(shown(given))
    assert load_config(copy).model_dump() == load_config(given).model_dump()


def test_each_field_has_its_value_its_place_and_its_default(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("dataset: data/mine\npack:\n  seq_len: 512\n")
    lines = shown(config, "--seed", "3").splitlines()
    assert f"  seq_len: 512  # {config}, line 3; default 2048" in lines
    assert "seed: 3  # set by an override; default 0" in lines
    assert "  overlap: 0  # default" in lines
    assert "  # how windows share rows (best_fit | concat | crop | pad)" in lines


def test_without_a_config_fields_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    found = yaml.safe_load(shown("--all"))
    assert found == load_config({"dataset": "d"}).model_dump() | {"dataset": None}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    said = "region: us-1  # set by an override; default null; AWS_DEFAULT_REGION is set, which wins"
    assert said in shown("demo", "--storage.s3.region", "us-1")


def test_a_field_for_experts_is_printed_where_it_is_set_or_all_are_asked_for() -> None:
    assert "lanes" not in shown()
    assert "  lanes: 4  # set by an override; default null" in shown("demo", "--pack.lanes", "4")
    assert "#   steps: budget in steps of batch_size rows" in shown("--all")
    assert shown().endswith("\n\n# fields for experts are left out: jaxdata config --all\n")


def test_the_schema_that_ships_is_the_one_that_is_printed() -> None:
    beside = next(iter(CONFIGS.values())).with_name("schema.json")
    assert json.loads(shown("--schema")) == json.loads(beside.read_text()), (
        "run: jaxdata config --schema > configs/schema.json"
    )


def test_the_schema_takes_what_a_config_may_say() -> None:
    for path in CONFIGS.values():
        assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
        jsonschema.validate(yaml.safe_load(path.read_text()), config_schema())
    phase = {"tokens": 5e9, "mix": {"web": 1}}
    for curriculum in ("proportional", phase, yaml.safe_load(FULL)["curriculum"]):
        given = {"dataset": "d", "curriculum": curriculum, "seed": "1_000"}
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
