"""A run on the page: the numbers of its log, what happened to it, and `--live`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import jaxdata
from jaxdata.config import load
from jaxdata.look.report.samples import token_texts
from jaxdata.tokenizers import load as load_tokenizer
from jaxdata.train.log import RunLog
from tests import builders
from tests.conftest import ROOT
from tests.look.report.conftest import HOSTILE, attacks, log_of, report, rows_of, tree_of
from tests.readmes import TOP, of

IMAGES = ROOT / ".github" / "images"


@pytest.fixture(scope="module")
def halted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a run that is amended, and halts where a source runs dry."""
    folder = tmp_path_factory.mktemp("halted")
    phase = {"rows": 60, "mix": {"web": 0.5, "code": 0.5}}
    return builders.run(
        folder,
        {"web": 200, "code": 90, "val/web": 20},
        pack={"seq_len": 32},
        curriculum=[{"rows": 40, "mix": {"web": 0.8, "code": 0.2}}, phase],
        amendments=[{"at_row": 60, "curriculum": [{"rows": 900, "mix": {"web": 1, "code": 1}}]}],
        on_exhaustion="halt",
        loader={"batch_size": 4},
        train={"output": str(folder / "run")},
    )


def test_the_numbers_of_a_run_are_those_of_its_log(halted: Path, tmp_path: Path) -> None:
    reason = "source 'code' <runs> dry"
    records = log_of(halted, halted.parent / "run", status="halted", reason=reason)
    said = report(halted, "-o", tmp_path / "r.html")
    assert "r.html" in said
    root = tree_of(tmp_path / "r.html")
    (row,) = rows_of(root, "Table of what the log says")
    steps = [each for each in records if "loss" in each]
    assert int(row["steps done"]) == len(steps) == int(row["of"])
    assert int(row["tokens"]) == sum(each["targets"] for each in steps)
    assert float(row["first loss"]) == steps[0]["loss"]
    assert float(row["last loss"]) == steps[-1]["loss"]
    assert float(row["seconds waited"]) == sum(each.get("wait_seconds", 0) for each in steps)
    assert row["end"] == f"halted: {reason}"
    scores = [each for each in records if "bits_per_byte" in each]
    assert [
        (int(each["after steps"]), float(each["loss"]), float(each["bits a byte"]))
        for each in rows_of(root, "Table of validations")
    ] == [(each["step"], each["val_loss"], each["bits_per_byte"]) for each in scores]
    trained = sum(int(each["tokens trained"]) for each in rows_of(root, "Table of actual shares"))
    assert trained == sum(each["targets"] for each in steps)


def test_what_happened_to_a_run_is_ruled_through_its_lines(halted: Path, tmp_path: Path) -> None:
    log_of(halted, tmp_path / "own", status="halted", reason="dry")
    report(halted, "--run", tmp_path / "own", "-o", tmp_path / "r.html")
    root = tree_of(tmp_path / "r.html")
    events = {each["event"]: int(each["row"]) for each in rows_of(root, "Table of events")}
    last = len(load(halted).rows)
    assert events == {
        "phase 0": 0,
        "phase 1": 40,
        "amended: phases": 60,
        "phase 2": 60,
        "code runs dry": last,
        "halted": last,
    }
    chart = next(root.all("svg", **{"class": "chart narrow"}))
    texts = [each.text for each in chart.all("text")]
    said = ["phase 1", "▲ amended: phases, phase 2", "✕ code runs dry, ■ halted"]
    assert {*said, "tokens a second", "waited for data, %", "loss", "validation loss"} <= {*texts}
    rules = [
        each
        for each in chart.all("path", stroke="var(--ink)")
        if re.fullmatch(r"M([\d.]+) [\d.]+L\1 [\d.]+", each.attributes["d"])
    ]
    assert len(rules) == 3 * 4, "at rows 40 and 60 and at the end, in each of four panels"


def test_a_run_of_another_trainer_over_a_dataset(halted: Path, tmp_path: Path) -> None:
    loader = load(halted)
    with (tmp_path / "log.jsonl").open("w") as log:
        for step in range(20):
            next(loader)
            print(json.dumps({"step": step, "loss": 1.0, **loader.scalars()}), file=log)
    told = loader.report()
    for given in (halted.parent / "d", halted):
        report(given, "--run", tmp_path / "log.jsonl", "-o", tmp_path / "r.html")
        root = tree_of(tmp_path / "r.html")
        trained = {each["source"]: each for each in rows_of(root, "Table of actual shares")}
        for name, each in told.sources.items():
            assert int(trained[name]["tokens trained"]) == each.tokens
            if given == halted:  # which knows how long each source is
                assert float(trained[name]["epochs"]) == pytest.approx(each.epochs, abs=1e-3)
    events = [(each["event"], each["row"]) for each in rows_of(root, "Table of events")]
    assert ("now: row 80", "80") in events


