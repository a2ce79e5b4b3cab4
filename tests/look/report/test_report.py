"""A report: its numbers are those of the data, the log and the batches; whatever there is."""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import MissingExtra, install_command
from jaxdata.config import load, load_config
from jaxdata.look.report import Subject, gather, gathering, write_page
from jaxdata.look.report.gathering import Sample, draw_batch, token_texts
from jaxdata.look.report.page import _browser, fill
from jaxdata.testing import write_dataset
from jaxdata.tokenizers import load as load_tokenizer
from jaxdata.train.trainer import RunLog
from tests import builders, commands
from tests.conftest import ROOT
from tests.look.report.conftest import HOSTILE, attacks, log_of, report, rows_of, tree_of
from tests.readmes import TOP, of
from tests.storage.servers import bucket_server

IMAGES = ROOT / ".github" / "images"


@pytest.fixture(scope="module")
def halted(module_path: Path) -> Path:
    """The config of a run that is amended, and halts where a source runs dry."""
    phases = [{"rows": 40, "mix": {"web": 0.8, "code": 0.2}}]
    phases += [{"rows": 60, "mix": {"web": 0.5, "code": 0.5}}]
    more = {"at_row": 60, "curriculum": [{"rows": 900, "mix": {"web": 1, "code": 1}}]}
    given = {"curriculum": phases, "amendments": [more], "on_exhaustion": "halt"}
    given |= {"pack": {"seq_len": 32}, "loader": {"batch_size": 4}}
    given |= {"train": {"output": str(module_path / "run")}}
    return builders.run(module_path, {"web": 200, "code": 90, "val/web": 20}, **given)


def test_the_numbers_of_a_run_are_those_of_its_log(halted: Path, tmp_path: Path) -> None:
    """And what happened to it is ruled through its lines."""
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
    told = rows_of(root, "Table of validations")
    found = [(int(t["after steps"]), float(t["loss"]), float(t["bits a byte"])) for t in told]
    assert found == [(each["step"], each["val_loss"], each["bits_per_byte"]) for each in scores]
    trained = sum(int(each["tokens trained"]) for each in rows_of(root, "Table of actual shares"))
    assert trained == sum(each["targets"] for each in steps)
    events = {each["event"]: int(each["row"]) for each in rows_of(root, "Table of events")}
    last = len(load(halted).rows)
    begun = {"phase 0": 0, "phase 1": 40, "amended: phases": 60, "phase 2": 60}
    assert events == begun | {"code runs dry": last, "halted": last}
    chart = next(root.all("svg", **{"class": "chart narrow"}))
    texts = [each.text for each in chart.all("text")]
    said = ["phase 1", "▲ amended: phases, phase 2", "✕ code runs dry, ■ halted"]
    assert {*said, "tokens a second", "waited for data, %", "loss", "validation loss"} <= {*texts}
    paths = [each.attributes["d"] for each in chart.all("path", stroke="var(--ink)")]
    rules = [path for path in paths if re.fullmatch(r"M([\d.]+) [\d.]+L\1 [\d.]+", path)]
    assert len(rules) == 3 * 4, "at rows 40 and 60 and at the end, in each of four panels"


def test_a_run_of_another_trainer_over_a_dataset(halted: Path, tmp_path: Path) -> None:
    loader = load(halted)
    with (tmp_path / "log.jsonl").open("w") as log:
        for step in range(20):
            next(loader)
            print(json.dumps({"step": step, "loss": 1.0, **loader.scalars()}), file=log)
    told = loader.report()
    for subject in (halted.parent / "d", halted):
        report(subject, "--run", tmp_path / "log.jsonl", "-o", tmp_path / "r.html")
        root = tree_of(tmp_path / "r.html")
        trained = {each["source"]: each for each in rows_of(root, "Table of actual shares")}
        for name, each in told.sources.items():
            assert int(trained[name]["tokens trained"]) == each.tokens
            if subject == halted:  # which knows how long each source is
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
    tokens = [{f"tokens/{name}": k for name in names} for k in range(1, 4)]
    lines = [{"step": k, "loss": 1.0, "tokens": 10 * k, **own} for k, own in enumerate(tokens, 1)]
    end = {"event": "end", "status": names[0], "reason": names[1]}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*lines, end]))
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


def test_samples_are_chosen_by_source_length_and_fields_that_come_again() -> None:
    kept = [{"lang": "en", "id": "1"}, {"lang": "en", "id": "2"}, {"lang": "de"}]
    samples = [Sample("train/a", n, 0, 60 * n, "", own, None, False) for n, own in enumerate(kept)]
    tagged, choices = _browser(samples)
    assert (choices["source"], choices["lang"]) == (["train/a"], ["en", "de"])
    assert "id" not in choices
    tags = ["source=train/a", "length=from 64 tokens", "lang=de"]
    assert [json.loads(each) for _, each in tagged][2] == tags


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


def test_a_page_goes_on_with_its_run(halted: Path, tmp_path: Path, monkeypatch: Any) -> None:
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


