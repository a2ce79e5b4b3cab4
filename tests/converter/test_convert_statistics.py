"""What a conversion counts, by hand and by other ways to count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxdata import tokenizers
from jaxdata.converter.statistics import derived
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.opening import open_dataset
from jaxdata.look.dataset_summary import statistics_tables
from jaxdata.look.strategies import compare_strategies
from jaxdata.storage import open_store
from tests.commands import run as command
from tests.converter.here import documents, objects, records, run, statistics, write_lines

PERCENTILES = ["p01", "p05", "p25", "p50", "p75", "p95", "p99"]


def test_everything_is_counted_as_it_is_defined(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_lines(
        folder / "a.jsonl", [*records("cafe\u0301", "ab", ""), b"{", b"", *records("x" * 9)]
    )
    write_lines(folder / "b.jsonl", [b'{"body": 1}'])
    (folder / "c.txt").write_text("word")
    run(folder, tmp_path / "out", normalize="NFC", max_chars=8)
    counted = statistics(tmp_path / "out")
    assert counted == {
        "files": {"processed": 3, "successful": 2, "discarded": 1},
        "records": 8,
        "blank": 1,
        "added": 0,
        "quarantined": {"no key 'text'": 1, "not JSON": 1},
        "dropped": {"longer than 8 characters": 1},
        "raw_characters": 5 + 2 + 0 + 4,
        "raw_bytes": 6 + 2 + 0 + 4,
        "characters": 4 + 2 + 0 + 4,
        "text_bytes": 5 + 2 + 0 + 4,
        **dict.fromkeys(("dropped_raw_characters", "dropped_raw_bytes"), 9),
        **dict.fromkeys(("dropped_characters", "dropped_text_bytes"), 9),
        "loss_tokens": 11,
        "unknown_tokens": 0,
        "longest_document": 6,
        "length_percentiles": dict(zip(PERCENTILES, (1, 1, 1, 3, 5, 6, 6), strict=True)),
        "tokens_per_byte": 15 / 11,
        "tokens_per_document": 15 / 4,
        "characters_per_document": 10 / 4,
        "bytes_per_document": 11 / 4,
        "unknown_token_rate": 0.0,
    }


def test_they_add_up_whatever_the_units_and_splits(tmp_path: Path) -> None:
    words = [f"{'é' * (n % 9)} {n}" for n in range(200)]
    path, options = write_lines(tmp_path / "a.jsonl", records(*words)), {"normalize": "NFD"}
    run(path, tmp_path / "one", **options)
    run(path, tmp_path / "many", unit_bytes=700, **options)
    run(path, tmp_path / "split", split_ratio="train=2,val=1", **options)
    whole = statistics(tmp_path / "one")
    assert whole == statistics(tmp_path / "many")
    parts = [statistics(tmp_path / "split", f"{split}/web") for split in ("train", "val")]
    for name in ("raw_characters", "raw_bytes", "characters", "text_bytes", "loss_tokens"):
        assert whole[name] == sum(part[name] for part in parts) > 0
    assert whole["raw_characters"] == sum(map(len, words)) < whole["characters"]
    found = read_manifest(open_store(tmp_path / "split"))
    (table,) = statistics_tables(open_dataset(tmp_path / "split"))
    assert [column.header.plain for column in table.columns] == ["counted", "train/web", "val/web"]
    columns = (column.cells for column in table.columns)
    rows = {cells[0].plain: cells[1:] for cells in zip(*columns, strict=True)}
    told = [f"{entry.tokens:,}" for entry in found.sources.values()]
    assert [each.plain for each in rows["tokens"]] == told


def test_each_side_of_a_preference_is_counted_by_its_own_texts(tmp_path: Path) -> None:
    pairs = [{"prompt": "p", "chosen": "é" * n, "rejected": "no"} for n in (1, 2, 3)]
    write_lines(tmp_path / "a.jsonl", objects(*pairs))
    report = run(tmp_path / "a.jsonl", tmp_path / "out", task="dpo")
    assert "wrote train/web/chosen, train/web/rejected: " in str(report)
    for side, characters, size in [("chosen", 9, 15), ("rejected", 9, 9)]:
        counted = statistics(tmp_path / "out", f"train/web/{side}")
        assert (counted["characters"], counted["text_bytes"]) == (characters, size)
        assert counted["tokens_per_byte"] == (size + 3) / size  # an EOD each


def test_unknown_tokens_of_a_real_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    model = shared_data / "tokenizers/sentencepiece/t5_cc_all.32000.100extra.model"
    table = pq.ParquetFile(shared_data / "web.parquet").read_row_group(0, columns=["text"])
    pq.write_table(table.slice(0, 99), tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", tokenizer=f"sentencepiece:{model}")
    unknown = tokenizers.load(f"sentencepiece:{model}").unk_id
    found = np.concatenate(documents(tmp_path / "out"))
    counted = statistics(tmp_path / "out")
    assert counted["unknown_tokens"] == (found == unknown).sum() > 0
    assert counted["unknown_token_rate"] == counted["unknown_tokens"] / len(found)
    assert counted["loss_tokens"] == len(found) - 99


def test_percentiles_are_lengths_that_there_are() -> None:
    lengths = np.array([1, 2, 3, 1000], np.uint32)
    assert derived({}, lengths)["length_percentiles"]["p75"] == 3
    assert derived({}, lengths[:0])["length_percentiles"] == {}


def test_the_command_ends_with_it_and_with_rows_if_asked(tmp_path: Path) -> None:
    table = pa.table({"text": [f"some words {i} " * (i % 40) for i in range(200)]})
    pq.write_table(table, tmp_path / "a.parquet")
    given = ("--output", tmp_path / "out", "--source", "web", "--tokenizer", "bytes")
    printed = command("convert", tmp_path / "a.parquet", *given, "--stats-seq-len", "128").stdout
    source = open_dataset(tmp_path / "out").source("train", "web")
    words = [line.split() for line in printed.splitlines()]
    assert ["tokens", f"{int(source.lengths.sum()):,}"] in words
    assert "ids: EOD 256; vocabulary of 257" in printed
    costs = {cost.strategy: cost for cost in compare_strategies([source], seq_len=128)}
    best = costs["best_fit"]
    shown = [f"{best.rows:,}", f"{best.real:,}", f"{best.padding:,}"]
    assert ["best_fit", *shown] in [line[:4] for line in words]