def test_the_page_says_what_made_it(halted: Path, tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    report(halted, "--seed", 3, "--step", 2, "-o", page)
    footer = next(tree_of(page).all("footer"))
    facts = {each.children[0].text: each.children[1].text for each in footer.all("div")}
    assert facts["command"] == f"jaxdata report {halted} --seed 3 --step 2 -o '{page}'"
    assert facts["jaxdata"] == jaxdata.__version__
    assert facts["fingerprint of the run"] == load(halted, seed=3).get_state()["fingerprint"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", facts["written"])
    assert "seed: 3\n" in next(footer.all("pre")).text


def test_a_log_that_another_run_left_is_not_shown(halted: Path, tmp_path: Path) -> None:
    log_of(halted, tmp_path / "run", 4)
    other = load(halted, seed=9).get_state()
    (tmp_path / "run/checkpoints/4/loader").mkdir(parents=True)
    (tmp_path / "run/checkpoints/4/loader/metadata").write_text(json.dumps(other))
    report(halted, "--train.output", tmp_path / "run", "-o", tmp_path / "r.html")
    root = tree_of(tmp_path / "r.html")
    assert "is of another run" in next(root.all("section", id="notes")).text
    assert not [*root.all("table", id="logged")]


def test_names_in_a_log_are_text(tmp_path: Path) -> None:
    builders.dataset(tmp_path / "d", {"a": 9})
    names = [*attacks(), HOSTILE]
    lines = [
        {"step": k, "loss": 1.0, "tokens": 10 * k} | {f"tokens/{n}": k for n in names}
        for k in range(1, 4)
    ]
    end = {"event": "end", "status": names[0], "reason": names[1]}
    text = "".join(json.dumps(each) + "\n" for each in [*lines, end])
    (tmp_path / "log.jsonl").write_text(text)
    report(tmp_path / "d", "--run", tmp_path / "log.jsonl", "-o", tmp_path / "r.html")
    root = tree_of(tmp_path / "r.html")
    assert len([*root.all("script")]) == len([*root.all("style")]) == 1
    for tag in ("img", "iframe", "base", "object", "link", "use", "b"):
        assert not [*root.all(tag)], tag
    every = [each for tag in ("svg", "text", "td", "th", "i", "article") for each in root.all(tag)]
    assert not [e for e in every if any(n.startswith("on") or n == "style" for n in e.attributes)]
    shown = [each["source"] for each in rows_of(root, "Table of actual shares")]
    assert shown[-1] == HOSTILE
    assert shown[0] == names[0]
    assert "\u202e" not in root.text


def test_pieces_of_a_text_are_its_tokens() -> None:
    tokenizer, text = load_tokenizer("bytes"), " a b\n\tnaïve café — 한국어 🙂🙂"
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
    for cut in range(1, len(ids)):
        loss = np.arange(cut) % 3 > 0
        pieces = [*token_texts(ids[:cut], loss, tokenizer.decode, tokenizer.token_bytes)]
        whole = ids[:cut].tobytes()[::2].decode(errors="ignore")
        assert "".join(piece for piece, _ in pieces) == whole
        if len(whole) == cut:
            assert pieces == [*zip(whole, loss.tolist(), strict=True)]


def test_a_page_goes_on_with_its_run(
    halted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is whole at any moment."""
    records, log = log_of(halted, tmp_path / "own", 8), RunLog(tmp_path / "own/log.jsonl")
    lines = [{**records[1], "step": 8}, {"event": "end", "status": "done", "step": 9}]
    seen: list[tuple[str, bool]] = []

    def look(_seconds: float = 0) -> None:
        root = tree_of(tmp_path / "r.html")
        (row,) = rows_of(root, "Table of what the log says")
        seen.append((row["steps done"], bool([*root.all("meta", **{"http-equiv": "refresh"})])))
        if lines:
            log.write(lines.pop(0))

    monkeypatch.setattr("jaxdata.cli.report_page.time.sleep", look)
    report(halted, "--run", tmp_path / "own", "--live", "-o", tmp_path / "r.html")
    look()
    log.close()
    assert seen == [("8", True), ("9", True), ("9", False)]


def test_the_readme_shows_pictures_that_the_command_makes(tmp_path: Path) -> None:
    """Here of other documents in the same sources; they are data and nothing else."""
    numbers = np.random.default_rng(4)
    sources = {"code": (300, 9_000), "docs": (4_000, 250), "meta": (800, 4_000)}
    made = {
        name: [numbers.integers(1, 250, length) for length in numbers.integers(2, longest, count)]
        for name, (count, longest) in sources.items()
    }
    builders.dataset(tmp_path / "data", made)
    config = of("report").blocks("yaml")[0].replace("runs/pictures", str(tmp_path / "run"))
    config = config.replace("jaxdata-demo/dataset", str(tmp_path / "data"))
    (tmp_path / "pictures.yaml").write_text(config)
    log_of(tmp_path / "pictures.yaml", tmp_path / "run", status="halted", reason="docs runs dry")
    asked = ("--step", 200, "-o", tmp_path / "r.html", "--images", tmp_path / "images")
    report(tmp_path / "pictures.yaml", *asked)
    shown = set(re.findall(r"\]\(\.github/images/([\w.]+)\)", TOP.text))
    assert {image.name for image in IMAGES.iterdir()} == shown
    for name in shown:
        words = []
        for image in (IMAGES / name, tmp_path / "images" / name):
            tree = ElementTree.parse(image)
            assert not [e for e in tree.iter() if "style" in e.attrib or e.tag.endswith("script")]
            texts = tree.iter("{http://www.w3.org/2000/svg}text")
            words.append({re.sub(r"\d[\d,.]*[kM]?", "0", "".join(t.itertext())) for t in texts})
            found = {*re.findall(r"https?://[^\"]+", image.read_text())}
            assert found <= {f"http://www.w3.org/{own}" for own in ("2000/svg", "1999/xlink")}
        assert words[0] & words[1], name
