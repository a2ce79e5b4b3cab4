"""`jaxdata preview`: what it says a run will get is what the run then gets, to the token."""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import jaxdata
from jaxdata import cli
from jaxdata.look.preview import preview_tables
from tests import builders
from tests.converter.here import convert_here


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Status, output and errors of the command."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = cli._run(["preview", *map(str, arguments)])
    return status, out.getvalue(), err.getvalue()


def foretold(config: Path, *more: str | Path) -> tuple[int, Any]:
    status, out, _ = run("--config", config, "--json", *more)
    return status, json.loads(out)


def delivered(config: Path, phases: list[dict[str, Any]], **overrides: Any) -> list[Counter[str]]:
    """Targets with loss by phase and source, counted in the batches."""
    loader = jaxdata.load(config, loader={"extras": ["source"]}, **overrides)
    counts: list[Counter[str]] = [Counter() for _ in phases]
    starts = [phase["first_row"] for phase in phases if phase["first_row"] is not None]
    row = 0
    with suppress(jaxdata.SourceExhausted):
        for batch in loader:
            for loss, source in zip(batch["loss_mask"], batch["source"], strict=True):
                if source[0] >= 0:
                    phase = int(np.searchsorted(starts, row, side="right")) - 1
                    counts[phase][loader.source_names[source[0]]] += int(loss.sum())
                    row += 1
    return counts


def written(found: dict[str, Any]) -> str:
    """The tables as wide as they want to be."""
    console = Console(file=io.StringIO(), width=300)
    console.print(*preview_tables(found))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def compare(found: dict[str, Any], counts: list[Counter[str]]) -> None:
    for phase, count in zip(found["phases"], counts, strict=True):
        tokens = {name: source["tokens"] for name, source in phase["sources"].items()}
        assert {name: count[name] for name in tokens} == tokens
        assert set(count) <= set(tokens)
        assert phase["tokens"] == sum(count.values())
    assert found["tokens"] == sum(phase["tokens"] for phase in found["phases"])


PACKINGS: list[dict[str, Any]] = [
    {"strategy": "best_fit"},
    {"strategy": "concat", "reshuffle": "documents", "multiple": 2},
    {"strategy": "crop", "reshuffle": "documents"},
    {"strategy": "best_fit", "reshuffle": "documents", "multiple": 4},
]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_every_number_is_that_of_the_run(config: Path, packing: dict[str, Any]) -> None:
    given, strategy = (
        {f"pack.{name}": value for name, value in packing.items()},
        packing["strategy"],
    )
    status, found = foretold(config, *(str(e) for n, v in given.items() for e in (f"--{n}", v)))
    assert status == 0
    compare(found, delivered(config, found["phases"], **given))
    loader = jaxdata.load(config, **given)
    loader.seek(row=found["rows"])
    report, shown = loader.report(), written(found)
    assert found["steps"] == len(loader)
    assert (found["rows"], found["padding"]) == (500, report.padding)
    for name, source in found["sources"].items():
        assert source["run"]["epochs"] == pytest.approx(report.sources[name].epochs)
        plan, table = loader.rows.sources[name].plan, loader.rows.sources[name].table
        if "reshuffle" in packing:
            epochs = range(math.ceil(source["run"]["epochs"]))
            rows = [table.first_row(epoch + 1) - table.first_row(epoch) for epoch in epochs]
            assert source["rows_of_epochs"] == rows
            assert ", ".join(map(str, rows)) in shown
        else:
            assert "rows_of_epochs" not in source
        assert source["epoch"]["padding"] == plan.padding
        assert source["dropped"]["tokens_cropped"] == plan.dropped_tokens
        single = int((loader.rows.sources[name].table.documents[0].lengths == 1).sum())
        expected = 0 if strategy == "concat" else single
        assert source["dropped"]["documents_without_target"] == expected
    scored = sum(int(batch["loss_mask"].sum()) for batch in jaxdata.load(config, "val"))
    assert found["evaluation"]["val"]["tokens"] == scored


def test_a_run_that_is_amended_and_halts_is_foretold(config: Path, tmp_path: Path) -> None:
    sixty = {"rows": 60, "mix": {"web": 0.4, "code": 0.4, "wiki": 0.2}}
    later = {"pack": {"seq_len": 128, "strategy": "concat"}}
    later["curriculum"] = [sixty, {"rows": 5_000, "mix": {"web": 0.1, "wiki": 0.9}}]
    amendments = [
        {"at_row": 240, "curriculum": [{"rows": 200, "mix": {"web": 3, "wiki": 1}}]},
        {"at_row": 360, **later},
    ]
    amended = {"amendments": amendments, "on_exhaustion": "halt"}
    (tmp_path / "amended.yaml").write_text(config.read_text() + yaml.safe_dump(amended))
    status, found = foretold(tmp_path / "amended.yaml")
    assert status == 0
    compare(found, delivered(tmp_path / "amended.yaml", found["phases"]))
    assert found["rows"] == found["exhaustions"][-1]["row"] > 420
    assert [part["seq_len"] for part in found["sections"]] == [64, 128]
    loader = jaxdata.load(tmp_path / "amended.yaml")
    loader.seek(row=found["rows"])
    for name, source in loader.report().sources.items():
        run = found["sources"][name]["run"]
        parts = [each["sources"].get(name, {"epochs": 0})["epochs"] for each in found["phases"]]
        assert run["tokens"] == source.tokens
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(run["epochs"]) == pytest.approx(source.epochs)


