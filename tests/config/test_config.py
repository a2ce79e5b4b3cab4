"""Configs: what they accept, what they say when something is wrong, what they load and print."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

import jaxdata
from jaxdata.base.errors import ConfigError, InputError, SourceExhausted
from jaxdata.config import build_rows, load, load_config
from jaxdata.config.annotated import config_schema
from jaxdata.config.config_reader import packaged_configs, parse_overrides
from jaxdata.config.loading import sources_of, unscored
from jaxdata.testing import assert_exactly_once, assert_same_batches
from tests import builders
from tests.commands import run


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, text), overrides)
    return str(caught.value)


ERRORS: list[Any] = [
    ("dataset: d\n\nseq_len: 3", "'seq_len'; did you mean 'pack.seq_len'? {at} line 3)"),
    ("dataset: d\nzebra: 3", "known fields: dataset, sources, generations, tokenizer, seed,"),
    ("dataset: d\npack:\n  seq_len: many", "pack.seq_len='many': expected a whole number {at}"),
    ("dataset: 4\nseed: x", "dataset=4: expected a text {at} line 1)\nseed="),
    ("dataset: d\npack: {overlap: -1}", "pack.overlap=-1: expected at least 0 {at} line 2)"),
    ("dataset: d\ncurriculum: []", "curriculum=[]: List should have at least 1 item"),
    ("seed: 4", "dataset is missing: it is required"),
    ("dataset: d\ndataset: e", "dataset is given twice, in lines 1 and 2: keep one"),
    ("dataset: [", "is not YAML"),
    ("dataset: d\ncurriculum:\n- mix: {a: 1}\n- mix: {b: 1}", "phase 0 needs a budget"),
    ("dataset: d\ncurriculum:\n- mix: by feel", "curriculum.0.mix: weights 'by feel': expecte"),
    ("dataset: d\namendments: [{epochs: {a: 2}}]", "at_row or at_step, one of them"),
    ("dataset: d\namendments: [{at_row: 4}]", "an amendment needs a change: curriculum, epoch"),
    ("dataset: d\nloader: {batch_size: [[0, 4, 5]]}", "]]: expected a whole number of"),
    ("dataset: d\nloader: {batch_size: 1e12}", "at most 16,777,216 rows"),
    ("dataset: d\nseed: " + "9" * 5000, "Exceeds the limit (4300 digits)"),
    ("dataset: " + "[" * 5000, "lists or mappings in each other deeper than 50"),
    ("dataset: " + "x" * 2**20, "1,048,585 characters; expected at most 1,048,576"),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_errors_say_what_was_given_and_expected(tmp_path: Path, text: str, expected: str) -> None:
    assert expected.format(at=f"({tmp_path / 'config.yaml'},") in refusal(tmp_path, text)


def test_an_alias_counts_as_what_it_stands_for(tmp_path: Path) -> None:
    """Nine of nine of nine …: a few hundred bytes that would fill any memory."""
    lines = ["a0: &a0 {x: 1}"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]")
    bomb = "\n".join(lines)
    assert refusal(tmp_path, bomb).endswith("values, each alias counted as what it stands for")
    shared = "dataset: d\nepochs: &often {a: 2}\namendments: [{at_row: 4, epochs: *often}]"
    assert load_config(written(tmp_path, shared)).amendments[0].epochs == {"a": 2}


def test_overrides_reach_any_field_and_leave_the_others(tmp_path: Path) -> None:
    text = "dataset: d\npack: {seq_len: 8, lanes: 2}\ncurriculum: [{rows: 4, mix: {a: 1, b: 1}}]\n"
    given = {"pack": {"seq_len": 16}, "curriculum.0.mix": {"c": 1}, "train.model.layers": 2}
    config = load_config(written(tmp_path, text), given)
    assert (config.pack.seq_len, config.pack.lanes) == (16, 2)
    assert config.curriculum is not None
    assert config.curriculum[0].mix == {"c": 1}, "weights are replaced, not merged"
    assert config.curriculum[0].rows == 4
    assert config.train.model.layers == 2


def test_a_wrong_override_is_told_from_a_wrong_file(tmp_path: Path) -> None:
    message = refusal(tmp_path, "dataset: d", {"pack.seq_len": "many"})
    assert message == "pack.seq_len='many': expected a whole number (set by an override)"
    message = refusal(tmp_path, "dataset: d\ncurriculum: [4]", {"curriculum.0.rows": 1})
    assert "curriculum.0.mix is missing" in message
    message = refusal(tmp_path, "dataset: d\ncurriculum: [{mix: {a: 1}}]", {"curriculum.3.rows": 1})
    assert message.startswith("curriculum is a list of 1: expected the number of an item, 0 to 0")


def test_command_line_overrides_are_yaml() -> None:
    given = ["--pack.seq_len", "4096", "--seed=1", "--epochs", "{a: 2}", "--train.steps", "null"]
    given += ["--curriculum.0.mix.web-2", "0.5"]
    parse = parse_overrides
    expected = {"curriculum.0.mix.web-2": 0.5, "pack.seq_len": 4096, "seed": 1}
    assert parse(given) == expected | {"epochs": {"a": 2}, "train.steps": None}
    for wrong in (["seed", "1"], ["--seed"], ["--"]):
        with pytest.raises(ConfigError, match=r"--(pack\.seq_len|seed) 4096"):
            parse(wrong)


def test_packaged_configs_are_found_by_name_and_are_valid(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"demo", "pretrain"} <= set(packaged_configs())
    for name in packaged_configs():
        assert load_config(name) == load_config(f"configs/{name}.yaml")
    with pytest.raises(ConfigError, match=r"no config at demos\.yaml .* demo, .*pretrain"):
        load_config("demos.yaml")


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return str(builders.dataset(tmp_path / "data", {"a": 40, "b": 40, "val/a": 40}))


def small(dataset: str, **more: Any) -> dict[str, Any]:
    return {"dataset": dataset, "pack": {"seq_len": 32}, "loader": {"batch_size": 4}, **more}


def sources(dataset: str, split: str) -> list[Any]:
    opened = jaxdata.open_dataset(dataset)
    return [opened.source(split, name) for name in opened.splits[split]]


def test_without_a_curriculum_and_of_another_split_every_source_is_read_once(dataset: str) -> None:
    assert_exactly_once(load(small(dataset)), sources(dataset, "train"))
    assert_exactly_once(load(small(dataset), "val"), sources(dataset, "val"))
    assert_same_batches(*(load(small(dataset, seed=seed), "val") for seed in (0, 1)))
    assert len(load(small(dataset, eval_tokens=128), "val")) == 1


def test_phases_and_epochs_and_exhaustion_reach_the_mixture(dataset: str) -> None:
    phases = [{"rows": 6, "mix": {"a": 1}}, {"tokens": 5 * 32, "mix": {"b": 1}}]
    assert build_rows(load_config(small(dataset, curriculum=phases))).counts() == {"a": 6, "b": 5}
    too_much = small(dataset, curriculum={"rows": 1000, "mix": {"a": 1}})
    with pytest.raises(SourceExhausted, match="short by"):
        load(too_much)
    assert len(load(too_much, on_exhaustion="halt")) < 250
    assert len(load(too_much, epochs={"a": 100})) == 250


def test_fields_of_pack_and_loader_are_the_arguments_of_their_calls(dataset: str) -> None:
    pack = {"seq_len": 32, "strategy": "pad", "overlap": 3, "positions": "row", "max_segments": 2}
    pack |= {"chunk_bytes": 256, "block_bytes": 512, "lanes": 8, "multiple": 2}
    given = {"batch_size": [[0, 4], [8, 2]], "skip_rows": [[0, 2]], "extras": ["source"]}
    given |= {"layout": "maxtext", "balance": "attention", "objective": {"mtp": 2}}
    config = small(dataset, pack=pack, loader=given, curriculum={"mix": {"a": 1}}, seed=3)
    rows = jaxdata.mix({"a": jaxdata.pack(sources(dataset, "train")[0], seed=3, **pack)})
    ours, theirs = load(config, shard=(1, 2)), jaxdata.Loader(rows, shard=(1, 2), **given)
    assert assert_same_batches(ours, theirs) > 4
    assert ours.get_state()["skips"] == theirs.get_state()["skips"] == [[0, 2]]
    with pytest.raises(InputError, match="overlap"):
        load(config, pack={"overlap": 30})
    assert len(next(load(small(dataset, loader={"batch_size": [[0, 3]]}), "val"))["inputs"]) == 3


def test_sources_that_are_read_from_an_amendment_on_are_known(dataset: str) -> None:
    given = small(dataset, curriculum={"rows": 8, "mix": {"a": 1}}, eval_split=None)
    opened, later = jaxdata.open_dataset(dataset), {"at_row": 4, "mix": {"b": 1}}
    assert sources_of(opened, load_config(given)) == ["train/a"]
    amended = load_config({**given, "amendments": [later]})
    assert sources_of(opened, amended) == ["train/a", "train/b"]


def test_an_unknown_source_is_named_with_those_there_are(dataset: str) -> None:
    with pytest.raises(ConfigError, match=r"curriculum\.0\.mix names the source 'c'; .*'a', 'b'"):
        load(small(dataset, curriculum={"rows": 4, "mix": {"c": 1}}))
    with pytest.raises(ConfigError, match="epochs names the source 'c'"):
        load(small(dataset, epochs={"c": 2}))
    with pytest.raises(InputError, match="no split 'test'"):
        load(small(dataset), "test")


def test_a_split_to_score_on_that_is_not_there_is_said(dataset: str) -> None:
    opened = jaxdata.open_dataset(dataset)
    wrong = rf"eval_split is 'vall'; {dataset} has 'val' to score on: name one, or null for none"
    with pytest.raises(ConfigError, match=wrong):
        unscored(load_config(small(dataset, eval_split="vall")), opened)
    only = SimpleNamespace(splits={"train": ["a"]}, names={"train/a"}, url="d")
    why = "d has no split 'val': nothing is scored. Convert some documents with --split val, or"
    assert unscored(load_config(small(dataset)), only).startswith(why)  # type: ignore[arg-type]
    assert unscored(load_config(small(dataset)), opened) == ""
    assert unscored(load_config(small(dataset, eval_split=None)), opened) == ""
    with pytest.raises(ConfigError, match="eval_split is null, and this trainer scores on one set"):
        load_config(small(dataset, eval_split=None)).scored_split  # noqa: B018


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, Any]:
    texts = [[65 + n % 20] * (1 + n % 40) + [0] for n in range(100)]
    sources = {"a": texts[:40], "val/a": texts[40:70], "val/b": texts[70:90], "test/a": texts[90:]}
    given = small(str(builders.dataset(tmp_path / "sets", sources)), eval_tokens=8 * 32)
    given["train"] = {"steps": 2, "output": str(tmp_path / "run"), "eval_every": 1}
    given["train"]["model"] = {"layers": 1, "width": 8, "heads": 1}
    return {**given, "eval": {"one": "val/b", "all": "val", "other": "test/a"}}


def test_a_source_of_a_split_is_read_alone_in_the_order_of_the_dataset(sets: Any) -> None:
    docs = jaxdata.open_dataset(sets["dataset"]).source("val", "b")
    whole = load(sets, "val/b", eval_tokens=None)
    assert_exactly_once(whole, [docs])
    few = load(sets, "val/b")
    assert len(few.rows) == min(8, len(whole.rows))
    assert few.rows.table.names == ["val/b"]
    assert load(sets, "val").rows.table.names == ["val/a", "val/b"]
    for name, says in (("val/c", "no source 'val/c'"), ("vall/b", "no split 'vall/b'")):
        with pytest.raises(InputError, match=says):
            load(sets, name)


def test_each_set_is_scored_by_itself_and_all_together(sets: dict[str, Any]) -> None:
    run("train", builders.run(Path(sets["train"]["output"]).parent, **sets))
    log = [json.loads(line) for line in (Path(sets["train"]["output"]) / "log.jsonl").open()]
    scored = [each for each in log if "sets" in each]
    assert [each["step"] for each in scored] == [0, 1, 2]
    targets = {
        name: sum(int(batch["loss_mask"].sum()) for batch in load(sets, split))
        for name, split in sets["eval"].items()
    }
    for each in scored:
        assert list(each["sets"]) == ["one", "all", "other"]
        total = sum(each["sets"][name]["val_loss"] * n for name, n in targets.items())
        assert each["val_loss"] == pytest.approx(total / sum(targets.values()), rel=1e-9)


def test_sets_that_cannot_be_scored_are_named(sets: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"eval_split='val' beside eval: give one of them"):
        load_config({**sets, "eval_split": "val"})
    with pytest.raises(ConfigError, match=r"eval names one, all, other, and this trainer scores"):
        load_config(sets).scored_split  # noqa: B018
    opened, wrong = jaxdata.open_dataset(sets["dataset"]), {**sets, "eval": {"x": "val/bb"}}
    with pytest.raises(
        ConfigError, match=r"eval names 'val/bb'; .* name one.*did you mean 'val/b'"
    ):
        unscored(load_config(wrong), opened)
    assert load_config({**sets, "eval": {"x": "val/b"}}).scored_split == "val/b"


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
    printed, kept = json.loads(shown("--schema")), json.loads(beside.read_text())
    assert printed == kept, "run: jaxdata config --schema > configs/schema.json"


def test_the_schema_takes_what_a_config_may_say() -> None:
    for path in CONFIGS.values():
        assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
        jsonschema.validate(yaml.safe_load(path.read_text()), config_schema())
    phase = {"tokens": 5e9, "mix": {"web": 1}}
    for curriculum in ("proportional", phase, yaml.safe_load(FULL)["curriculum"]):
        given = {"dataset": "d", "curriculum": curriculum, "seed": "1_000"}
        jsonschema.validate(given, config_schema())


def test_the_schema_refuses_what_a_config_refuses() -> None:
    for given, message in (
        ({"pack": {"strategy": "bestfit"}}, "'bestfit' is not one of ['best_fit', 'concat'"),
        ({"pack": {"seqlen": 3}}, "'seqlen' was unexpected"),
        ({"loader": {"num_workers": -1}}, "-1 is less than the minimum of 0"),
        ({"seed": "many"}, "'many' does not match"),
    ):
        with pytest.raises(jsonschema.ValidationError) as refused:
            jsonschema.validate({"dataset": "d", **given}, config_schema())
        assert message in refused.value.message
