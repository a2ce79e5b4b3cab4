"""`jaxdata inspect`: numbers that are those of the data, drawn so that they can be read."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import jaxdata
from jaxdata.look.document import row_lines, said_of
from jaxdata.look.strategies import compare_strategies, packing_table, rows_saved
from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.look.trace import Tracer, decoder
from tests import builders, commands
from tests.converter.here import convert_here
from tests.look.terminals import on_a_terminal


def run(*arguments: Any, status: int = 0) -> str:
    """What the command prints, and where it fails what it says."""
    done = commands.run("inspect", *map(str, arguments), status=status)
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    for split, source, count in (("train", "web", 80), ("train", "wide", 30), ("val", "web", 9)):
        texts = [f"日本 {number}: " + "größer " * (number % 13) for number in range(count)]
        texts[5] = "\x1b[2Jcleared\x07\nand \u202eturned"
        file = folder / f"{split}-{source}.jsonl"
        lines = [json.dumps({"text": text}) for text in texts] + ["{", '{"text": null}']
        file.write_text("\n".join(lines))
        where = {"output": folder / "data", "source": source, "split": split}
        convert_here(str(file), **where, tokenizer="bytes", workers=1)
    mix = {"mix": {"web": 0.6, "wide": 0.4}}
    builders.run(folder, dataset=str(folder / "data"), pack={"seq_len": 64}, curriculum=mix)
    return folder


def test_a_dataset_in_numbers(folder: Path) -> None:
    found = json.loads(run(folder / "data", "--json"))
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
    out = run(folder / "data")
    for name, source in found["sources"].items():
        line = next(line for line in out.splitlines() if name in line)
        assert line.split()[1:3] == [f"{source['documents']:,}", f"{source['tokens']:,}"]
    assert "tokenizer: bytes, 257 tokens, EOD 256, BOS none, padding none" in out
    assert "quarantined: (" in out or "quarantined (" in out
    assert "not JSON: 1" in out
    counted = run(folder / "data", "--statistics")
    assert "records read" in counted
    assert max(cell_len(line.rstrip()) for line in counted.split("counted")[1].splitlines()) <= 80


def test_a_document_is_decoded_and_made_safe(folder: Path) -> None:
    out = run(folder / "data", "--document", "train/wide:7")
    text = "日本 7: " + "größer " * 7
    assert (
        out
        == f"train/wide:7: {len(text.encode()) + 1} tokens, from train-wide.jsonl line 8\n{text}\n"
    )
    out = run(folder / "data", "--document", "train/web:5")
    assert out.splitlines()[1:] == ["\\x1b[2Jcleared\\x07", "and \\u202eturned"]
    found = json.loads(run(folder / "data", "--document", "train/web:5", "--json"))
    assert found["parts"][0]["text"] == "\x1b[2Jcleared\x07\nand \u202eturned"
    assert len(found["tokens"]) == found["length"]


def test_what_has_no_loss_is_told_apart(tmp_path: Path) -> None:
    text = b"question? answer!"
    documents = [np.append(np.frombuffer(text, np.uint8), 256)]
    masks = [np.arange(len(text) + 1) >= 10]
    builders.dataset(tmp_path / "d", {"chat": documents}, masks={"chat": masks})
    out = run(tmp_path / "d", "--document", "train/chat:0")
    assert out.splitlines()[0].startswith("train/chat:0: 18 tokens, 8 with loss")
    assert out.splitlines()[1] == "⟦question? ⟧answer!"
    out = run(tmp_path / "d", "--row", 0, "--pack.seq_len", 20)
    assert out.splitlines()[1] == "aaaaaaaaaAAAAAAAA..."


def test_a_row_is_drawn(folder: Path) -> None:
    rows = jaxdata.load(folder / "run.yaml", pack={"overlap": 9}).rows
    for number in (0, 3, len(rows) - 1):
        arguments = ["--config", folder / "run.yaml", "--row", number, "--pack.overlap", 9]
        out = run(*arguments).splitlines()
        row = rows[number]
        expected = ""
        for segment, loss in zip(row["segment_ids"], row["loss_mask"], strict=True):
            letter = chr(ord("A") + int(segment) - 1) if segment else "."
            expected += letter if loss else letter.lower()
        assert out[1] == expected
        segments = int(row["segment_ids"].max())
        assert [line[0] for line in out[3::2]] == [chr(ord("A") + k) for k in range(segments)]
        found = json.loads(run(*arguments, "--json"))
        assert found["inputs"] == row["inputs"].tolist()
        assert len(found["pieces"]) == segments
    assert f"row {number} of {len(rows)}: " in out[0]
    assert "the run has rows 0 to" in run("--config", folder / "run.yaml", "--row", 9999, status=2)


def test_long_rows_take_four_lines(folder: Path) -> None:
    loader = jaxdata.load(folder / "run.yaml", pack={"seq_len": 4000})
    lines = [
        line.plain
        for line in row_lines(loader.rows[0], said_of(Tracer(loader, None).rows([0])), 80)
    ]
    above = next(k for k, line in enumerate(lines) if line.startswith("a character is 13 slots"))
    assert above <= 4
    assert {len(bar) for bar in lines[: above - 1]} <= {80}
    assert lines[-1].split()[0] in {"T", "..."} or lines[-1].endswith("more segments")


def test_strategies_side_by_side(folder: Path) -> None:
    config = folder / "run.yaml"
    found = json.loads(run("--config", config, "--json"))["packing"]
    opened = jaxdata.open_dataset(folder / "data")
    sources = [opened.source("train", name) for name in ("web", "wide")]
    numbers = [(cost["strategy"], cost["rows"], cost["padding"]) for cost in found]
    expected = compare_strategies(sources, seq_len=64)
    assert numbers == [(cost.strategy, cost.rows, cost.padding) for cost in expected]
    out = run("--config", config)
    for cost in found:
        assert re.search(rf"\b{cost['strategy']} +{cost['rows']:,} ", out)


def test_costs_add_up_and_are_those_of_the_plans() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 500)
    docs = jaxdata.ArrayDocuments([np.ones(length, np.int32) for length in lengths])
    costs = {cost.strategy: cost for cost in compare_strategies([docs, docs], seq_len=64)}
    targets = 2 * int((lengths - 1).sum())
    assert list(costs) == ["pad", "concat", "crop", "best_fit"]
    for strategy, cost in costs.items():
        plan = jaxdata.pack(docs, seq_len=64, strategy=strategy).plan
        assert (cost.rows, cost.padding) == (2 * plan.rows, 2 * plan.padding)
        assert cost.real + cost.padding == cost.slots == 64 * cost.rows
    assert costs["pad"].real == costs["best_fit"].real == targets
    assert costs["concat"].real == targets + 2 * len(lengths), "the last token of each is an input"
    assert costs["crop"].real + costs["crop"].dropped == targets
    assert costs["best_fit"].padding_share < 0.02 < costs["pad"].padding_share
    saved = rows_saved(list(costs.values()))
    assert saved == 1 - costs["best_fit"].rows / costs["pad"].rows > 0.1
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(packing_table(list(costs.values()), seq_len=64))
    text = console.export_text()
    assert "seq_len 64" in text
    assert all(f"{cost.rows:,}" in text for cost in costs.values())
    assert all(f"{cost.padding:,}" in text for cost in costs.values())


def test_nothing_is_compared_without_documents() -> None:
    costs = compare_strategies([jaxdata.ArrayDocuments([])], seq_len=8)
    assert [cost.padding_share for cost in costs] == [0.0] * 4
    assert rows_saved(costs) == 0.0


@pytest.mark.parametrize("arguments", [[], ["--row", "2"], ["--document", "train/wide:3"]])
def test_80_columns_and_plain_in_a_pipe(folder: Path, arguments: list[str]) -> None:
    out = run("--config", folder / "run.yaml", *arguments)
    assert "\x1b" not in out
    tables = [line for line in out.splitlines() if not line.startswith(("    ", "tokenizer"))]
    assert max(cell_len(line.rstrip()) for line in tables) <= 80


@pytest.mark.slow
def test_colours_on_a_terminal(folder: Path) -> None:
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "jaxdata", "inspect", folder / "data", "--row", "1"]
    status, drawn = on_a_terminal(command, environment)
    assert status == 0
    assert "\x1b[30;46mA" in drawn


def test_wide_characters_are_measured(folder: Path) -> None:
    loader = jaxdata.load(folder / "run.yaml")
    tracer, quoted = Tracer(loader, decoder(jaxdata.open_dataset(folder / "data"))), []
    for row in range(6):
        lines = [
            line.plain for line in row_lines(loader.rows[row], said_of(tracer.rows([row])), 40)
        ]
        quoted += [line for line in lines if line.startswith("  “")]
    assert len(quoted) >= 6
    assert max(map(cell_len, quoted)) <= 40


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
        ([], 2, "give a DATASET, which is a folder or URL, or a CONFIG"),
        (["{d}", "--document", "web"], 2, "expected [SPLIT/]SOURCE:ID, like web:17 or val/web:17"),
        (["{d}", "--document", "train/web:999"], 1, "no document 999 in train/web: it has 0 to 79"),
        (["{d}", "--document", "train/wob:1"], 1, "did you mean 'train/web'?"),
        (["nowhere"], 1, "nowhere is not a dataset"),
    ],
)
def test_what_is_asked_wrongly(folder: Path, arguments: list[str], status: int, says: str) -> None:
    filled = [each.format(d=folder / "data") for each in arguments]
    assert says in run(*filled, status=status)


def test_names_are_text_only(tmp_path: Path) -> None:
    builders.dataset(tmp_path / "d", {"[red]a\x1b": 2})
    out = run(tmp_path / "d")
    assert "[red]a\\x1b" in out
    assert "\x1b" not in out