def test_it_fits_80_columns_and_is_plain_in_a_pipe(config: Path) -> None:
    out = run("--config", config, "--epochs", "{wiki: 1.5}", "--on_exhaustion", "renormalize")[1]
    tables = out.split("ok ")[0]
    assert max(len(line.rstrip()) for line in tables.splitlines()) <= 80
    for last in ("dry at row", "wiki", "cropped"):
        assert any(line.rstrip().endswith(last) for line in tables.splitlines()), last
    assert "\x1b" not in out
    assert run("--config", config, "--pack.seq_len", "many")[0] == 1
    assert "error: no config at nowhere" in run("--config", "nowhere")[2]


def test_names_reach_the_terminal_as_text_only(tmp_path: Path) -> None:
    name = "[red]we\x1bb"
    path = builders.run(tmp_path, {name: [5, 1, 9]}, pack={"seq_len": 8})
    status, out, _ = run("--config", path)
    assert status == 0
    assert "\x1b" not in out
    assert "left out of [red]we\\x1bb: 1 documents of a single token" in out


def test_weights_by_loss_are_shown_in_tokens_with_loss(tmp_path: Path) -> None:
    """Of whole epochs they are exact: both sources are read three times."""
    sources = {"sft": builders.documents(200), "web": builders.documents(200, first=50_000)}
    rng = np.random.default_rng(1)
    masks = {"sft": [rng.random(len(each)) < 0.2 for each in sources["sft"]]}
    loss = sum(int(mask[1:].sum()) for mask in masks["sft"])
    config = builders.run(
        tmp_path,
        dataset=str(builders.dataset(tmp_path / "d", sources, masks=masks)),
        pack={"seq_len": 64},
        curriculum=[{"mix": "proportional"}],
        on_exhaustion="renormalize",
        epochs={"sft": 3, "web": 3},
        weigh_by="loss_tokens",
    )
    status, found = foretold(config)
    assert (status, found["weigh_by"]) == (0, "loss_tokens")
    (phase,) = found["phases"]
    web = found["sources"]["web"]["epoch"]["tokens"]
    assert found["sources"]["sft"]["loss_tokens"] == loss
    assert found["sources"]["web"]["loss_tokens"] == web
    for name, tokens in {"sft": loss, "web": web}.items():
        assert phase["sources"][name]["loss_tokens"] == 3 * tokens
        assert phase["sources"][name]["share_planned"] == pytest.approx(tokens / (loss + web))
        assert phase["sources"][name]["share_asked"] == pytest.approx(tokens / (loss + web))
    out = run("--config", config)[1]
    assert "weights are shares of tokens with loss" in out
    assert "with loss" in out
    loader = jaxdata.load(config)
    loader.seek(row=len(loader.rows))
    report = loader.report()
    for each in report.sources.values():  # of trained tokens, both
        assert each.planned == pytest.approx(each.share, abs=0.005)


def test_tokens_with_loss_are_shown_where_no_mask_must_be_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "why", "completion": "so"}\n' * 9)
    convert_here(
        path, output=tmp_path / "d", source="sft", task="sft", tokenizer="bytes", workers=1
    )
    masked = {"old": [np.arange(9) % 2]}
    builders.dataset(tmp_path / "old", {"old": [9]}, masks=masked)
    for name, source, expected in (("d", "sft", 9 * 3), ("old", "old", None)):
        found = foretold(builders.run(tmp_path, dataset=str(tmp_path / name)))[1]
        assert found["sources"][source]["loss_tokens"] == expected


# --- where a source runs dry, and whether the trainer's steps fit --------------------------------


def test_a_run_that_cannot_be_fails_and_shows_how_far_it_would_go(config: Path) -> None:
    status, out, _ = run("--config", config, "--epochs", "{wiki: 1}")
    assert status == 1
    assert "FAILED  sources   the mixture needs more rows than its sources have:" in out
    assert "source 'wiki': demanded " in out
    assert "none of its" in out or "of the 200 asked for" in out
    status, found = foretold(config, "--epochs", "{wiki: 1}")
    assert (status, found["ok"]) == (1, False)
    assert found["rows"] == found["exhaustions"][0]["row"] < 500


def test_rows_of_a_phase_are_told_from_how_many_it_has() -> None:
    phase = {"phase": 1, "first_row": 120, "rows": 40, "rows_asked": 120, "tokens": 9}
    phase["sources"] = {}
    found = {"phases": [phase, {**phase, "rows": 120}], "exhaustions": [], "sources": {}}
    titles = [str(table.title) for table in preview_tables(found)]
    assert titles[0] == "phase 1: rows 120 to 159, 40 of the 120 asked for, 9 tokens"
    assert titles[1] == "phase 1: rows 120 to 239, 9 tokens"


