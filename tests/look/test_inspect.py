"""`jaxdata inspect`: numbers that are those of the data, drawn so that they can be read."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.look.document import document_text
from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.tokenizers import load
from tests import builders, commands
from tests.converter.here import convert_here

asked = partial(commands.described, "inspect")


def run(*arguments: Any) -> str:
    """What the command prints."""
    return commands.run("inspect", *map(str, arguments)).stdout


@pytest.fixture(scope="module")
def folder(module_path: Path) -> Path:
    for split, source, count in (("train", "web", 80), ("train", "wide", 30), ("val", "web", 9)):
        texts = [f"日本 {number}: " + "größer " * (number % 13) for number in range(count)]
        texts[5] = "\x1b[2Jcleared\x07\nand \u202eturned"
        file = module_path / f"{split}-{source}.jsonl"
        lines = [json.dumps({"text": text}) for text in texts] + ["{", '{"text": null}']
        file.write_text("\n".join(lines))
        where = {"output": module_path / "data", "source": source, "split": split}
        convert_here(str(file), **where, tokenizer="bytes", workers=1)
    given = {"pack": {"seq_len": 64}, "curriculum": {"mix": {"web": 0.6, "wide": 0.4}}}
    builders.run(module_path, dataset=str(module_path / "data"), **given)
    return module_path


def test_a_dataset_in_numbers(folder: Path) -> None:
    found, out = asked(folder / "data"), run(folder / "data")
    assert list(found["sources"]) == ["train/web", "train/wide", "val/web"]
    for name, source in found["sources"].items():
        lengths = np.sort(jaxdata.open_dataset(folder / "data")[name].lengths)
        assert (source["documents"], source["tokens"]) == (len(lengths), int(lengths.sum()))
        at = source["lengths"]
        half = lengths[-(-len(lengths) // 2) - 1]
        assert (at["min"], at["p50"], at["max"]) == (lengths[0], half, lengths[-1])
        assert at["mean"] == pytest.approx(lengths.mean())
        files = (folder / "data" / name).glob("*.array_record")
        assert source["bytes"] == sum(path.stat().st_size for path in files)
        line = next(line for line in out.splitlines() if name in line)
        assert line.split()[1:4] == [f"{len(lengths)}", f"{lengths.sum():,}", str(half)]
    assert "tokenizer: bytes, 257 tokens, EOD 256, BOS none, padding none" in out
    assert re.search(r"quarantined \(.*not JSON: 1", out)
    assert "history, 3 conversions:" in out


def test_a_document_is_decoded_and_made_safe(folder: Path) -> None:
    text = "日本 7: " + "größer " * 7
    said = f"train/wide:7: {len(text.encode()) + 1} tokens, from train-wide.jsonl line 8\n{text}\n"
    assert run(folder / "data", "--document", "train/wide:7") == said
    out = run(folder / "data", "--document", "web:5")
    assert out.splitlines()[1:] == ["\\x1b[2Jcleared\\x07", "and \\u202eturned"]
    found = asked(folder / "data", "--document", "web:5")
    assert found["parts"][0]["text"] == "\x1b[2Jcleared\x07\nand \u202eturned"
    assert len(found["tokens"]) == found["length"]


def test_what_has_no_loss_is_told_apart(tmp_path: Path) -> None:
    text = b"question? answer!" + b"." * 5_000
    documents = [np.append(np.frombuffer(text, np.uint8), 256)]
    masks = [np.arange(len(text) + 1) >= 10]
    builders.dataset(tmp_path / "d", {"chat": documents}, masks={"chat": masks})
    first, shown, more = run(tmp_path / "d", "--document", "chat:0").splitlines()
    assert first.startswith("train/chat:0: 5,018 tokens, 5,008 with loss")
    assert shown == "⟦question? ⟧answer!" + "." * (4_000 - 17)
    assert more == "… 1,017 more characters (use --json)"


def test_special_tokens_are_told_from_text_that_looks_like_them() -> None:
    special, text = ({"text": "<|im_end|>", "special": each} for each in (True, False))
    shown = [document_text({"parts": [{"loss": True, "pieces": [one]}]}) for one in (special, text)]
    assert shown[0].plain == "⟪<|im_end|>⟫"
    assert shown[1].plain == "<|im_end|>\ntext, and no special tokens: <|im_end|>"


def test_a_row_is_drawn(folder: Path) -> None:
    rows = jaxdata.load(folder / "run.yaml", pack={"overlap": 9}).rows
    for number in (0, len(rows) - 1):
        arguments = ["--config", folder / "run.yaml", "--row", number, "--pack.overlap", 9]
        out, row = run(*arguments).splitlines(), rows[number]
        assert "\x1b" not in "".join(out), "colours are on a terminal only"
        letters = [chr(ord("A") + int(k) - 1) if k else "." for k in row["segment_ids"]]
        pairs = zip(letters, row["loss_mask"], strict=True)
        assert out[1] == "".join(letter if loss else letter.lower() for letter, loss in pairs)
        segments, filled = int(row["segment_ids"].max()), int((row["segment_ids"] > 0).sum())
        assert out[0].startswith(f"row {number} of {len(rows)}: {segments} segment")
        assert f"{filled} of 64 slots filled, {row['loss_mask'].sum()} with loss" in out[0]
        assert [line[0] for line in out[3::2]] == [chr(ord("A") + k) for k in range(segments)]
        assert max(map(cell_len, out)) <= 80, "also wide characters"
        found = asked(*arguments)
        assert found["inputs"] == row["inputs"].tolist()
        assert len(found["pieces"]) == segments


def test_costs_of_strategies_add_up_and_are_those_of_the_plans(folder: Path) -> None:
    found = asked(folder / "run.yaml")["packing"]
    opened, out = jaxdata.open_dataset(folder / "data"), run(folder / "run.yaml")
    sources = [opened.source("train", name) for name in ("web", "wide")]
    lengths = np.concatenate([each.lengths for each in sources])
    for cost in found:
        cells = rf"{cost['rows']:,} +{cost['real']:,} +{cost['padding']:,} "
        assert re.search(rf"\b{cost['strategy']} +{cells}", out)
        options = {"seq_len": 64, "strategy": cost["strategy"]}
        plans = [jaxdata.pack(docs, **options).plan for docs in sources]
        assert cost["rows"] == sum(plan.rows for plan in plans)
        assert cost["padding"] == sum(plan.padding for plan in plans)
        assert cost["real"] + cost["padding"] == cost["slots"] == 64 * cost["rows"]
    targets, real = int((lengths - 1).sum()), {c["strategy"]: c["real"] for c in found}
    assert real["pad"] == real["best_fit"] == targets
    assert real["concat"] == targets + len(lengths), "the last token of each is an input"


@given(st.text(), st.integers(2, 30))
def test_nothing_unsafe_is_printed_and_no_more_than_fits(text: str, width: int) -> None:
    safe = printable(text)
    assert all(c.isprintable() or c.isspace() for c in safe)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in safe)
    assert cell_len(fit(excerpt(text), width)) <= width
    if text.isascii() and text.isprintable():
        assert safe == text


def test_names_are_text_only(tmp_path: Path) -> None:
    builders.dataset(tmp_path / "d", {"[red]a\x1b": 9})
    out = run(tmp_path / "d")
    assert "[red]a\\x1b" in out
    assert "\x1b" not in out
    assert run(tmp_path / "d", "--views") == "no views; jaxdata dedup makes them\n"


SOME = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 9, name="train/web"), seq_len=16)
MIXED = jaxdata.mix({"b": SOME}, phases=[jaxdata.Phase(rows=1, weights={"b": 1})])
BATCH = jaxdata.show_batch(SOME[0])
LINES: list[tuple[Any, str]] = [
    (SOME, r"PackedDataset\(\d+ rows of 16, best_fit of 'train/web'\)$"),
    (SOME.plan, r"PackSummary\(documents=9, rows=\d+, "),
    (SOME.repeat(2), r"RowDataset\(\d+ rows of 16, "),
    (MIXED, r"MixedDataset\(1 rows? of 16, "),
    (jaxdata.Phase(rows=3, weights={"w": 1}), r"Phase\(rows=3, weights=\{'w': 1\}\)$"),
    (jaxdata.torch.Loader(SOME, batch_size=1), r"Loader\(\d+ rows in \d+ batch"),
    (load("bytes"), r"BytesTokenizer\('bytes', 257 ids, EOD 256\)$"),
    (BATCH, r"batch of 1 row of 16: \d segments, \d+ slots with loss, \d pad"),
]


@pytest.mark.parametrize(("made", "pattern"), LINES)
def test_an_object_says_what_it_is_in_a_line(made: Any, pattern: str) -> None:
    said = repr(made)
    assert re.match(pattern, said), said
    assert "\n" not in said


def test_a_batch_is_printed_in_letters(capsys: pytest.CaptureFixture[str]) -> None:
    ids = np.array([[1, 1, 1, 2, 2, 0], [0] * 6])
    loss = np.array([[0, 1, 1, 1, 1, 0], [0] * 6])
    batch = {"inputs": np.arange(12).reshape(2, 6), "segment_ids": ids, "loss_mask": loss}
    jaxdata.show_batch(batch, lambda tokens: f"{tokens[0]}\x1b and {len(tokens) - 1} more")
    assert capsys.readouterr().out.splitlines() == [
        "row 0 of 2: 2 segments, 5 of 6 slots filled, 4 with loss",
        "aAABB.",
        "a character is a slot; lower case has no loss, dots are padding",
        "A 3 slots",
        r"  “0\x1b and 2 more”",
        "B 2 slots",
        r"  “3\x1b and 1 more”",
        "row 1 of 2: 0 segments, 0 of 6 slots filled, 0 with loss",
        "......",
    ]
    with pytest.raises(InputError, match=r"show_batch: given .*expected a batch or a row with the"):
        jaxdata.show_batch({"input_ids": [1]})
