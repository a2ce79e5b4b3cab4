"""`jaxdata preview`: what it says a run will get is what the run then gets, to the token."""

import json
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from tests import builders, commands


def run(*arguments: str | Path, status: int = 0) -> str:
    """What the command prints."""
    return commands.run("preview", *arguments, status=status).stdout


foretold = partial(commands.described, "preview")


@pytest.fixture(scope="module")
def config(module_path: Path) -> Path:
    rng = np.random.default_rng(0)
    counts = {"web": 400, "code": 250, "wiki": 60, "val/web": 30}
    sources = {name: rng.integers(1, 150, count).tolist() for name, count in counts.items()}
    data = builders.dataset(module_path / "d", sources, shard_documents=100)
    phases = [{"rows": 300, "mix": {"web": 6, "code": 3, "wiki": 1}}]
    phases += [{"rows": 200, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}}]
    given = {"dataset": str(data), "pack": {"seq_len": 64}, "curriculum": phases}
    return builders.run(module_path, **given, epochs={"wiki": 4}, loader={"batch_size": 8})


def compare(found: dict[str, Any], config: Path, **overrides: Any) -> None:
    """Compare what was foretold with the targets with loss by phase and source in the batches."""
    loader = jaxdata.load(config, loader={"extras": ["source"]}, **overrides)
    counts: list[Counter[str]] = [Counter() for _ in found["phases"]]
    starts = [each["first_row"] for each in found["phases"] if each["first_row"] is not None]
    row = 0
    with suppress(jaxdata.SourceExhausted):
        for batch in loader:
            for loss, source in zip(batch["loss_mask"], batch["source"], strict=True):
                if source[0] >= 0:
                    phase = int(np.searchsorted(starts, row, side="right")) - 1
                    counts[phase][loader.source_names[source[0]]] += int(loss.sum())
                    row += 1
    for phase, count in zip(found["phases"], counts, strict=True):
        tokens = {name: source["tokens"] for name, source in phase["sources"].items()}
        assert {name: count[name] for name in tokens} == tokens
        assert phase["tokens"] == count.total()
    assert (found["rows"], found["tokens"]) == (row, sum(each.total() for each in counts))
    report = loader.report()
    for name, source in report.sources.items():
        parts = [each["sources"].get(name, {"epochs": 0})["epochs"] for each in found["phases"]]
        run = found["sources"][name]["run"]
        assert run["tokens"] == source.tokens
        assert sum(parts) == pytest.approx(run["epochs"]) == pytest.approx(source.epochs)
    assert found["padding"] == report.padding


CROP = {"strategy": "crop", "reshuffle": "documents", "multiple": 2}


@pytest.mark.parametrize("packing", [{"strategy": "best_fit"}, CROP], ids=str)
def test_every_number_is_that_of_the_run(config: Path, packing: dict[str, Any]) -> None:
    given = {f"pack.{name}": value for name, value in packing.items()}
    words = [str(each) for name, value in given.items() for each in (f"--{name}", value)]
    found = foretold(config, *words)
    compare(found, config, **given)
    loader = jaxdata.load(config, **given)
    assert found["steps"] == len(loader)
    for name, source in found["sources"].items():
        plan, docs = loader.rows.sources[name].plan, loader.rows.sources[name].table.documents[0]
        assert source["epoch"]["padding"] == plan.padding
        short = {"documents_without_target": int((docs.lengths == 1).sum())}
        assert source["dropped"] == {**short, "tokens_cropped": plan.dropped_tokens}
    scored = sum(int(batch["loss_mask"].sum()) for batch in jaxdata.load(config, "val"))
    assert found["evaluation"]["val"]["tokens"] == scored


def test_a_run_that_is_amended_and_halts_is_foretold(config: Path, tmp_path: Path) -> None:
    sixty = {"rows": 60, "mix": {"web": 0.4, "code": 0.4, "wiki": 0.2}}
    later = {"pack": {"seq_len": 128, "strategy": "concat"}}
    later["curriculum"] = [sixty, {"rows": 5_000, "mix": {"web": 0.1, "wiki": 0.9}}]
    first = [{"rows": 200, "mix": {"web": 3, "wiki": 1}}]
    amendments = [{"at_row": 240, "curriculum": first}, {"at_row": 360, **later}]
    amended = {"amendments": amendments, "on_exhaustion": "halt"}
    (tmp_path / "amended.yaml").write_text(config.read_text() + yaml.safe_dump(amended))
    found = foretold(tmp_path / "amended.yaml")
    compare(found, tmp_path / "amended.yaml")
    assert found["rows"] == found["exhaustions"][-1]["row"] > 420
    assert [part["seq_len"] for part in found["sections"]] == [64, 128]


