"""A dataset with hostile text, a run over it, and its report."""

import json
import random
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import builders, commands
from tests.converter.here import convert_here

HOSTILE = "we<b>&\"'$x_1$"
"""the name of a source: conversions refuse it, configs do not"""


def attacks() -> list[str]:
    """Texts that would run, fetch or confuse if a page let them."""
    marks = 'document.title="owned"'
    return [
        f"</script><script>{marks}</script>",
        f"</pre></style><img src='http://127.0.0.1:9/a.png' onerror='{marks}'>",
        f'" onmouseover="{marks}" style="background:url(http://127.0.0.1:9/b.png)" x="',
        f"<svg onload='{marks}'><use href='http://127.0.0.1:9/c.svg#x'/></svg>",
        "<iframe src='http://127.0.0.1:9/d'></iframe><base href='http://x.test/'>",
        "{{ 7 * 7 }}{% raw %} ]]> <!-- --!> &lt;b&gt; &#0; "
        "turned \u202etxet\u202c \u2066isolated\u2069 nul \x00 escape \x1b[31m bell \x07 \ufeff",
    ]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, the config of a run and a state of it."""
    folder = tmp_path_factory.mktemp("report")
    numbers = random.Random(5)
    texts = {"attacks": attacks(), "val/attacks": ["x" * 10_000_000]}
    texts["web"] = ["words and words " * numbers.randrange(1, 30) for _ in range(150)]
    functions = [f"def f{n}():\n    return {n}\n" for n in range(90)]
    texts["code"] = [each * numbers.randrange(1, 12) for each in functions]
    texts["thin"] = [f"thin {n}" for n in range(60)]
    for source, some in texts.items():
        bad = ["{", '{"text": null}', '{"other": "<img src=x onerror=alert(1)>"}', '{"text": " "}']
        lines = [json.dumps({"text": text}) for text in some] + bad
        stem = "<script>" if source == "web" else source.replace("/", "-")
        name = folder / f"{stem}.jsonl"
        name.write_text("\n".join(lines))
        split, _, own = source.rpartition("/")
        where = {"output": folder / "data", "split": split or "train", "source": own}
        convert_here(str(name), **where, tokenizer="bytes", workers=1, min_chars=2)

    names = {HOSTILE: "web", "code": "code", "thin": "thin", "attacks": "attacks"}
    data = {n: {"dataset": str(folder / "data"), "source": own} for n, own in names.items()}
    phases = [{"rows": 400, "mix": {HOSTILE: 0.5, "code": 0.4, "thin": 0.1}}]
    phases += [{"rows": 300, "mix": {HOSTILE: 0.8, "code": 0.2}}]
    last = {"at_row": 500, "curriculum": [{"rows": 200, "mix": {HOSTILE: 1, "code": 1}}]}
    given = {"curriculum": phases, "amendments": [last], "on_exhaustion": "renormalize"}
    loader = {"batch_size": 4, "skip_rows": [[40, 60]]}
    builders.run(folder, **given, pack={"seq_len": 64}, loader=loader)
    with (folder / "run.yaml").open("a") as config:
        yaml.safe_dump({"sources": data}, config)
    return folder


class Element:
    """An element of a page: its tag, its attributes, and what it holds."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element] = []
        self.texts: list[str] = []

    def all(self, tag: str, **wanted: str) -> "Iterator[Element]":
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
        if tag not in {"meta", "input", "br", "link", "img"}:
            self.open.append(self.open[-1].children[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

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
    rows = next(table.all("tbody")).all("tr")
    return [dict(zip(names, (cell.value for cell in row.children), strict=True)) for row in rows]


def report(*arguments: Any) -> str:
    """Run `jaxdata report`; it ends well."""
    return commands.run("report", *map(str, arguments)).stdout


def log_of(config: Path, output: Path, steps: int | None = None, **end: Any) -> list[Any]:
    """Write the log that `jaxdata train` would write of these steps; returns its records."""
    from jaxdata.config import load
    from jaxdata.train.trainer import RunLog

    loader = load(config)
    records: list[Any] = [{"event": "start", "step": 0, "steps": len(loader)}]
    for step in range(len(loader) if steps is None else steps):
        targets = int(next(loader)["loss_mask"].sum())
        record = {"step": step, "loss": 7 / (step + 1) + 1 / 3, "targets": targets}
        speed = {"tokens_per_second": 1e4 + step, "wait_share": 0.25, "wait_seconds": 0.5}
        records.append(record | (speed if step % 2 else {}))
        if step % 10 == 9:
            records.append({"step": step + 1, "bits_per_byte": 2.5, "val_loss": 3.25 + 1 / step})
    records += [{"event": "end", "step": len(loader), **end}] if end else []
    log = RunLog(output / "log.jsonl")
    log.write(*records)
    log.close()
    return records


@pytest.fixture(scope="session")
def page(run: Path) -> Path:
    """The report of the run, at row 300 of it."""
    from jaxdata.config import load

    loader = load(run / "run.yaml")
    loader.seek(row=300)
    (run / "state.json").write_text(json.dumps(loader.get_state()))
    loader.close()
    said = report(run / "run.yaml", "--state", run / "state.json", "-o", run / "report.html")
    assert "kB; open it in a browser" in said
    return run / "report.html"
