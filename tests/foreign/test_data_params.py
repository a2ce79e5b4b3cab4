"""The statistics of `data_params.json`: each of them, against counting by hand."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata import InputError
from jaxdata.foreign.data_params import post_process
from tests import commands
from tests.converter.here import manifest, write_lines


def convert(folder: Path, *options: str, seq_len: int | None = 32, name: str = "in") -> Path:
    out, length = folder / "out", [f"--stats-seq-len={seq_len}"] * bool(seq_len)
    given = ["--output", out, "--source", "web", "--tokenizer", "bytes", *length, *options]
    commands.run("convert", folder / f"{name}.jsonl", *given)
    return out


def write(folder: Path, records: list[dict[str, Any]], *more: bytes) -> None:
    write_lines(folder / "in.jsonl", [*(json.dumps(one).encode() for one in records), *more])


TEXTS = [f"cafe\u0301 {n} " * (n % 9 + 1) for n in range(60)] + ["e\u0301", "too short"]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad", "crop"])
def test_plain_text(tmp_path: Path, strategy: str) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS], b"", b"{")
    out = convert(tmp_path, "--normalize", "NFC", "--min-chars", "3", "--min-tokens", "12")
    docs = jaxdata.open_dataset(out).source("train", "web")
    rows = list(jaxdata.pack(docs, seq_len=32, strategy=strategy))
    normal = [text.replace("e\u0301", "\u00e9") for text in TEXTS]
    padding = sum(int((row["segment_ids"] == 0).sum()) for row in rows)
    loss = sum(int(row["loss_mask"].sum()) for row in rows)
    assert len(TEXTS) - len(docs) > 1
    raw_bytes = sum(len(text.encode()) for text in TEXTS)
    assert post_process(str(out), "train/web", strategy) == {
        "processed_files": len(TEXTS),
        "successful_files": len(docs),
        "discarded_files": len(TEXTS) - len(docs),
        "raw_chars_count": sum(map(len, TEXTS)),  # those left out included
        "raw_bytes_count": raw_bytes,
        "normalized_chars_count": sum(map(len, normal)),
        "normalized_bytes_count": sum(len(text.encode()) for text in normal),
        "n_examples": len(rows),
        "num_tokens": 32 * len(rows),
        "num_pad_tokens": padding,
        "non_pad_tokens": 32 * len(rows) - padding,
        "loss_valid_tokens": loss,
        "num_masked_tokens": 32 * len(rows) - loss,
        "average_chars_per_sequence": ceil(sum(map(len, TEXTS)) / len(rows)),
        "average_bytes_per_sequence": ceil(raw_bytes / len(rows)),
        "eos_id": 256,
        "pad_id": 256,
        "vocab_size": 257,
    }


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


def test_rows_are_kept_by_the_manifest_and_asked_for_again(tmp_path: Path) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS])
    out = convert(tmp_path, seq_len=None)
    was = manifest(out)
    statistics = was["sources"]["train/web"]["statistics"]
    assert not [name for name in statistics if name.startswith("dropped_")]
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
    commands.run("verify", out)


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
