"""The promises on real text: converted, packed, and trained on exactly once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import jaxdata
from jaxdata.converter import convert
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.testing import assert_exactly_once

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def dataset(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> ConvertedDataset:
    folder = tmp_path_factory.mktemp("real")
    tokenizer = f"tiktoken:{shared_data / 'tokenizers/tiktoken/gpt2.tiktoken'}"
    names = [
        "short.jsonl.gz",
        "code-0.jsonl.gz",
        "code-1.jsonl.gz",
        "books.jsonl.gz",
        "web.parquet",
    ]
    files = [str(shared_data / name) for name in names]
    for source, inputs in {"short": files[:1], "all": files}.items():
        convert(inputs, output=str(folder / "d"), source=source, tokenizer=tokenizer, workers=2)
    return jaxdata.open_dataset(folder / "d")


def test_best_fit_fills_the_rows(dataset: ConvertedDataset) -> None:
    assert jaxdata.pack(dataset.source("train", "all"), seq_len=2048).plan.fill >= 0.995


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad"])
def test_every_token_of_it_is_a_target_exactly_once(
    dataset: ConvertedDataset, strategy: str
) -> None:
    docs = dataset.source("train", "short")
    rows = jaxdata.pack(docs, seq_len=2048, strategy=strategy)
    hosts = [jaxdata.Loader(rows, batch_size=32, shard=(host, 2)) for host in range(2)]
    targets = assert_exactly_once((batch for host in hosts for batch in host), [docs])
    assert targets == rows.plan.trained_tokens


def test_documents_decode_to_their_text(dataset: ConvertedDataset, shared_data: Path) -> None:
    docs = dataset.source("train", "short")
    with gzip.open(shared_data / "short.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % 500 == 0:
                tokens = docs[number]["tokens"]
                text = json.loads(line)["text"]
                assert dataset.decode(tokens) == text
                assert dataset.token_bytes[tokens].sum() == len(text.encode())
