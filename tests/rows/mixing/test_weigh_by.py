"""Mixtures weighed by the targets that have loss after stored masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.rows.arrays import assemble
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.here import convert_here
from tests.dataset.strangers import edit_json, set_value


def loss_of(rows: Any) -> int:
    """Targets with loss of an epoch, counted in the rows themselves."""
    whole = next(assemble(rows.table, [np.arange(len(rows))], len(rows)))
    return int(whole["loss_mask"].sum())


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sft source of two conversions, in two splits."""
    folder = tmp_path_factory.mktemp("tuning")
    chance = np.random.default_rng(3)
    for append, count in enumerate((120, 40)):
        lines = [
            {"prompt": "why " * chance.integers(0, 30), "completion": "so " * chance.integers(1, 9)}
            for _ in range(count)
        ]
        file = folder / f"{count}.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        options = {"source": "sft", "task": "sft", "split_ratio": "train=80,val=20"}
        given = {"output": folder / "data", "tokenizer": "bytes", "workers": 1, **options}
        convert_here(file, **given, append=bool(append))
    return folder / "data"


@pytest.mark.parametrize(("split", "generation"), [("train", None), ("val", 0)])
def test_the_conversions_own_counts_are_those_of_the_rows(
    tuning: Path, split: str, generation: int | None
) -> None:
    docs: Any = jaxdata.open_dataset(tuning).source(split, "sft", generation=generation)
    rows = jaxdata.pack(docs, seq_len=24, overlap=6)
    assert rows.table.loss_tokens == docs.loss_tokens == loss_of(rows)


@pytest.mark.parametrize("wrong", [-1, 10**9, "many"])
def test_a_stated_count_that_cannot_be_is_not_believed(tmp_path: Path, wrong: Any) -> None:
    docs = distinct_documents([30] * 9)
    write_dataset(tmp_path / "d", {"train/a": docs}, {"train/a": [np.arange(30) % 3 > 1] * 9})
    change = set_value("sources", "train/a", "statistics", to={"loss_tokens": wrong})
    edit_json(tmp_path / "d/dataset.json", change)
    rows = jaxdata.pack(jaxdata.open_dataset(tmp_path / "d").source("train", "a"), seq_len=16)
    assert rows.table.loss_tokens == loss_of(rows) == 90


class Own:
    """A custom source; `loss_tokens` is its own, or None."""

    lengths = np.array([20, 30, 11])

    def __init__(self, loss_tokens: int | None) -> None:
        self.loss_tokens, self.reads = loss_tokens, 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        tokens = np.arange(self.lengths[index])
        return {"tokens": tokens, "loss_mask": tokens % 2 == 1}


def test_a_source_of_ones_own_is_counted_unless_it_says() -> None:
    counted, says = Own(None), Own(30)
    assert jaxdata.pack(counted, seq_len=8).table.loss_tokens == 10 + 15 + 5
    assert jaxdata.pack(says, seq_len=8).table.loss_tokens == 30
    assert counted.reads > says.reads
