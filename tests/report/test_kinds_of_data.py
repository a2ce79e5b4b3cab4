"""Whatever there is to report on: other tools' data, nothing at all, buckets, many sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from jaxdata.cli import main
from jaxdata.installing import install_command
from jaxdata.report import Subject, gather, gathering
from jaxdata.testing import write_dataset
from jaxdata.testing.buckets import bucket_server
from tests.report.conftest import report

RNG = np.random.default_rng(9)


def documents(count: int) -> list[np.ndarray]:
    return [np.append(RNG.integers(1, 250, RNG.integers(2, 90)), 0) for _ in range(count)]


def text_of(page: Path) -> str:
    """The page without tags."""
    body = page.read_text().partition("<body>")[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    assert ended.value.code in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_a_dataset_and_a_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", {"train/a": documents(80), "val/a": documents(9)})
    report(tmp_path / "d", "--pack.seq_len", 128, "-o", tmp_path / "r.html")
    assert "kB; open it in a browser" in capsys.readouterr().out
    shown = text_of(tmp_path / "r.html")
    assert "One epoch of split train in rows of 128 slots" in shown
    assert "train/a 80 " in shown
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d", "r.html"]


@pytest.mark.parametrize("tokenizer", [None, "bytes"])
def test_another_tools_data(tmp_path: Path, tokenizer: str | None) -> None:
    source = jaxdata.ArrayDocuments(documents(50), name="train/m")
    jaxdata.export(source, tmp_path / "m", format="megatron")
    more = [] if tokenizer is None else ["--tokenizer", tokenizer]
    report(f"megatron:{tmp_path / 'm'}", *more, "--pack.seq_len", 64, "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "train/m 50 " in shown
    assert ("Its tokenizer is unknown." in shown) == (tokenizer is None)
    assert ("bytes of text a token" in shown) == (tokenizer is not None)


def test_a_dataset_without_documents(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": []})
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "train/a 0 0" in shown
    assert "There is no run to show" in shown or "rows of" in shown


def test_a_dataset_without_the_split(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"val/a": documents(4)})
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    assert "There is no run to show: the dataset has no split" in text_of(tmp_path / "r.html")


def test_documents_of_one_token(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": [[0]] * 5, "train/b": documents(20)})
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    assert "train/a 5 5" in text_of(tmp_path / "r.html")


def test_a_run_that_would_not_start(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": documents(30)})
    config = {
        "dataset": str(tmp_path / "d"),
        "pack": {"seq_len": 64},
        "curriculum": [{"rows": 9_000, "mix": {"a": 1}}],
        "loader": {"batch_size": 2},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    report(tmp_path / "c.yaml", "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert "This run does not start as configured" in shown
    assert "a runs dry" in shown


def test_many_sources_are_tabled_and_the_largest_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_DRAWN", 2)
    sources = {f"train/s{number}": documents(3 + 3 * number) for number in range(4)}
    write_dataset(tmp_path / "d", sources)
    report(tmp_path / "d", "-o", tmp_path / "r.html")
    shown = text_of(tmp_path / "r.html")
    assert all(f" {name} " in shown for name in sources)
    assert "The 2 largest sources are drawn." in shown
    assert "Lengths of train/s3" in shown
    assert "Lengths of train/s0" not in shown


def test_little_is_read_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs jaxdata[buckets]")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    with bucket_server("s3") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        long = [np.append(RNG.integers(1, 250, 60_000), 0) for _ in range(500)]
        write_dataset("s3://data/set", {"train/a": long}, shard_documents=50)
        server.clear()
        report("s3://data/set", "--pack.seq_len", 4096, "-o", tmp_path / "r.html")
        read, written = server.counts.sent, [r for r in server.requests if r.method == "PUT"]
    assert "train/a 500 " in text_of(tmp_path / "r.html")
    assert read < 500 * 60_001 / 2
    assert len(written) == 1, "the plan of the run is kept, those of other strategies are not"


def test_a_page_needs_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before anything is read, which may take minutes: even whether there is data."""
    for package in ("matplotlib", "jinja2"):
        with monkeypatch.context() as without:
            for name in [n for n in sys.modules if n.partition(".")[0] == package]:
                without.delitem(sys.modules, name)
            without.setitem(sys.modules, package, None)
            said = refused(capsys, tmp_path / "gone", "-o", tmp_path / "r.html")
        assert f"{package} is not installed; install it with: {install_command('report')}" in said


def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", {"train/a": documents(5), "train/b": documents(4)})
    dataset = jaxdata.open_dataset(tmp_path / "d")
    told: list[tuple[int, int | None]] = []
    subject = Subject(dataset=dataset, split="train", seq_len=8)
    gather(subject, lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(10)]


def test_wrong_use_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", {"train/a": documents(40)})
    assert "give CONFIG" in refused(capsys)
    assert "is not a dataset" in refused(capsys, tmp_path)
    assert "no state at" in refused(capsys, tmp_path / "d", "--state", tmp_path / "gone")
    assert "--step 99999: the run has steps 0 to" in refused(
        capsys, tmp_path / "d", "--step", 99_999, "-o", tmp_path / "r.html"
    )
    assert "there is no folder" in refused(capsys, tmp_path / "d", "-o", tmp_path / "no" / "r.html")
    assert "--packk" in refused(capsys, tmp_path / "d", "--packk.seq_len", 4)
