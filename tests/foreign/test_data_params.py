"""The statistics of `data_params.json`, against counting by hand; rows of random length."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata import InputError
from jaxdata.foreign.data_params import post_process, short_rows
from tests import commands
from tests.converter.here import write_lines


def convert(folder: Path, *options: str, seq_len: int | None = 32, name: str = "in") -> Path:
    out, length = folder / "out", ["--set", f"stats_seq_len={seq_len}"] * bool(seq_len)
    given = ["--output", out, "--source", "web", "--tokenizer", "bytes", *length, *options]
    commands.run("convert", folder / f"{name}.jsonl", *given)
    return out


def write(folder: Path, records: list[dict[str, Any]], *more: bytes) -> None:
    write_lines(folder / "in.jsonl", [*(json.dumps(one).encode() for one in records), *more])


TEXTS = [f"cafe\u0301 {n} " * (n % 9 + 1) for n in range(60)] + ["e\u0301", "too short"]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad", "crop"])
def test_plain_text(tmp_path: Path, strategy: str) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS], b"", b"{")
    out = convert(
        tmp_path, "--set", "normalize=NFC", "--set", "min_chars=3", "--set", "min_tokens=12"
    )
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
    out = convert(tmp_path, "--task", "sft", "--set", "max_tokens=40")
    found = post_process(str(out), "train/web", "pad")
    docs = jaxdata.open_dataset(out).source("train", "web")
    rows = list(jaxdata.pack(docs, seq_len=32, strategy="pad"))
    assert found["loss_valid_tokens"] == sum(int(row["loss_mask"].sum()) for row in rows)
    assert found["successful_files"] == len(docs)
    assert found["discarded_files"] == 49 - len(docs)
    whole = [pair for pair in pairs if pair["completion"]]
    assert found["raw_chars_count"] == sum(len(p["prompt"] + p["completion"]) for p in whole)
    with pytest.raises(InputError, match="'crop' drops tokens, and which of them have loss"):
        post_process(str(out), "train/web", "crop")


def test_statistics_of_rows_are_asked_for_and_additions_add_up(tmp_path: Path) -> None:
    write(tmp_path, [{"text": text} for text in TEXTS])
    options = ["--set", "min_chars=6"]
    out = convert(tmp_path, *options, "--append", seq_len=None)
    with pytest.raises(InputError, match=r"packed by 'best_fit': give the same .* stats_seq_len"):
        post_process(str(out), "train/web")
    with pytest.raises(InputError, match="has no 'train/code'; it has train/web"):
        post_process(str(out), "train/code")
    convert(tmp_path, *options, seq_len=16)
    write(tmp_path, [{"text": "tiny"}, {"text": "long enough"}])
    (tmp_path / "in.jsonl").rename(tmp_path / "more.jsonl")
    found = post_process(str(convert(tmp_path, *options, "--append", name="more")), "train/web")
    assert found["raw_chars_count"] == sum(map(len, [*TEXTS, "tiny", "long enough"]))
    assert found["discarded_files"] == 2


def rows(seq_len: int = 64) -> Any:
    docs = jaxdata.ArrayDocuments([np.arange(1, n % 90 + 3) for n in range(900)])
    return jaxdata.pack(docs, seq_len=seq_len, strategy="concat")


def test_the_share_of_rows_that_was_asked_for_is_cut_anywhere() -> None:
    whole, short, other = rows(), short_rows(rows(), 0.3, seed=5), short_rows(rows(), 0.3, seed=6)
    assert len(short) == len(whole)
    cut = []
    for number in range(len(whole)):
        one, was = short[number], whole[number]
        kept = int((one["segment_ids"] > 0).sum())
        if kept < (was["segment_ids"] > 0).sum():
            cut.append(kept)
        for name in was:
            assert one[name].dtype == was[name].dtype
            assert (one[name][:kept] == was[name][:kept]).all()
            assert not one[name][kept:].any(), "padding as everywhere"
    assert abs(len(cut) / len(whole) - 0.3) < 0.07
    assert 1 <= min(cut) < 8
    assert 56 < max(cut) <= 62
    assert any((other[n]["inputs"] != short[n]["inputs"]).any() for n in range(64))
    assert (short_rows(whole, 0)[3]["inputs"] == whole[3]["inputs"]).all()
    assert all((short_rows(whole, 1)[n]["segment_ids"] == 0).sum() >= 2 for n in range(50))
    assert short_rows(rows(seq_len=1), 1)[0]["inputs"].shape == (1,)
    with pytest.raises(InputError, match=r"rate=1\.5: expected a number from 0 to 1"):
        short_rows(whole, 1.5)
