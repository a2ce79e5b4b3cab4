"""Whatever there is to report on: other tools' data, nothing at all, buckets, many sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import install_command
from jaxdata.look.report import gathering
from jaxdata.testing import write_dataset
from tests import builders
from tests.builders import dataset
from tests.commands import run
from tests.look.report.conftest import report
from tests.storage.servers import bucket_server


def text_of(page: Path) -> str:
    """The page without tags."""
    body = page.read_text().partition("<body>")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def test_another_tools_data(tmp_path: Path) -> None:
    some = [each % 250 for each in builders.documents(50)]
    source = jaxdata.ArrayDocuments(some, name="train/m")
    jaxdata.export(source, tmp_path / "m", format="megatron")
    for more in ([], ["--tokenizer", "bytes"]):
        report(f"megatron:{tmp_path / 'm'}", *more, "--pack.seq_len", 64, "-o", tmp_path / "r.html")
        shown = text_of(tmp_path / "r.html")
        assert "train/m 50 " in shown
        assert ("Its tokenizer is unknown." in shown) != bool(more)


def test_many_sources_are_tabled_and_the_largest_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_DRAWN", 2)
    sources = {f"train/s{number}": 3 + 3 * number for number in range(4)}
    dataset(tmp_path / "d", sources)
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "The 2 largest sources are drawn." in shown
    assert "Lengths of train/s3" in shown
    assert "Lengths of train/s0" not in shown


def test_little_is_read_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
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
    said = run("report", tmp_path / "gone", "-o", tmp_path / "r.html", status=1).stderr
    assert f"jinja2 is not installed; install it with: {install_command('report')}" in said


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        (["{here}/d", "--state", "{here}/gone"], 1, "no state at"),
        (["{here}/d", "--step", "99999"], 1, "--step 99999: the run has steps 0 to"),
        (["{here}/d", "-o", "{here}/no/r.html"], 2, "there is no folder"),
        (["{here}/d", "--live"], 2, "--live: there is no log of a run; give its folder with --run"),
        (["{here}/d", "--run", "{here}/gone"], 1, "expected its folder (train.output of its conf"),
        (["{here}/d", "--run", "{here}/log.jsonl"], 1, "line 1 of"),
        (["{here}/d", "--run", "gs://b/run"], 1, "copy its log.jsonl from the bucket"),
    ],
)
def test_wrong_use_is_said_in_a_line(
    tmp_path: Path, given: list[str], status: int, says: str
) -> None:
    dataset(tmp_path / "d", {"a": 40})
    (tmp_path / "log.jsonl").write_text("not json\n")
    words = [each.format(here=tmp_path) for each in given]
    assert says in run("report", *words, status=status).stderr
