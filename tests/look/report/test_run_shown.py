"""A run on the page: the numbers of its log, what happened to it, and `--live`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.config import load
from jaxdata.look.preview import work_of
from jaxdata.look.report.charts import short
from jaxdata.look.report.samples import token_texts
from jaxdata.tokenizers import load as load_tokenizer
from jaxdata.train.log import RunLog
from tests import builders, commands
from tests.look.report.conftest import HOSTILE, attacks, log_of, report

VOID = {"meta", "input", "br", "link", "img"}


class Element:
    """An element of a page: its tag, its attributes, and what it holds."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element] = []
        self.texts: list[str] = []

    def all(self, tag: str, **wanted: str) -> Iterator[Element]:
        for child in self.children:
            if child.tag == tag and wanted.items() <= child.attributes.items():
                yield child
            yield from child.all(tag, **wanted)

    @property
    def text(self) -> str:
        return "".join([*self.texts, *(each.text for each in self.children)]).strip()

    @property
    def value(self) -> str:
        """What a cell says exactly."""
        exact = next(self.all("data"), None)
        return self.text.replace(",", "") if exact is None else exact.attributes["value"]


class Tree(HTMLParser):
    """A page as a tree of elements; a tag that is not closed fails."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open = [Element("", {})]
        self.feed(html)
        assert len(self.open) == 1, [each.tag for each in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(self.open[-1].children[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].texts.append(data)


def tree_of(page: Path) -> Element:
    return Tree(page.read_text()).open[0]


def rows_of(root: Element, label: str) -> list[dict[str, str]]:
    """The rows of a table by the headings of their cells, exact."""
    table = next(t for t in root.all("table") if t.attributes.get("aria-label") == label)
    names = [each.text for each in next(table.all("tr")).children]
    return [
        dict(zip(names, (cell.value for cell in row.children), strict=True))
        for row in next(table.all("tbody")).all("tr")
    ]


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
    for width in ("wide", "narrow"):
        chart = next(root.all("svg", **{"class": f"chart {width}"}))
        assert next(chart.all("title")).text == "The run over its tokens"
        texts = [each.text for each in chart.all("text")]
        for said in ("phase 1", "▲ amended: phases, phase 2", "✕ code runs dry, ■ halted"):
            assert said in texts, width
        assert {"tokens a second", "waited for data, %", "loss", "validation loss"} <= {*texts}
        rules = [
            each.attributes["d"]
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
    report(halted.parent / "d", "--run", tmp_path / "log.jsonl", "-o", tmp_path / "r.html")
    root = tree_of(tmp_path / "r.html")
    trained = {each["source"]: each for each in rows_of(root, "Table of actual shares")}
    told = loader.report()
    for name, each in told.sources.items():
        assert int(trained[name]["tokens trained"]) == each.tokens
    (row,) = rows_of(root, "Table of what the log says")
    assert int(row["tokens"]) == told.tokens
    report(halted, "--run", tmp_path / "log.jsonl", "-o", tmp_path / "r.html")
    root = tree_of(tmp_path / "r.html")
    assert ["now: row 80", "80"] in [
        [e["event"], e["row"]] for e in rows_of(root, "Table of events")
    ]
    of_plan = {each["source"]: each for each in rows_of(root, "Table of actual shares")}
    for name, each in told.sources.items():
        assert int(of_plan[name]["tokens trained"]) == each.tokens
        assert float(of_plan[name]["epochs"]) == pytest.approx(each.epochs, abs=1e-3)


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


def test_how_evenly_hosts_share_the_work_is_said(tmp_path: Path) -> None:
    path = builders.run(tmp_path, {"a": 60}, pack={"seq_len": 64}, loader={"batch_size": 4})
    report("--config", path, "-o", tmp_path / "r.html")
    [said] = tree_of(tmp_path / "r.html").all("p", id="work")
    assert said.text == work_of(jaxdata.load(path))
    assert "slowest" in said.text


def test_names_in_a_log_are_text(tmp_path: Path) -> None:
    builders.dataset(tmp_path / "d", {"a": 9})
    names = [*attacks(9)[:-1], HOSTILE]
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


def test_a_colour_is_one_source_and_padding_is_hatched(page: Path) -> None:
    root = tree_of(page)
    colors: dict[str, set[str]] = {}
    for head in (each for row in root.all("tr") for each in row.all("th")):
        if swatches := [*head.all("rect")]:
            own = head.text.partition("/")[2]
            colors.setdefault(own, set()).add(swatches[0].attributes["fill"])
    for article in root.all(
        "article",
    ):
        if "data-tags" in article.attributes:
            own = re.split(r"[/:]", next(article.all("h3")).text)[1]
            colors.setdefault(own, set()).add(next(article.all("rect")).attributes["fill"])
    assert all(len(each) == 1 for each in colors.values())
    assert len({*map(min, colors.values())}) == len(colors) >= 4
    lengths = {
        next(f.all("figcaption")).text: f for f in root.all("figure") if [*f.all("figcaption")]
    }
    for name, figure in lengths.items():
        if "/" in name and [*figure.all("svg")]:
            fills = {each.attributes["fill"] for each in figure.all("rect")}
            assert fills == colors[name.partition("/")[2]]
    packing = next(root.all("section", id="packing"))
    fills = [each.attributes["fill"] for each in packing.all("rect")]
    assert "url(#hatch)" in fills
    assert not {each for each in fills if re.match(r"var\(--c\d", each)}
    assert len([*root.all("pattern", id="hatch")]) == 1


def test_a_run_has_the_colours_of_its_dataset(page: Path) -> None:
    """Of which it leaves out a source."""
    root = tree_of(page)
    colors = {
        head.text.partition("/")[2]: next(head.all("rect")).attributes["fill"]
        for row in next(next(root.all("section", id="sources")).all("table")).all("tr")
        for head in row.all("th", scope="row")
        if [*head.all("rect")]
    }
    chart = next(next(root.all("section", id="epochs")).all("svg"))
    names = [each.text for each in chart.all("text", fill="var(--ink)")]
    fills = [each.attributes["fill"] for each in chart.all("rect", **{"fill-opacity": "0.85"})]
    assert fills == [colors[name] for name in names]
    assert len({*fills}) == 3 < len({*colors.values()})


def test_cells_carry_the_headings_of_their_columns(page: Path) -> None:
    for table in tree_of(page).all("table"):
        head, *rows = table.all("tr")
        names = [each.text for each in head.children]
        for row in rows:
            for name, cell in zip(names, row.children, strict=False):
                if cell.tag == "td" and "colspan" not in cell.attributes:
                    assert cell.attributes["data-label"] == name


def test_large_numbers_are_short_and_whole_where_one_looks(page: Path) -> None:
    for each in tree_of(page).all("data"):
        value = float(each.attributes["value"])
        if value >= 10_000:
            assert each.text == short(value)
            assert float(re.sub(r"[ kMBT]", "", each.text)) < 1000


@pytest.mark.parametrize("number", [0, 9_999, 10_000, 999_499, 999_500, 11_380_862, 10**15])
def test_a_short_number_is_right_to_three_digits(number: int) -> None:
    digits, _, unit = short(number).replace(",", "").partition(" ")
    size = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[unit]
    assert float(digits) * size == pytest.approx(number, rel=0.005)


TEXTS = ["plain words", " a b\n\tc", "naïve café — 한국어 🙂🙂", "x", "  "]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_a_text_are_its_tokens(text: str) -> None:
    tokenizer = load_tokenizer("bytes")
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
    for cut in range(len(ids), max(len(ids) - 3, 0), -1):
        loss = np.arange(cut) % 3 > 0
        pieces = [*token_texts(ids[:cut], loss, tokenizer.decode, tokenizer.token_bytes)]
        whole = ids[:cut].tobytes()[::2].decode(errors="ignore")
        assert "".join(piece for piece, _ in pieces) == whole
        if text.isascii():
            assert pieces == [*zip(whole, loss.tolist(), strict=True)]


def test_where_borders_are_not_known_the_runs_of_loss_are() -> None:
    loss = np.array([True, True, False, True])
    pieces = token_texts(np.arange(4), loss, lambda ids: f"<{len(ids)}>", np.full(4, 9))
    assert [*pieces] == [("<2>", True), ("<1>", False), ("<1>", True)]


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        (["{d}", "--live"], 2, "--live: there is no log of a run; give its folder with --run"),
        (["{d}", "--run", "{here}/gone"], 1, "expected its folder (train.output of its config)"),
        (["{d}", "--run", "{here}/log.jsonl"], 1, "line 1 of"),
        (["{d}", "--run", "gs://b/run"], 1, "copy its log.jsonl from the bucket"),
    ],
)
def test_a_log_that_is_none_is_said_in_a_line(
    halted: Path, tmp_path: Path, given: list[str], status: int, says: str
) -> None:
    (tmp_path / "log.jsonl").write_text("not json\n")
    words = [each.format(here=tmp_path, d=halted.parent / "d") for each in given]
    done = commands.run("report", *words, "-o", tmp_path / "r.html", status=status)
    assert says in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_a_page_goes_on_with_its_run_and_over_a_kill(
    halted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, page = tmp_path / "run.yaml", tmp_path / "r.html"
    config.write_text(halted.read_text().replace(str(halted.parent / "run"), str(tmp_path / "run")))

    def seen() -> tuple[int, bool]:
        """The steps on the page, which is whole at any moment, and whether it reloads itself."""
        root = tree_of(page)
        (row,) = rows_of(root, "Table of what the log says")
        return int(row["steps done"]), bool([*root.all("meta", **{"http-equiv": "refresh"})])

    records = log_of(config, tmp_path / "run", 8)
    log = RunLog(tmp_path / "run/log.jsonl")
    command = ["report", str(config), "--live", "-o", str(page)]
    process = subprocess.Popen([sys.executable, "-m", "jaxdata", *command])
    while not page.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert seen() == (8, True)
    first = page.stat().st_mtime_ns
    log.write(*({**records[1], "step": step} for step in (8, 9)))
    while page.stat().st_mtime_ns == first:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert seen() == (10, True)

    lines = [{**records[1], "step": 10}, {"event": "end", "status": "done", "step": 11}]
    at_sleep: list[tuple[int, bool]] = []

    def sleep(_seconds: float) -> None:
        at_sleep.append(seen())
        log.write(lines[len(at_sleep) - 1])

    monkeypatch.setattr("jaxdata.cli.report_page.time.sleep", sleep)
    commands.run(*command)
    log.close()
    assert at_sleep == [(10, True), (11, True)]
    assert seen() == (11, False)
