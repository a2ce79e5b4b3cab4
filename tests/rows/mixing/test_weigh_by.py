"""Mixtures weighed by the targets that have loss after stored masks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import StateMismatch
from jaxdata.rows.arrays import assemble
from jaxdata.rows.map_datasets import RowDataset
from jaxdata.rows.mixing.timeline import Apportionment
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.here import convert_here
from tests.dataset.documents.test_foreign import write_datatrove, write_gpts
from tests.dataset.strangers import edit_json, set_value

ROOT = Path(__file__).parents[3]
FORMAT_2 = ROOT / "tests/data/format-2"
CROP = {"seq_len": 16, "strategy": "crop"}


def masked(lengths: Sequence[int], bits: Sequence[bool], name: str) -> jaxdata.ArrayDocuments:
    """Documents whose masks repeat `bits`."""
    masks = [np.resize(np.array(bits), n) for n in lengths]
    return jaxdata.ArrayDocuments(distinct_documents(lengths), masks, name=name)


def loss_of(rows: Any, count: int | None = None) -> int:
    """Targets with loss of the first rows (default: an epoch), counted in the rows themselves."""
    chosen = np.arange(len(rows) if count is None else count)
    return int(next(assemble(rows.table, [chosen], len(chosen)))["loss_mask"].sum())


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sft source of two conversions, in two splits, and plain text beside it."""
    folder = tmp_path_factory.mktemp("tuning")
    chance = np.random.default_rng(3)

    def add(source: str, lines: list[dict[str, str]], **options: Any) -> None:
        (folder / f"{len(lines)}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        given = {"output": folder / "data", "source": source, "tokenizer": "bytes", "workers": 1}
        convert_here(folder / f"{len(lines)}.jsonl", **given, **options)

    for append, count in enumerate((300, 90)):
        pairs = [
            {"prompt": "why " * chance.integers(0, 30), "completion": "so " * chance.integers(1, 9)}
            for _ in range(count)
        ]
        add("sft", pairs, task="sft", split_ratio="train=80,val=20", append=bool(append))
    add("web", [{"text": "words " * chance.integers(1, 40)} for _ in range(200)])
    return folder / "data"


@pytest.mark.parametrize(("split", "generation"), [("train", None), ("train", 1), ("val", 0)])
@pytest.mark.parametrize("pack", [{"seq_len": 24, "overlap": 6}, CROP], ids=str)
def test_the_conversions_own_counts_are_those_of_the_rows(
    tuning: Path, split: str, generation: int | None, pack: dict[str, Any]
) -> None:
    docs: Any = jaxdata.open_dataset(tuning).source(split, "sft", generation=generation)
    rows = jaxdata.pack(docs, **pack)
    assert rows.table.loss_tokens == loss_of(rows)
    if pack != CROP:
        assert docs.loss_tokens == loss_of(rows)


def test_counts_kept_at_conversion_are_read_not_counted(tuning: Path, tmp_path: Path) -> None:
    """Without the shards, nothing could be counted."""
    shutil.copytree(tuning, tmp_path / "data", ignore=shutil.ignore_patterns("*.array_record"))
    source = jaxdata.open_dataset(tmp_path / "data").source("train", "sft")
    whole = jaxdata.open_dataset(tuning).source("train", "sft")
    expected = loss_of(jaxdata.pack(whole, seq_len=64))
    assert jaxdata.pack(source, seq_len=64).table.loss_tokens == expected


def test_a_dataset_from_before_is_counted_once(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_2, tmp_path / "old")

    def rows() -> Any:
        source = jaxdata.open_dataset(tmp_path / "old").source("train", "masked")
        return jaxdata.pack(source, seq_len=64, strategy="crop")

    expected = loss_of(rows())
    assert rows().table.loss_tokens == expected
    for shard in (tmp_path / "old").rglob("*.array_record"):
        shard.unlink()
    assert rows().table.loss_tokens == expected


@pytest.mark.parametrize("wrong", [-1, 10**9, "many"])
def test_a_stated_count_that_cannot_be_is_not_believed(tmp_path: Path, wrong: Any) -> None:
    docs = distinct_documents([30] * 9)
    write_dataset(tmp_path / "d", {"train/a": docs}, {"train/a": [np.arange(30) % 3 > 1] * 9})
    change = set_value("sources", "train/a", "statistics", to={"loss_tokens": wrong})
    edit_json(tmp_path / "d/dataset.json", change)
    rows = jaxdata.pack(jaxdata.open_dataset(tmp_path / "d").source("train", "a"), seq_len=16)
    assert rows.table.loss_tokens == loss_of(rows) == 90


def test_other_tools_data_is_counted(tmp_path: Path) -> None:
    documents = [np.arange(1, n + 1) for n in (9, 40, 2, 70)]
    masks = [np.arange(len(d)) % 4 == 1 for d in documents]
    specs = {
        "gpts": write_gpts(tmp_path / "old", documents, [0, 7, 1, 30]),
        "datatrove": write_datatrove(tmp_path / "a.ds", documents, masks=masks),
    }
    for spec in specs.values():
        dataset = jaxdata.open_dataset(spec)
        rows = jaxdata.pack(dataset.source("train", *dataset.splits["train"]), seq_len=16)
        assert 0 < rows.table.loss_tokens == loss_of(rows) < rows.plan.trained_tokens


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


def loaded(tuning: Path, **more: Any) -> Any:
    config = {
        "dataset": str(tuning),
        "pack": {"seq_len": 64},
        "curriculum": {"rows": 24, "mix": {"sft": 0.5, "web": 0.5}},
        "epochs": {"sft": 9},
        "loader": {"batch_size": 4},
    }
    return jaxdata.load(config, **more)


def test_it_is_in_the_state_only_where_it_was_chosen(tuning: Path) -> None:
    plain, tokens, loss = (loaded(tuning, **more) for more in ({}, {"weigh_by": "tokens"}, LOSS))
    assert plain.get_state() == tokens.get_state()
    assert "weigh_by" not in plain.get_state()["run"]
    run = loss.get_state()["run"]
    sizes = {name: each.table.loss_tokens for name, each in loss.rows.sources.items()}
    assert {name: run[name] for name in ("weigh_by", "loss_tokens")} == {
        "weigh_by": "loss_tokens",
        "loss_tokens": sizes,
    }
    assert {key: run[key] for key in plain.get_state()["run"]} == plain.get_state()["run"]
    with pytest.raises(StateMismatch, match="weigh_by was 'loss_tokens', is absent"):
        plain.set_state(loss.get_state())
    loss.set_state(loss.get_state())


LOSS = {"weigh_by": "loss_tokens"}


def test_amendments_weigh_as_the_run_does(tuning: Path) -> None:
    """The average row is that of the remainder, whose masks are read, and of later epochs."""
    change = {"at_row": 10, "pack": {"seq_len": 32, "strategy": "crop"}}
    phases = {"curriculum": {"rows": 40, "mix": {"sft": 0.5, "web": 0.5}}}
    mixed = loaded(tuning, amendments=[change | phases], **LOSS).rows
    shares = []
    for name, later in {"sft": 8, "web": 0}.items():
        table = mixed.table.tables[name]
        rest, whole = RowDataset(table.remainder), RowDataset(table.whole)
        loss = loss_of(rest) + later * loss_of(whole)
        shares.append(Fraction(len(rest) + later * len(whole), loss))
    before, after = mixed.counts(10), mixed.counts(50)
    taken = [after[name] - before[name] for name in ("sft", "web")]
    assert taken == Apportionment(shares).counts(40)
