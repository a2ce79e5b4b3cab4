"""Every benchmark runs on a tiny corpus and prints what it should; figures are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "tools" / "bench"
EXPECTED = {
    "load": ["memmap crops", "jaxdata", "jaxdata, batch 8", "grain first fit, no threads"],
    "plan": ["numpy sort", "plan, best_fit", "pack(), crop", "open_dataset and pack", "pad"],
    "start": ["open, pack, Loader; plan made", "a second Loader over the same rows"],
    "resume": ["at row 0", "in epoch 1000", "grain first fit, no threads"],
    "convert": ["bytes alone, 1", "convert with bytes, 1"],
    "words": ["made: library", "made: words", "all: words"],
    "stream": ["a pass over what was converted", "stream_text", "convert, all cores"],
    "dedup": [
        *("recall of pairs of 0.8 and more", "jaxdata", "hashing: jaxdata"),
        *("20,000 signatures", "convert --minhash", "dedup, hashes kept"),
    ],
    "memory": ["jaxdata: anonymous after first batch", "jaxdata: anonymous"],
    "read_costs": ["one source: 480 rows over 48 hosts"],
    "shares": ["crop", "best_fit, overlap", "pad"],
    "shuffle": ["log-normal: best_fit", "log-normal: shards and a buffer"],
    "orders": ["log-normal: documents", "log-normal: chunks"],
    "lanes": [
        *("documents", "chunks, 512 lanes", "chunks, 64 lanes: first batch"),
        *("planning, chunks", "plans of 512 open blocks"),
    ],
    "mixture": ["one source, no mixture", "16 sources mixed"],
    "tensors": ["jaxdata, numpy", "Loader", "DataLoader of Loader", "StatefulDataLoader"],
    "shards": ["10 shards, a document", "1,000 shards, a row of 2048", "100 shards, opened: MB"],
    "buckets": ["folder: ms a batch", "gs: requests a batch", "gs: bytes over bytes of the rows"],
    "bucket_hosts": [
        "planned: bytes over those of the dataset",
        "downloaded: bytes over those of the dataset",
    ],
    "far_index": ["s to the first batch", "MB of index, plan and manifest"],
    "small_files": ["20 files: list, wall time", "40 files: convert, processor time"],
    "scale": ["O(documents): planning, once: 20,000", "16 sources, mix"],
}
KEYS = {"bench", "question", "name", "unit", "better", "median", "min", "max", "rounds", "facts"}


def run(name: str, folder: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--data", str(folder)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny corpora, made by the first script that needs them."""
    return tmp_path_factory.mktemp("bench")


def test_every_script_is_tried() -> None:
    scripts = {file.stem for file in SCRIPTS.glob("*.py") if "__main__" in file.read_text()}
    assert scripts == set(EXPECTED)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXPECTED)
def test_prints_json_lines(name: str, corpora: Path) -> None:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in run(name, corpora, "--json").splitlines()
    ]
    assert set(EXPECTED[name]) <= {line["name"] for line in lines}
    for line in lines:
        assert line.keys() >= KEYS
        assert line["bench"] == name
        assert line["min"] <= line["median"] <= line["max"]
        if "ratio" in line:
            assert line["ratio"] > 0
            assert line["against"] in {other["name"] for other in lines}


@pytest.mark.exhaustive
def test_prints_a_table(corpora: Path) -> None:
    shown = run("mixture", corpora, "--only", "4 sources", "--clock", "cpu")
    assert "Loading a mixture" in shown
    assert "median" in shown
    assert "ratio" in shown
    assert "16 sources" not in shown


def test_a_line_that_is_slower_has_the_smaller_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import harness

    report = harness.Report("toy", "Toy", "things a second")
    fast = harness.Contestant("fast", lambda: 1000.0)
    slow = harness.Contestant("slow", lambda: 1.0, "fast")
    harness.compare(report, [fast, slow], rounds=3, seconds=0.01)
    first, second = report.lines
    assert first.ratios == []
    assert len(second.figures) == len(second.ratios) == 3
    assert max(second.ratios) < 0.1
