"""The statistics of `data_params.json`: each of them, against counting by hand."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import jaxdata
from jaxdata import InputError
from jaxdata.cli import cli
from jaxdata.compat.data_params import post_process
from tests.converter.here import in_this_process
from tests.converter.test_convert import manifest, write_lines

NAMES = {
    *("processed_files", "successful_files", "discarded_files", "n_examples"),
    *("raw_chars_count", "raw_bytes_count", "normalized_chars_count", "normalized_bytes_count"),
    *("num_tokens", "num_pad_tokens", "non_pad_tokens", "loss_valid_tokens", "num_masked_tokens"),
    *("average_chars_per_sequence", "average_bytes_per_sequence"),
    *("eos_id", "pad_id", "vocab_size"),
}


def convert(folder: Path, *options: str, seq_len: int | None = 32, name: str = "in") -> Path:
    length = ["--stats-seq-len", str(seq_len)] if seq_len else []
    given = ["--output", str(folder / "out"), "--source", "web", "--tokenizer", "bytes", *length]
    with in_this_process():
        done = CliRunner().invoke(cli, ["convert", str(folder / f"{name}.jsonl"), *given, *options])
    assert done.exit_code == 0, done.output
    return folder / "out"


def write(folder: Path, records: list[dict[str, Any]], *more: bytes) -> None:
    write_lines(folder / "in.jsonl", [*(json.dumps(one).encode() for one in records), *more])


TEXTS = [f"cafe\u0301 {n} " * (n % 9 + 1) for n in range(60)] + ["e\u0301", "too short"]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad", "crop"])
def test_plain_text(tmp_path: Path, strategy: str) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS], b"", b"{")
    out = convert(tmp_path, "--normalize", "NFC", "--min-chars", "3", "--min-tokens", "12")
    found = post_process(str(out), "train/web", strategy)
    assert found.keys() == NAMES
    dataset = jaxdata.open_dataset(out)
    docs = dataset.source("train", "web")
    assert found["processed_files"] == len(TEXTS)
    assert found["successful_files"] == len(docs)
    assert found["discarded_files"] == len(TEXTS) - len(docs) > 1
    normal = [text.replace("e\u0301", "\u00e9") for text in TEXTS]
    assert found["raw_chars_count"] == sum(map(len, TEXTS)), "those left out included"
    assert found["raw_bytes_count"] == sum(len(text.encode()) for text in TEXTS)
    assert found["normalized_chars_count"] == sum(map(len, normal))
    assert found["normalized_bytes_count"] == sum(len(text.encode()) for text in normal)
    rows = list(jaxdata.pack(docs, seq_len=32, strategy=strategy))
    assert found["n_examples"] == len(rows)
    assert found["num_tokens"] == 32 * len(rows)
    padding = sum(int((row["segment_ids"] == 0).sum()) for row in rows)
    loss = sum(int(row["loss_mask"].sum()) for row in rows)
    assert (found["num_pad_tokens"], found["non_pad_tokens"]) == (padding, 32 * len(rows) - padding)
    assert (found["loss_valid_tokens"], found["num_masked_tokens"]) == (loss, 32 * len(rows) - loss)
    assert found["average_chars_per_sequence"] == ceil(sum(map(len, TEXTS)) / len(rows))
    assert (found["eos_id"], found["pad_id"], found["vocab_size"]) == (256, 256, 257)


def test_answers(tmp_path: Path) -> None:
    pairs = [{"prompt": "q" * n, "completion": "a" * (n % 7)} for n in range(1, 50)]
    write(tmp_path, pairs)
    out = convert(tmp_path, "--task", "sft", "--max-tokens", "40")
    found = post_process(str(out), "train/web", "pad")
    docs = jaxdata.open_dataset(out).source("train", "web")
    rows = list(jaxdata.pack(docs, seq_len=32, strategy="pad"))
    assert found["loss_valid_tokens"] == sum(int(row["loss_mask"].sum()) for row in rows)
    assert found["successful_files"] == len(docs)
    assert found["discarded_files"] == 49 - len(docs)
    long = [pair for pair in pairs if len(pair["prompt"] + pair["completion"]) > 39]
    whole = [pair for pair in pairs if pair["completion"]]
    assert set(map(str, long)) & set(map(str, whole)), "some are left out for their length"
    assert found["raw_chars_count"] == sum(len(p["prompt"] + p["completion"]) for p in whole)
    with pytest.raises(InputError, match="'crop' drops tokens, and which of them have loss"):
        post_process(str(out), "train/web", "crop")


def test_a_record_left_out_whole_or_in_part(tmp_path: Path) -> None:
    cases = [{"q": "ab", "a": "c"}, {"q": "abcdef", "a": "ghijkl"}]
    write(tmp_path, [{"cases": cases}, {"cases": cases[1:]}])
    keys = ["--prompt-key", "cases.q", "--completion-key", "cases.a"]
    counted = manifest(convert(tmp_path, "--task", "sft", *keys, "--max-chars", "9", seq_len=None))
    statistics = counted["sources"]["train/web"]["statistics"]
    assert (statistics["characters"], statistics["dropped_characters"]) == (3, 24)
    assert (statistics["raw_characters"], statistics["dropped_raw_characters"]) == (15, 12)


def test_nothing_left_out_is_not_mentioned(tmp_path: Path) -> None:
    write(tmp_path, [{"text": "one"}])
    found = manifest(convert(tmp_path, seq_len=None))["sources"]["train/web"]["statistics"]
    assert not [name for name in found if name.startswith("dropped_") or name == "packing"]


def test_rows_are_kept_by_the_manifest_and_asked_for_again(tmp_path: Path) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS])
    out = convert(tmp_path, seq_len=None)
    was = manifest(out)
    with pytest.raises(InputError, match=r"packed by 'best_fit': give the same .* --stats-seq-len"):
        post_process(str(out), "train/web")
    with pytest.raises(InputError, match="has no 'train/code'; it has train/web"):
        post_process(str(out), "train/code")
    convert(tmp_path, seq_len=16)
    kept = manifest(out)["sources"]["train/web"]["statistics"].pop("packing")
    assert kept["seq_len"] == 16
    assert kept["pad"].keys() == {"rows", "slots", "padding", "dropped"}
    assert kept["pad"]["slots"] == 16 * kept["pad"]["rows"]
    now = manifest(out)
    del now["sources"]["train/web"]["statistics"]["packing"]
    assert {**now, "sha256": 0} == {**was, "sha256": 0}, "nothing else changed"
    done = CliRunner().invoke(cli, ["verify", str(out)])
    assert done.exit_code == 0, done.output


def test_splits_and_additions_add_up(tmp_path: Path) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS])
    options = ["--min-chars", "6"]
    convert(tmp_path, *options, "--append", seq_len=None)
    write(tmp_path, [{"text": "tiny"}, {"text": "long enough"}])
    (tmp_path / "in.jsonl").rename(tmp_path / "more.jsonl")
    out = convert(tmp_path, *options, "--append", name="more")
    found = post_process(str(out), "train/web")
    assert found["raw_chars_count"] == sum(map(len, [*TEXTS, "tiny", "long enough"]))
    assert found["discarded_files"] == 2
    assert np.isclose(found["average_bytes_per_sequence"] * found["n_examples"],
                      found["raw_bytes_count"], atol=found["n_examples"])  # fmt: skip
