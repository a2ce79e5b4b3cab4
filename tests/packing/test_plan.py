"""`jaxdata plan`: what it prints is what a run reads, and a second run only opens it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.cli import main
from jaxdata.packing.planner import Planner
from jaxdata.testing import distinct_documents, write_dataset


@pytest.fixture
def config(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    documents = distinct_documents(rng.integers(2, 60, 400))
    write_dataset(tmp_path / "d", {"train/web": documents[:300], "train/code": documents[300:]})
    path = tmp_path / "run.yaml"
    path.write_text(
        f"dataset: {tmp_path / 'd'}\n"
        "pack: {seq_len: 64}\n"
        "curriculum:\n"
        "  - {rows: 60, mix: {web: 0.75, code: 0.25}}\n"
        "  - {rows: 20, mix: {web: 1}}\n"
    )
    return str(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_it_prints_what_the_run_reads(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--config", config) == 0
    printed = capsys.readouterr().out
    assert "80 rows of 64 in 2 phases" in printed
    counts = jaxdata.load(config).rows.table.counts(80)
    lines = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
    for name, documents in {"web": "300", "code": "100"}.items():
        assert lines[name][1] == documents
        assert lines[name][5] == str(counts[name])
    assert "400 documents planned" in printed


def test_a_later_start_plans_nothing(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("plan", "--config", config) == 0

    def fail(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(Planner, "measure", fail)
    assert len(jaxdata.load(config)) > 0
    with pytest.raises(AssertionError, match="planned again"):
        jaxdata.load(config, **{"pack.seq_len": 65})


def test_a_run_that_cannot_be_is_refused(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--config", config, "--epochs", "{web: 0.1}") == 1
    assert "short by" in capsys.readouterr().err


def test_where_a_source_runs_dry_is_said(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["--epochs", "{web: 0.1}", "--on_exhaustion", "renormalize"]
    assert run("plan", "--config", config, *overrides) == 0
    assert "source 'web' runs dry in phase 0 at row" in capsys.readouterr().out
