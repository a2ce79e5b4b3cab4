"""`jaxdata validate`: what it says a run will get is what the run then gets, to the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.here import convert_here
from tests.look.validate.conftest import compare, delivered, planned, run, write_config


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
        convert_here(
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
    convert_here(
        path, output=tmp_path / "d", source="sft", task="sft", tokenizer="bytes", workers=1
    )
    masked = [np.arange(9) % 2]
    write_dataset(tmp_path / "old", {"train/old": [np.arange(1, 10)]}, {"train/old": masked})
    for name, source, expected in (("d", "sft", 9 * 3), ("old", "old", None)):
        config = write_config(tmp_path / f"{name}.yaml", dataset=str(tmp_path / name))
        found = planned(capsys, config)[1]
        assert found["sources"][source]["loss_tokens"] == expected