@pytest.mark.parametrize("way", ["halt", "renormalize"])
def test_exhaustion_is_shown_beforehand(config: Path, way: str) -> None:
    overrides = {"epochs": {"wiki": 1.5}, "on_exhaustion": way}
    arguments = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", way]
    status, found = foretold(config, *arguments)
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
    out = run("--config", config, *arguments)[1]
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


def test_a_phase_that_lasts_until_a_source_is_dry_says_so(config: Path) -> None:
    curriculum = json.dumps([{"mix": {"web": 0.5, "wiki": 0.5}}])
    status, out, _ = run("--config", config, "--curriculum", curriculum)
    rows = len(jaxdata.load(config, curriculum=json.loads(curriculum)).rows)
    assert status == 0
    assert f"ok      sources   the last phase ends at row {rows}, where one runs dry" in out


def test_an_amendment_that_allows_it_is_named(config: Path) -> None:
    amended = json.dumps([{"at_row": 320, "on_exhaustion": "renormalize", "epochs": {"wiki": 1.3}}])
    status, out, _ = run("--config", config, "--amendments", amended)
    assert status == 0
    assert re.search(r"source 'wiki' runs dry in phase 1 at row \d+ \(renormalize\)", out)


@pytest.mark.parametrize(
    ("steps", "allowed", "status", "says"),
    [
        (63, False, 0, "63 steps, all of them trained"),
        (40, False, 1, "train.steps is 40, and there are rows for 63 steps, so the curr"),
        (40, True, 0, "train.steps is 40, and there are rows for 63 steps"),
        (64, True, 1, "train.steps is 64, but there are rows for only 63 steps"),
    ],
)
def test_the_trainers_steps_are_compared_with_the_budget(
    config: Path, steps: int, allowed: bool, status: int, says: str
) -> None:
    more = ["--train.steps", str(steps), "--allow_budget_mismatch", str(allowed).lower()]
    ended, out, _ = run("--config", config, *more)
    assert ended == status
    assert f"{'FAILED ' if status else 'ok     '} budget    {says}" in out


def test_a_run_that_halts_needs_no_other_steps(config: Path) -> None:
    more = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", "halt", "--train.steps", "63"]
    status, out, _ = run("--config", config, *more)
    assert status == 0
    assert re.search(r"^halts   budget    the run halts after \d+ of 63 steps$", out, re.MULTILINE)


def test_without_a_curriculum_fewer_steps_are_fine(dataset: Path, tmp_path: Path) -> None:
    status, found = foretold(builders.run(tmp_path, dataset=str(dataset), train={"steps": 1}))
    assert status == 0
    assert set(found["sources"]) == {"code", "web", "wiki"}


def under_way(config: Path, tmp_path: Path, steps: int, **overrides: Any) -> Path:
    """A run's state after some steps."""
    loader = jaxdata.load(config, **overrides)
    for _ in range(steps):
        next(loader)
    (tmp_path / "state.json").write_text(json.dumps(loader.get_state()))
    return tmp_path / "state.json"


def test_a_run_under_way_is_judged_with_the_batches_it_had(config: Path, tmp_path: Path) -> None:
    state = under_way(config, tmp_path, 5, **{"loader.batch_size": 20})
    at = ["--config", config, "--state", state]
    status, found = foretold(config, "--state", state, "--loader.batch_size", "50")
    assert status == 0
    assert found["steps"] == 5 + (500 - 100) // 50
    out = run(*at, "--loader.batch_size", "50", "--train.steps", "13")[1]
    assert "ok      state     the run is at row 100, after 5 steps; 8 steps are left" in out
    assert "from row 0 on it had batches of 20 rows" in out
    assert "the next batch has 50 rows" in out
    assert "13 steps, all of them trained" in out
    status, out, _ = run(*at, "--loader.batch_size", "50", "--train.steps", "10")
    assert status == 1
    assert "FAILED  budget    train.steps is 10, and there are rows for 13 steps" in out


def test_another_config_than_that_of_the_run_fails_by_name(config: Path, tmp_path: Path) -> None:
    state = under_way(config, tmp_path, 2)
    arguments = ["--config", config, "--state", state, "--seed", "5"]
    status, out, _ = run(*arguments)
    assert status == 1
    assert "FAILED  state     this config cannot go on with that run:" in out
    assert "seed" in out


def test_amendments_and_the_lengths_of_their_rows_are_said(config: Path, tmp_path: Path) -> None:
    state = under_way(config, tmp_path, 5, **{"loader.batch_size": 20})
    longer = "[{at_row: 200, pack: {seq_len: 128}}]"
    out = run("--config", config, "--state", state, "--amendments", longer)[1]
    assert re.search(r"rows of [\d,]+, 128 from row 200 on in [\d,]+ steps", out)
    assert "amended from row 200 on: still to come" in out