def test_two_reports_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins, and ends, as the first one is about to put its page there."""
    dataset = write_dataset(tmp_path / "data", {"train/web": [[1, 2, 0]]})
    found = gather(Subject(dataset=dataset, split="train", seq_len=8))
    once, put = [lambda: write_page(found, tmp_path / "r.html")], Path.replace

    def replace(self: Path, target: Path) -> Path:
        if once:
            once.pop()()
        return put(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_page(found, tmp_path / "r.html")
    assert tree_of(tmp_path / "r.html").all("title")
    assert {each.name for each in tmp_path.iterdir()} == {"data", "r.html"}


def test_the_readme_shows_pictures_that_the_command_makes(tmp_path: Path) -> None:
    """Here of other documents in the same sources; they are data and nothing else."""
    numbers, made = np.random.default_rng(4), {}
    sources = {"code": (300, 9_000), "docs": (4_000, 250), "meta": (800, 4_000)}
    for name, (count, longest) in sources.items():
        lengths = numbers.integers(2, longest, count)
        made[name] = [numbers.integers(1, 250, length) for length in lengths]
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


def test_actual_shares_are_those_of_the_batches(run: Path, page: Path) -> None:
    found = gather(Subject.of(load_config(run / "run.yaml"), state=str(page.parent / "state.json")))
    loader = load(run / "run.yaml", **{"loader.extras": ["source"]})
    trained: Counter[str] = Counter()
    while loader.next_row < 300:
        batch = next(loader)
        numbers = batch["source"][batch["loss_mask"]]
        trained.update(loader.source_names[number] for number in numbers.tolist())
    assert found.curves is not None
    assert found.curves.now == {name: trained[name] for name in found.curves.names}
    for batch in loader:
        numbers = batch["source"][batch["loss_mask"]]
        trained.update(loader.source_names[number] for number in numbers.tolist())
    assert found.curves.tokens[-1] == trained.total()
    whole = np.diff(found.curves.tokens)
    for name in found.curves.names:
        assert round(float(np.dot(whole, found.curves.shares[name]))) == trained[name]


def test_a_batch_is_drawn_slot_by_slot(run: Path) -> None:
    loader = load(run / "run.yaml")
    batch = next(loader)
    drawn = draw_batch(loader, None, 0)
    assert len(drawn["rows"]) == drawn["batch_size"] == 4
    for number, row in enumerate(drawn["rows"]):
        ids, loss = np.zeros(64, int), np.zeros(64, bool)
        for segment, one in enumerate(row["segments"], 1):
            left, right = one["left"], one["left"] + one["width"]
            ids[round(left * 0.64) : round(right * 0.64)] = segment
        for left, width in row["loss"]:
            loss[round(left * 0.64) : round((left + width) * 0.64)] = True
        assert ids.tolist() == batch["segment_ids"][number].tolist()
        assert loss.tolist() == batch["loss_mask"][number].tolist()


def text_of(page: Path) -> str:
    """The page without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text().partition("<body>")[2]))


def test_another_tools_data(tmp_path: Path) -> None:
    source = jaxdata.ArrayDocuments([each % 250 for each in builders.documents(50)], name="train/m")
    jaxdata.export(source, tmp_path / "m", format="megatron")
    for more in ([], ["--tokenizer", "bytes"]):
        report(f"megatron:{tmp_path / 'm'}", *more, "--pack.seq_len", 64, "-o", tmp_path / "r.html")
        shown = text_of(tmp_path / "r.html")
        assert "train/m 50 " in shown
        assert ("Its tokenizer is unknown." in shown) != bool(more)


def test_many_sources_are_tabled_and_the_largest_drawn(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gathering, "MOST_DRAWN", 2)
    builders.dataset(tmp_path / "d", {f"train/s{number}": 3 + 3 * number for number in range(4)})
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "spread evenly over the 2 largest sources" in shown
    assert "train/s3:0" in shown
    assert "train/s0:0" not in shown


def test_little_is_read_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_server("s3") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        long = [np.arange(60_001) % 250] * 500
        write_dataset("s3://data/set", {"train/a": long}, shard_documents=50)
        server.clear()
        report("s3://data/set", "--pack.seq_len", 4096, "-o", tmp_path / "r.html")
        read, written = server.counts.sent, [r for r in server.requests if r.method == "PUT"]
    assert "train/a 500 " in text_of(tmp_path / "r.html")
    assert read < 500 * 60_001 / 2
    assert len(written) == 1, "the plan of the run is kept, those of other strategies are not"


def test_a_page_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is read, which may take minutes: even whether there is data."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    said = commands.run("report", tmp_path / "gone", "-o", tmp_path / "r.html", status=1).stderr
    assert f"jinja2 is not installed; install it with: {install_command('report')}" in said
    with pytest.raises(MissingExtra):
        fill("batch.svg")


def test_wrong_use_is_said_in_a_line(tmp_path: Path) -> None:
    data, log = builders.dataset(tmp_path / "d", {"a": 40}), tmp_path / "log.jsonl"
    log.write_text("not json\n")
    for given, status, says in (
        (["--state", tmp_path / "gone"], 1, "no state at"),
        (["--step", "99999"], 1, "--step 99999: the run has steps 0 to"),
        (["-o", tmp_path / "no/r.html"], 2, "there is no folder"),
        (["--live"], 2, "--live: there is no log of a run; give its folder with --run"),
        (["--run", tmp_path / "gone"], 1, "expected its folder (train.output of its conf"),
        (["--run", log], 1, "line 1 of"),
        (["--run", "gs://b/run"], 1, "copy its log.jsonl from the bucket"),
    ):
        assert says in commands.run("report", data, *given, status=status).stderr