def test_exhaustion_is_shown_beforehand(config: Path) -> None:
    given = [config, "--epochs", "{wiki: 1.5}", "--on_exhaustion", "renormalize"]
    found, out = foretold(*given), run(*given)
    compare(found, config, epochs={"wiki": 1.5}, on_exhaustion="renormalize")
    dry_row = found["exhaustions"][0]["row"]
    phase = found["phases"][found["exhaustions"][0]["phase"]]
    assert phase["sources"]["wiki"]["dry_at_row"] == dry_row
    assert "dry     sources   runs dry, as allowed:" in out
    assert f"source 'wiki' runs dry in phase {phase['phase']} at row {dry_row} (renorm" in out
    assert max(len(line.rstrip()) for line in out.split("ok ")[0].splitlines()) <= 80
    refused = foretold(config, "--epochs", "{wiki: 1.5}", status=1)
    assert (refused["ok"], refused["rows"]) == (False, dry_row)


def test_what_fits_and_what_does_not_is_said(config: Path) -> None:
    until_dry = ["--curriculum", '[{"mix": {"web": 0.5, "wiki": 0.5}}]']
    halts = ["--epochs", "{wiki: 1.5}", "--on_exhaustion", "halt", "--train.steps", "63"]
    fewer = ["--train.steps", "40"]
    for more, status, says in (
        (["--epochs", "{wiki: 1}"], 1, "^FAILED  sources   the mixture needs more rows than its s"),
        (until_dry, 0, r"^ok      sources   the last phase ends at row \d+, where one runs dry$"),
        (["--train.steps", "63"], 0, "^ok      budget    63 steps, all of them trained"),
        (fewer, 1, "^FAILED  budget    .* is 40, .* for 63 steps, so the curr"),
        ([*fewer, "--allow_budget_mismatch", "true"], 0, "^ok      budget .* 63 steps$"),
        (["--train.steps", "64"], 1, "^FAILED  budget    .* is 64, and there are rows for 63 ste"),
        (halts, 0, r"^halts   budget    the run halts after \d+ of 63 steps$"),
        (["--eval_split", "vall"], 1, "^FAILED  scoring   eval_split is 'vall'"),
    ):
        assert re.search(says, run(config, *more, status=status), re.MULTILINE), says


def test_a_run_under_way_is_judged_with_the_batches_it_had(config: Path, tmp_path: Path) -> None:
    loader, saved = jaxdata.load(config, **{"loader.batch_size": 20}), tmp_path / "state.json"
    for _ in range(5):
        next(loader)
    saved.write_text(json.dumps(loader.get_state()))
    longer = "[{at_row: 200, pack: {seq_len: 128}}]"
    given = ["--config", config, "--state", saved, "--amendments", longer]
    out = run(*given, "--loader.batch_size", "50")
    assert "ok      state     the run is at row 100, after 5 steps; " in out
    assert "the next batch has 50 rows" in out
    assert "amended from row 200 on: still to come" in out
    assert re.search(r"rows of [\d,]+, 128 from row 200 on in [\d,]+ steps", out)
    out = run(*given, "--seed", "5", status=1)
    assert "FAILED  state     this config cannot go on with that run:" in out


def test_what_is_taken_on_trust_is_counted_and_said(tmp_path: Path) -> None:
    """Of two datasets of ours, and one of another tool."""
    lengths = [20, 40, 9] * 40
    for name in ("new", "old"):
        builders.dataset(tmp_path / name, {name: lengths}, shard_documents=50)
    source = jaxdata.ArrayDocuments(builders.documents(lengths))
    jaxdata.export(source, tmp_path / "other", format="megatron")
    sources = {name: str(tmp_path / name) for name in ("new", "old")}
    sources["other"] = f"megatron:{tmp_path / 'other'}"
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"sources": sources, "pack": {"seq_len": 32}}))
    lines = run(path).splitlines()
    parts = f"6 shards ({6 * 131_072 / 1e6:.1f} MB) and 10 columns of the index"
    how = f"jaxdata verify {tmp_path}/new, jaxdata verify {tmp_path}/old"
    assert f"not compared with their checksums: {parts}; to compare them: {how}" in lines
    assert "without checksums, so damage may go unnoticed: train/other" in lines
    assert "ok      others    1 source of other tools, which have no checksums" in lines


def test_slots_with_loss_of_an_objective_are_the_batches(config: Path, monkeypatch: Any) -> None:
    for objective in ({"mtp": 3}, {"mask": {"token": 7, "rate": "uniform"}}):
        loader = jaxdata.load(config, loader={"objective": objective})
        made = [each.get("mtp_mask", each["loss_mask"][..., None]).any(-1) for each in loader]
        loss = sum(int(each.sum()) for each in made)
        given = [config, "--loader.objective", json.dumps(objective)]
        found, (name,) = foretold(*given)["objective"], objective
        assert found == {"name": name, "rows": 500, "slots": 500 * 64, "slots_with_loss": loss}
    said = f"{loss:,} of 32,000 slots ({loss / 320:.2f} %) have loss"
    assert f"objective mask: {said}, in all rows" in run(*given)
    monkeypatch.setattr("jaxdata.look.preview._COUNTED_SLOTS", 200 * 64)
    assert re.search(r"of 12,800 slots .* in 200 rows, drawn at random", run(*given))
