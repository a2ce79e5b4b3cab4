"""Rows of a batch, sorted by lane: the same set, in an order that hosts can share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import jaxdata
import jaxdata.rows.megatron
from jaxdata.testing import (
    distinct_documents,
    write_dataset,
)

POOLS = {"chunk_bytes": 200, "block_bytes": 800}
CHANCE = np.random.default_rng(3)
DOCS = {
    name: jaxdata.ArrayDocuments(
        distinct_documents(CHANCE.integers(2, 90, count).tolist(), first), name=f"train/{name}"
    )
    for name, count, first in (("web", 500, 1), ("code", 200, 10**5), ("wiki", 60, 2 * 10**5))
}


def lane_of(rows: Any, row: int) -> float:
    """The lane of a row of a source, by the definition."""
    lanes = rows.table.lanes
    turn = row % len(rows) % lanes
    return int(f"{turn:0{lanes.bit_length() - 1}b}"[::-1] or "0", 2) / lanes


def test_a_batch_is_the_same_rows_sorted_by_lane() -> None:
    lanes = {"web": 16, "code": 4, "wiki": 1}
    packed = {
        name: jaxdata.pack(docs, seq_len=32, **POOLS, lanes=lanes[name])
        for name, docs in DOCS.items()
    }
    rows, batch_size = jaxdata.mix(packed), 30
    loader = jaxdata.Loader(rows, batch_size=batch_size)
    for step, batch in enumerate(loader):
        numbers = loader.batch_rows(step)
        first = step * batch_size
        expected = range(first, min(first + batch_size, len(rows)))
        assert sorted(numbers.tolist()) == list(expected)
        _, source, rank = rows.table.select(numbers)
        names = rows.table.names
        places = [
            (lane_of(rows.sources[names[s]], r), row)
            for s, r, row in zip(source.tolist(), rank.tolist(), numbers.tolist(), strict=True)
            if names[s] != "wiki"  # has no lanes, and is spread
        ]
        assert places == sorted(places)
        for at, number in enumerate(numbers.tolist()):
            assert (batch["inputs"][at] == rows[number]["inputs"]).all()
            assert loader.step_of_row(number) == (step, at)
        assert not batch["segment_ids"][len(numbers) :].any()  # padding stays last


def test_rows_of_one_source_are_sorted_too() -> None:
    rows = jaxdata.pack(DOCS["web"], seq_len=32, **POOLS, lanes=8)
    for loaded in (rows, rows.repeat(2)):
        loader = jaxdata.Loader(loaded, batch_size=8)
        assert loader.batch_rows(0).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def batch_rows(rows: Any) -> list[list[int]]:
    loader = jaxdata.Loader(rows, batch_size=24)
    return [loader.batch_rows(step).tolist() for step in range(len(loader))]


def test_evaluation_megatron_and_single_documents_are_never_sorted(tmp_path: Path) -> None:
    texts = {f"{split}/web": [d["tokens"] for d in DOCS["web"]] for split in ("train", "val")}
    opened = write_dataset(tmp_path / "d", texts)
    config = {"dataset": str(tmp_path / "d"), "pack": POOLS | {"seq_len": 32, "lanes": 8}}
    never = {
        "evaluation": jaxdata.evaluation_rows(opened, "val", seq_len=32),
        "another split": jaxdata.load(config, "val").rows,
        "megatron": jaxdata.rows.megatron.gpt(DOCS["web"], seq_len=32, seed=1),
        "single documents": jaxdata.pack(DOCS["web"], seq_len=32),
    }
    for name, rows in never.items():
        assert batch_rows(rows)[1] == list(range(24, 48)), name
    assert batch_rows(jaxdata.load(config, "train").rows)[1] != list(range(24, 48))
