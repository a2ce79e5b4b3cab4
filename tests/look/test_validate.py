"""`jaxdata validate`: what it says a run will get is what the run then gets, to the token."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from jaxdata.cli import main
from jaxdata.converter import convert
from jaxdata.format.storage import open_store
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


@pytest.fixture(scope="module")
def real(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Web, code, math and wiki of the real text, in bytes."""
    zstandard = pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("real")
    with (shared_data / "wiki.jsonl.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read(8_000_000)
    (folder / "wiki.jsonl").write_bytes(text[: text.rindex(b"\n") + 1])
    inputs = {
        "web": (shared_data / "web.parquet", "text"),
        "code": (shared_data / "code-0.jsonl.gz", "text"),
        "math": (shared_data / "instruct/gsm8k_train.jsonl", "question"),
        "wiki": (folder / "wiki.jsonl", "text"),
    }
    for name, (path, key) in inputs.items():
        convert(
            str(path),
            output=folder / "data",
            source=name,
            tokenizer="bytes",
            text_key=key,
            workers=1,
        )
    return folder / "data"


@pytest.mark.slow
@pytest.mark.parametrize("pack", [{}, {"overlap": 100}, {"strategy": "concat"}])
def test_gpt_simples_example_is_predicted_to_the_token(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pack: dict[str, Any]
) -> None:
    config = write_config(
        tmp_path / "run.yaml",
        dataset=str(real),
        pack={"seq_len": 1024, **pack},
        curriculum=[
            {"tokens": 5_000_000, "mix": {"web": 0.6, "code": 0.2, "math": 0.1, "wiki": 0.1}},
            {"tokens": 5_000_000, "mix": {"web": 0.3, "code": 0.3, "math": 0.2, "wiki": 0.2}},
        ],
        loader={"batch_size": 64},
    )
    status, found = planned(capsys, config)
    assert (status, found["ok"]) == (0, True)
    compare(found, delivered(config, found["phases"]))
    asked = [
        {"web": 0.6, "code": 0.2, "math": 0.1, "wiki": 0.1},
        {"web": 0.3, "code": 0.3, "math": 0.2, "wiki": 0.2},
    ]
    for phase, shares in zip(found["phases"], asked, strict=True):
        for name, source in phase["sources"].items():
            assert source["share_asked"] == pytest.approx(shares[name])
            assert source["share_planned"] == pytest.approx(shares[name], abs=0.001)


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


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop", "pad"])
def test_every_number_is_that_of_the_run(
    config: Path, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    status, found = planned(capsys, config, "--pack.strategy", strategy)
    assert status == 0
    compare(found, delivered(config, found["phases"], **{"pack.strategy": strategy}))
    loader = jaxdata.load(config, **{"pack.strategy": strategy})
    loader.seek(row=found["rows"])
    report = loader.report()
    assert found["steps"] == len(loader)
    assert (found["rows"], found["padding"]) == (500, report.padding)
    for name, source in found["sources"].items():
        assert source["run"]["epochs"] == pytest.approx(report.sources[name].epochs)
        plan = loader.rows.sources[name].plan
        assert source["epoch"]["padding"] == plan.padding
        assert source["dropped"]["tokens_cropped"] == plan.dropped_tokens
        single = int((loader.rows.sources[name].table.documents[0].lengths == 1).sum())
        expected = 0 if strategy == "concat" else single
        assert source["dropped"]["documents_without_target"] == expected
    scored = sum(int(batch["loss_mask"].sum()) for batch in jaxdata.load(config, "val"))
    assert found["evaluation"]["tokens"] == scored


def test_a_run_that_cannot_be_fails_and_shows_how_far_it_would_go(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "--config", str(config), "--epochs", "{wiki: 1}")
    assert status == 1
    assert "FAILED  sources   the mixture needs more rows than its sources have:" in out
    assert "source 'wiki': demanded " in out
    assert "none of its" in out or "of the 200 asked for" in out
    status, found = planned(capsys, config, "--epochs", "{wiki: 1}")
    assert (status, found["ok"]) == (1, False)
    assert found["rows"] == found["exhaustions"][0]["row"] < 500


@pytest.mark.parametrize("way", ["halt", "renormalize"])
def test_exhaustion_is_shown_beforehand(
    config: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    overrides = {"epochs": {"wiki": 1.5}, "on_exhaustion": way}
    arguments = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", way]
    status, found = planned(capsys, config, *arguments)
    assert status == 0
    loader = jaxdata.load(config, loader={"extras": ["source"]}, **overrides)
    dry_row, rows, last = found["exhaustions"][0]["row"], 0, 0
    wiki = loader.source_names.index("wiki")
    try:
        for batch in loader:
            owner = batch["source"][:, 0]
            last = rows + int(np.flatnonzero(owner == wiki).max(initial=last - rows))
            rows += int((owner >= 0).sum())
    except jaxdata.SourceExhausted:
        assert way == "halt"
    assert rows == found["rows"] == (dry_row if way == "halt" else 500)
    assert last < dry_row
    phase = found["phases"][found["exhaustions"][0]["phase"]]
    assert phase["sources"]["wiki"]["dry_at_row"] == dry_row
    out = run(capsys, "--config", str(config), *arguments)[1]
    assert "dry     sources   runs dry, as allowed:" in out
    assert f"source 'wiki' runs dry in phase {phase['phase']} at row {dry_row} ({way})" in out
    assert "dry at row" in out
    assert "intervals of equal shares" in out
    for name, source in found["sources"].items():
        in_phases = [each["sources"][name]["epochs"] for each in found["phases"]]
        assert sum(in_phases) == pytest.approx(source["run"]["epochs"])
    if way == "renormalize":
        after = found["stretches"][-1]
        assert after["first_row"] == dry_row
        assert after["shares_asked"] == pytest.approx({"web": 0.5, "code": 0.5, "wiki": 0})
        assert f"{dry_row:,} to 499" in out


def test_a_phase_that_lasts_until_a_source_is_dry_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curriculum = json.dumps([{"mix": {"web": 0.5, "wiki": 0.5}}])
    status, out, _ = run(capsys, "--config", str(config), "--curriculum", curriculum)
    rows = len(jaxdata.load(config, curriculum=json.loads(curriculum)).rows)
    assert status == 0
    assert f"ok      sources   the last phase ends at row {rows}, where one runs dry" in out


def test_an_amendment_that_allows_it_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    amended = json.dumps([{"at_row": 320, "on_exhaustion": "renormalize", "epochs": {"wiki": 1.3}}])
    status, out, _ = run(capsys, "--config", str(config), "--amendments", amended)
    assert status == 0
    assert re.search(r"source 'wiki' runs dry in phase 1 at row \d+ \(renormalize\)", out)


@pytest.mark.parametrize(
    ("steps", "allowed", "status", "says"),
    [
        (63, False, 0, "63 steps, all of them trained"),
        (
            40,
            False,
            1,
            "train.steps is 40, and there are rows for 63 steps, so the curr",
        ),
        (40, True, 0, "train.steps is 40, and there are rows for 63 steps"),
        (64, True, 1, "train.steps is 64, but there are rows for only 63 steps"),
    ],
)
def test_the_trainers_steps_are_compared_with_the_budget(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    steps: int,
    allowed: bool,
    status: int,
    says: str,
) -> None:
    more = ["--train.steps", str(steps), "--allow_budget_mismatch", str(allowed).lower()]
    ended, out, _ = run(capsys, "--config", str(config), *more)
    assert ended == status
    assert f"{'FAILED ' if status else 'ok     '} budget    {says}" in out


def test_a_run_that_halts_needs_no_other_steps(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", "halt", "--train.steps", "63"]
    status, out, _ = run(capsys, "--config", str(config), *more)
    assert status == 0
    assert re.search(r"^halts   budget    the run halts after \d+ of 63 steps$", out, re.MULTILINE)


def test_without_a_curriculum_fewer_steps_are_fine(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "all.yaml", dataset=str(dataset), train={"steps": 1})
    status, found = planned(capsys, config)
    assert status == 0
    assert set(found["sources"]) == {"code", "web", "wiki"}


def damage_shard(dataset: Path) -> None:
    shard = dataset / "train/web/00001-00000.array_record"
    shard.write_bytes(shard.read_bytes()[:-100])


def remove_shard(dataset: Path) -> None:
    (dataset / "train/code/00000-00000.array_record").unlink()


def exchange_shards(dataset: Path) -> None:
    one, other = (dataset / f"train/web/0000{k}-00000.array_record" for k in (0, 1))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def damage_index(dataset: Path) -> None:
    chunk = dataset / "train/wiki/index/length/c/0"
    data = np.frombuffer(chunk.read_bytes(), "<u4").copy()
    data[5] += 1
    chunk.write_bytes(data.tobytes())


def remove_origins(dataset: Path) -> None:
    (dataset / "train/wiki/index/origin_row/c/0").unlink()


def shorten_origins(dataset: Path) -> None:
    store, name = open_store(dataset), "train/wiki/index/origin_row"
    store.write_array(name, store.read_array(name)[1:])


def damage_manifest(dataset: Path) -> None:
    manifest = dataset / "dataset.json"
    manifest.write_text(manifest.read_text().replace('"inputs": [', '"inputs": ["other", '))


@pytest.mark.parametrize(
    ("damage", "name", "says"),
    [
        (
            remove_origins,
            "index",
            "train/wiki/index/origin_row/c/0 is missing: the dataset is incomplete",
        ),
        (shorten_origins, "index", "train/wiki/index/origin_row has 59 entries, not 60"),
        (damage_manifest, "manifest", "dataset.json differs from its checksum: restore it"),
        (damage_shard, "shards", "00001-00000.array_record"),
        (remove_shard, "shards", "is missing: the dataset is incomplete"),
        (exchange_shards, "shards", "its records do not match the index"),
        (damage_index, "index", "train/wiki/index/length: for train/wiki/00000-00000.array_rec"),
    ],
)
def test_a_dataset_that_is_not_whole_fails(
    config: Path,
    dataset: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Any,
    name: str,
    says: str,
) -> None:
    damage(dataset)
    status, found = planned(capsys, config)
    assert status == 1
    failed = {check["name"]: check["says"] for check in found["checks"] if not check["ok"]}
    assert says in failed[name]


def test_it_fits_80_columns_and_is_plain_in_a_pipe(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(
        capsys, "--config", str(config), "--epochs", "{wiki: 1.5}", "--on_exhaustion", "renormalize"
    )[1]
    tables = out.split("ok ")[0]
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    for last in ("dry at row", "wiki", "cropped"):
        assert any(line.rstrip().endswith(last) for line in tables.splitlines()), last
    assert "\x1b" not in out
    assert run(capsys, "--config", str(config), "--pack.seq_len", "many")[0] == 1
    assert "error: no config at nowhere" in run(capsys, "--config", "nowhere")[2]


def test_names_reach_the_terminal_as_text_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "[red]we\x1bb"
    write_dataset(tmp_path / "d", {f"train/{name}": distinct_documents([5, 1, 9])})
    config = write_config(tmp_path / "run.yaml", dataset=str(tmp_path / "d"), pack={"seq_len": 8})
    status, out, _ = run(capsys, "--config", str(config))
    assert status == 0
    assert "\x1b" not in out
    assert "[red]we\\x1bb" in out
    assert "left out of [red]we\\x1bb: 1 documents of a single token" in out


def test_weights_by_loss_are_shown_in_tokens_with_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of whole epochs they are exact: both sources are read three times."""
    rng = np.random.default_rng(1)
    sources = {f"train/{n}": distinct_documents(rng.integers(2, 150, 200)) for n in ("sft", "web")}
    masks = {"train/sft": [rng.random(len(d)) < 0.2 for d in sources["train/sft"]]}
    write_dataset(tmp_path / "d", sources, masks)
    loss = sum(int(mask[1:].sum()) for mask in masks["train/sft"])
    config = write_config(
        tmp_path / "run.yaml",
        dataset=str(tmp_path / "d"),
        pack={"seq_len": 64},
        curriculum=[{"mix": "proportional"}],
        on_exhaustion="renormalize",
        epochs={"sft": 3, "web": 3},
        weigh_by="loss_tokens",
    )
    status, found = planned(capsys, config)
    assert (status, found["weigh_by"]) == (0, "loss_tokens")
    (phase,) = found["phases"]
    web = found["sources"]["web"]["epoch"]["tokens"]
    assert found["sources"]["sft"]["loss_tokens"] == loss
    assert found["sources"]["web"]["loss_tokens"] == web
    for name, tokens in {"sft": loss, "web": web}.items():
        assert phase["sources"][name]["loss_tokens"] == 3 * tokens
        assert phase["sources"][name]["share_planned"] == pytest.approx(tokens / (loss + web))
        assert phase["sources"][name]["share_asked"] == pytest.approx(tokens / (loss + web))
    out = run(capsys, "--config", str(config))[1]
    assert "weights are shares of tokens with loss" in out
    assert "with loss" in out
    loader = jaxdata.load(config)
    loader.seek(row=len(loader.rows))
    report = loader.report()
    for each in report.sources.values():  # of trained tokens, both
        assert each.planned == pytest.approx(each.share, abs=0.005)


def test_tokens_with_loss_are_shown_where_no_mask_must_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "why", "completion": "so"}\n' * 9)
    convert(path, output=tmp_path / "d", source="sft", task="sft", tokenizer="bytes", workers=1)
    masked = [np.arange(9) % 2]
    write_dataset(tmp_path / "old", {"train/old": [np.arange(1, 10)]}, {"train/old": masked})
    for name, source, expected in (("d", "sft", 9 * 3), ("old", "old", None)):
        config = write_config(tmp_path / f"{name}.yaml", dataset=str(tmp_path / name))
        found = planned(capsys, config)[1]
        assert found["sources"][source]["loss_tokens"] == expected
