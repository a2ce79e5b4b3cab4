"""`jaxdata inspect`: numbers that are those of the data, drawn so that they can be read."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import jaxdata
from jaxdata.cli import main
from jaxdata.look.explanation import decoder
from jaxdata.look.packing import compare_strategies, packing_bars
from jaxdata.look.row_drawing import row_lines
from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.look.trace import Tracer
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.here import convert_here


def run(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    printed = capsys.readouterr()
    assert int(ended.value.code or 0) == status, printed.err
    return printed.err if status else printed.out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    for split, source, count in (("train", "web", 80), ("train", "wide", 30), ("val", "web", 9)):
        texts = [f"日本 {number}: " + "größer " * (number % 13) for number in range(count)]
        texts[5] = "\x1b[2Jcleared\x07\nand \u202eturned"
        file = folder / f"{split}-{source}.jsonl"
        lines = [json.dumps({"text": text}) for text in texts] + ["{", '{"text": null}']
        file.write_text("\n".join(lines))
        convert_here(
            str(file),
            output=folder / "data",
            source=source,
            split=split,
            tokenizer="bytes",
            workers=1,
        )
    config = {
        "dataset": str(folder / "data"),
        "pack": {"seq_len": 64},
        "curriculum": {"mix": {"web": 0.6, "wide": 0.4}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_a_dataset_in_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, folder / "data", "--json"))
    assert list(found["sources"]) == ["train/web", "train/wide", "val/web"]
    assert found["tokenizer"]["kind"] == "bytes"
    for name, source in found["sources"].items():
        split, _, own = name.partition("/")
        documents = jaxdata.open_dataset(folder / "data").source(split, own)
        lengths = np.sort(np.asarray(documents.lengths))
        assert (source["documents"], source["tokens"]) == (len(lengths), int(lengths.sum()))
        assert source["lengths"]["p50"] == lengths[-(-len(lengths) // 2) - 1]
        assert source["lengths"]["max"] == lengths[-1]
        assert source["bytes"] == sum(
            path.stat().st_size for path in (folder / "data" / name).glob("*.array_record")
        )
    out = run(capsys, folder / "data")
    for name, source in found["sources"].items():
        line = next(line for line in out.splitlines() if name in line)
        assert line.split()[1:3] == [f"{source['documents']:,}", f"{source['tokens']:,}"]
    assert "tokenizer: bytes, 257 tokens, EOD 256, BOS none, padding none" in out
    assert "quarantined: (" in out or "quarantined (" in out
    assert "not JSON: 1" in out
    counted = run(capsys, folder / "data", "--statistics")
    assert "records read" in counted
    assert max(cell_len(line.rstrip()) for line in counted.split("counted")[1].splitlines()) <= 80


def test_a_document_is_decoded_and_made_safe(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, folder / "data", "--document", "train/wide:7")
    text = "日本 7: " + "größer " * 7
    assert (
        out
        == f"train/wide:7: {len(text.encode()) + 1} tokens, from train-wide.jsonl line 8\n{text}\n"
    )
    out = run(capsys, folder / "data", "--document", "train/web:5")
    assert out.splitlines()[1:] == ["\\x1b[2Jcleared\\x07", "and \\u202eturned"]
    found = json.loads(run(capsys, folder / "data", "--document", "train/web:5", "--json"))
    assert found["parts"][0]["text"] == "\x1b[2Jcleared\x07\nand \u202eturned"
    assert len(found["tokens"]) == found["length"]


def test_what_has_no_loss_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = b"question? answer!"
    documents = [np.append(np.frombuffer(text, np.uint8), 256)]
    masks = [np.arange(len(text) + 1) >= 10]
    write_dataset(tmp_path / "d", {"train/chat": documents}, {"train/chat": masks})
    out = run(capsys, tmp_path / "d", "--document", "train/chat:0")
    assert out.splitlines()[0].startswith("train/chat:0: 18 tokens, 8 with loss")
    assert out.splitlines()[1] == "⟦question? ⟧answer!"
    out = run(capsys, tmp_path / "d", "--row", 0, "--pack.seq_len", 20)
    assert out.splitlines()[1] == "aaaaaaaaaAAAAAAAA..."


def test_a_row_is_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = jaxdata.load(folder / "run.yaml", pack={"overlap": 9}).rows
    for number in (0, 3, len(rows) - 1):
        arguments = ["--config", folder / "run.yaml", "--row", number, "--pack.overlap", 9]
        out = run(capsys, *arguments).splitlines()
        row = rows[number]
        expected = ""
        for segment, loss in zip(row["segment_ids"], row["loss_mask"], strict=True):
            letter = chr(ord("A") + int(segment) - 1) if segment else "."
            expected += letter if loss else letter.lower()
        assert out[1] == expected
        segments = int(row["segment_ids"].max())
        assert [line[0] for line in out[3::2]] == [chr(ord("A") + k) for k in range(segments)]
        found = json.loads(run(capsys, *arguments, "--json"))
        assert found["inputs"] == row["inputs"].tolist()
        assert len(found["pieces"]) == segments
    assert f"row {number} of {len(rows)}: " in out[0]
    assert "the run has rows 0 to" in run(
        capsys, "--config", folder / "run.yaml", "--row", 9999, status=2
    )


def test_long_rows_take_four_lines(folder: Path) -> None:
    loader = jaxdata.load(folder / "run.yaml", pack={"seq_len": 4000})
    pieces = Tracer(loader, None).rows([0])
    lines = [line.plain for line in row_lines(loader.rows[0], pieces, 80)]
    bars = lines[: lines.index(next(line for line in lines if "slots; lower case" in line))]
    assert len(bars) <= 4
    assert {len(bar) for bar in bars[:-1]} <= {80}
    assert lines[len(bars)].startswith("a character is 13 slots")
    assert lines[-1].endswith("more segments")


def test_strategies_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "run.yaml"
    found = json.loads(run(capsys, "--config", config, "--json"))["packing"]
    opened = jaxdata.open_dataset(folder / "data")
    sources = [opened.source("train", name) for name in ("web", "wide")]
    for cost, expected in zip(found, compare_strategies(sources, seq_len=64), strict=True):
        assert cost["strategy"] == expected.strategy
        assert (cost["rows"], cost["padding"]) == (expected.rows, expected.padding)
    out = run(capsys, "--config", config)
    bars = {line.split()[0]: line for line in out.splitlines() if "##" in line}
    assert list(bars) == ["pad", "concat", "crop", "best_fit"]
    assert bars["pad"].count(".") > bars["best_fit"].count(".")
    most = max(cost["slots"] + cost["dropped"] for cost in found)
    for cost in found:
        drawn = bars[cost["strategy"]]
        for mark, slots in (("#", cost["real"]), (".", cost["padding"]), ("x", cost["dropped"])):
            assert drawn.count(mark) == pytest.approx(70 * slots / most, abs=1)


def test_bars_of_nothing() -> None:
    costs = compare_strategies([jaxdata.ArrayDocuments([])], seq_len=8)
    assert [line.plain.strip() for line in packing_bars(costs, 80, plain=True)][:1] == ["pad"]


@pytest.mark.parametrize("arguments", [[], ["--row", "2"], ["--document", "train/wide:3"]])
def test_80_columns_and_plain_in_a_pipe(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    out = run(capsys, "--config", folder / "run.yaml", *arguments)
    assert "\x1b" not in out
    tables = [line for line in out.splitlines() if not line.startswith(("    ", "tokenizer"))]
    assert max(cell_len(line.rstrip()) for line in tables) <= 80


def test_colours_on_a_terminal(folder: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "jaxdata", "inspect", folder / "data", "--row", "1"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=child, stderr=subprocess.DEVNULL, env=environment)
    os.close(child)
    drawn = b""
    while True:
        try:
            drawn += os.read(parent, 65_536)
        except OSError:  # the other end is closed
            break
    os.close(parent)
    assert process.wait() == 0
    assert b"\x1b[30;46mA" in drawn


def test_wide_characters_are_measured(folder: Path) -> None:
    loader = jaxdata.load(folder / "run.yaml")
    opened = jaxdata.open_dataset(folder / "data")
    console = Console(width=40, file=io.StringIO(), record=True)
    for row in range(6):
        pieces = Tracer(loader, decoder(opened)).rows([row])
        for line in row_lines(loader.rows[row], pieces, 40):
            console.print(line, soft_wrap=True)
            if line.plain.startswith("  “"):
                assert cell_len(line.plain) <= 40


@given(st.text(), st.integers(2, 30))
def test_nothing_unsafe_is_printed_and_no_more_than_fits(text: str, width: int) -> None:
    safe = printable(text)
    assert safe.isprintable() or all(c == " " or c.isprintable() or c.isspace() for c in safe)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in safe)
    assert cell_len(fit(excerpt(text), width)) <= width
    if text.isascii() and text.isprintable():
        assert safe == text


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "give PATH or --config"),
        (["{d}", "--document", "web:3"], 2, "expected SPLIT/SOURCE:ID, like train/web:17"),
        (["{d}", "--document", "train/web:999"], 1, "no document 999 in train/web: it has 0 to 79"),
        (["{d}", "--document", "train/wob:1"], 1, "did you mean 'train/web'?"),
        (["nowhere"], 1, "nowhere is not a dataset"),
    ],
)
def test_what_is_asked_wrongly(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    filled = [each.format(d=folder / "data") for each in arguments]
    assert says in run(capsys, *filled, status=status)


def test_names_are_text_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", {"train/[red]a\x1b": distinct_documents([5, 9])})
    out = run(capsys, tmp_path / "d")
    assert "[red]a\\x1b" in out
    assert "\x1b" not in out
