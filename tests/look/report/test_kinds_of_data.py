"""Whatever there is to report on: other tools' data, nothing at all, buckets, many sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import install_command
from jaxdata.look.report import Subject, gather, gathering
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


def reported(sources: Any, folder: Path, *more: Any) -> str:
    """The text of the report of a dataset of these sources."""
    dataset(folder / "d", sources)
    report(folder / "d", *more, "-o", folder / "r.html")
    return text_of(folder / "r.html")


def test_a_dataset_and_a_field(tmp_path: Path) -> None:
    shown = reported({"a": 80, "b": [1] * 5, "val/a": 9}, tmp_path, "--pack.seq_len", 128)
    assert "One epoch of split train in rows of 128 slots" in shown
    assert "train/a 80 " in shown
    assert "train/b 5 5" in shown
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d", "r.html"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for name, sources, says in (
        ("empty", {"a": []}, "train/a 0 0"),
        ("val", {"val/a": 4}, "There is no run to show: the dataset has no split"),
    ):
        (tmp_path / name).mkdir()
        assert says in reported(sources, tmp_path / name)


@pytest.mark.parametrize("tokenizer", [None, "bytes"])
def test_another_tools_data(tmp_path: Path, tokenizer: str | None) -> None:
    some = [each % 250 for each in builders.documents(50)]
    source = jaxdata.ArrayDocuments(some, name="train/m")
    jaxdata.export(source, tmp_path / "m", format="megatron")
    more = [] if tokenizer is None else ["--tokenizer", tokenizer]
    report(f"megatron:{tmp_path / 'm'}", *more, "--pack.seq_len", 64, "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "train/m 50 " in shown
    assert ("Its tokenizer is unknown." in shown) == (tokenizer is None)
    assert ("bytes of text a token" in shown) == (tokenizer is not None)


def test_a_run_that_would_not_start(tmp_path: Path) -> None:
    more = {"pack": {"seq_len": 64}, "curriculum": [{"rows": 9_000, "mix": {"a": 1}}]}
    config = builders.run(tmp_path, {"a": 30}, **more, loader={"batch_size": 2})
    report(config, "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "This run does not start as configured" in shown
    assert "a runs dry" in shown


def test_many_sources_are_tabled_and_the_largest_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_DRAWN", 2)
    sources = {f"train/s{number}": 3 + 3 * number for number in range(4)}
    shown = reported(sources, tmp_path)
    assert all(f" {name} " in shown for name in sources)
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


def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    opened = jaxdata.open_dataset(dataset(tmp_path / "d", {"a": 5, "b": 4}))
    told: list[tuple[int, int | None]] = []
    subject = Subject(dataset=opened, split="train", seq_len=8)
    gather(subject, lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(10)]


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ([], 2, "give a DATASET, which is a folder or URL, or a CONFIG"),
        (["{here}"], 1, "is not a dataset"),
        (["{here}/d", "--state", "{here}/gone"], 1, "no state at"),
        (["{here}/d", "--step", "99999"], 1, "--step 99999: the run has steps 0 to"),
        (["{here}/d", "-o", "{here}/no/r.html"], 2, "there is no folder"),
        (["{here}/d", "--packk.seq_len", "4"], 2, "--packk"),
    ],
)
def test_wrong_use_is_said_in_a_line(
    tmp_path: Path, given: list[str], status: int, says: str
) -> None:
    dataset(tmp_path / "d", {"a": 40})
    words = [each.format(here=tmp_path) for each in given]
    assert says in run("report", *words, status=status).stderr
