"""A dataset with hostile text, a run over it, and its report."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests import builders, commands
from tests.converter.here import convert_here
from tests.look.report.chromium import Page, chromium

HOSTILE = "we<b>&\"'$x_1$"
"""the name of a source: conversions refuse it, configs do not"""


def attacks(port: int) -> list[str]:
    """Texts that would run, fetch or confuse if a page let them."""
    marks = 'document.title="owned"'
    return [
        f"</script><script>{marks}</script>",
        f"</pre></style><img src='http://127.0.0.1:{port}/a.png' onerror='{marks}'>",
        f'" onmouseover="{marks}" style="background:url(http://127.0.0.1:{port}/b.png)" x="',
        f"<svg onload='{marks}'><use href='http://127.0.0.1:{port}/c.svg#x'/></svg>",
        f"<iframe src='http://127.0.0.1:{port}/d'></iframe><base href='http://x.test/'>",
        "{{ 7 * 7 }}{% raw %} ]]> <!-- --!> &lt;b&gt; &#0; "
        "turned \u202etxet\u202c \u2066isolated\u2069 nul \x00 escape \x1b[31m bell \x07 \ufeff",
        "lone \ud800 surrogate \udfff and \U0001f600 한국어 עברית",
    ]


@pytest.fixture(scope="session")
def asked() -> Iterator[tuple[int, list[str]]]:
    """The port of a server, and the paths that were asked of it."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, paths
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, asked: tuple[int, list[str]]) -> Path:
    """A folder with a dataset, the config of a run and a state of it."""
    folder = tmp_path_factory.mktemp("report")
    numbers = random.Random(5)
    texts = {
        "attacks": attacks(asked[0]),
        "val/attacks": ["x" * 10_000_000],
        "web": ["words and words " * numbers.randrange(1, 30) for _ in range(150)],
        "code": [f"def f{n}():\n    return {n}\n" * numbers.randrange(1, 12) for n in range(90)],
        "thin": [f"thin {n}" for n in range(60)],
    }
    for source, some in texts.items():
        bad = ["{", '{"text": null}', '{"other": "<img src=x onerror=alert(1)>"}', '{"text": " "}']
        lines = [json.dumps({"text": text}) for text in some] + bad
        name = folder / (
            "<script>.jsonl" if source == "web" else f"{source.replace('/', '-')}.jsonl"
        )
        name.write_text("\n".join(lines))
        split, _, own = source.rpartition("/")
        where = {"output": folder / "data", "split": split or "train", "source": own}
        convert_here(str(name), **where, tokenizer="bytes", workers=1, min_chars=2)
    last = [{"rows": 200, "mix": {HOSTILE: 1, "code": 1}}]
    names = {HOSTILE: "web", "code": "code", "thin": "thin", "attacks": "attacks"}
    data = {n: {"dataset": str(folder / "data"), "source": own} for n, own in names.items()}
    builders.run(
        folder,
        pack={"seq_len": 64},
        curriculum=[
            {"rows": 400, "mix": {HOSTILE: 0.5, "code": 0.4, "thin": 0.1}},
            {"rows": 300, "mix": {HOSTILE: 0.8, "code": 0.2}},
        ],
        on_exhaustion="renormalize",
        amendments=[{"at_row": 500, "curriculum": last}],
        loader={"batch_size": 4, "skip_rows": [[40, 60]]},
    )
    with (folder / "run.yaml").open("a") as config:
        yaml.safe_dump({"sources": data}, config)
    return folder


def report(*arguments: Any) -> str:
    """Run `jaxdata report`; it ends well."""
    return commands.run("report", *map(str, arguments)).stdout


def log_of(config: Path, output: Path, steps: int | None = None, **end: Any) -> list[Any]:
    """Write the log that `jaxdata train` would write of these steps; returns its records."""
    from jaxdata.config import load
    from jaxdata.train.log import RunLog

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
    assert "kB; open it in a browser" in report(
        run / "run.yaml", "--state", run / "state.json", "-o", run / "report.html"
    )
    return run / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a browser; skips where none is installed."""
    with chromium(tmp_path_factory.mktemp("browser")) as tab:
        yield tab
