"""`jaxdata preview` keeps the plan: it says what a run reads, and a later run only opens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jaxdata
from jaxdata.rows.packing.planner import Planner
from tests import commands
from tests.builders import run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    curriculum = [
        {"rows": 60, "mix": {"web": 0.75, "code": 0.25}},
        {"rows": 20, "mix": {"web": 1}},
    ]
    return run(tmp_path, {"web": 300, "code": 100}, pack={"seq_len": 64}, curriculum=curriculum)


def test_it_prints_what_the_run_reads_and_a_later_start_plans_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = commands.run("preview", "--config", config).stdout
    assert "80 rows of 64 in " in printed
    counts = jaxdata.load(config).rows.table.counts(80)
    found = json.loads(commands.run("preview", "--config", config, "--json").stdout)["sources"]
    for name, documents in {"web": 300, "code": 100}.items():
        assert found[name]["documents"] == documents
        assert found[name]["run"]["rows"] == counts[name]
    assert "400 documents planned" in printed

    def fail(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(Planner, "measure", fail)
    assert len(jaxdata.load(config)) > 0
    with pytest.raises(AssertionError, match="planned again"):
        jaxdata.load(config, **{"pack.seq_len": 65})


def test_where_a_source_runs_dry_is_said_or_refused(config: Path) -> None:
    short = ["preview", "--config", config, "--epochs", "{web: 0.1}"]
    assert "short by" in commands.run(*short, status=1).stdout
    printed = commands.run(*short, "--on_exhaustion", "renormalize").stdout
    assert "source 'web' runs dry in phase 0 at row" in printed
