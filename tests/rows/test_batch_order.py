"""Rows of a batch, sorted by lane: the same set, in an order that hosts can share."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
import jaxdata.rows.megatron
from jaxdata.testing import (
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_same_on_hosts,
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


def packed(lanes: dict[str, int], seq_len: int = 32) -> dict[str, Any]:
    return {
        name: jaxdata.pack(docs, seq_len=seq_len, **(POOLS | {"lanes": lanes.get(name, 1)}))
        for name, docs in DOCS.items()
    }


def mixed(lanes: dict[str, int], **options: Any) -> Any:
    return jaxdata.mix(packed(lanes), **options)


def lane_of(rows: Any, row: int) -> float:
    """The lane of a row of a source, by the definition."""
    lanes = rows.table.lanes
    turn = row % len(rows) % lanes
    return int(f"{turn:0{lanes.bit_length() - 1}b}"[::-1] or "0", 2) / lanes


def test_a_batch_is_the_same_rows_sorted_by_lane() -> None:
    rows, batch_size = mixed({"web": 16, "code": 4}), 30
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


@pytest.mark.parametrize(("size", "lanes"), [(1, 8), (513, 512)])
def test_any_hosts_read_every_token_once_an_epoch_and_go_on_anywhere(size: int, lanes: int) -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([20 + n % 11 for n in range(size)]))
    rows = jaxdata.pack(docs, seq_len=32, **(POOLS | {"lanes": lanes}))
    assert len(rows) == size

    def loader(shard: tuple[int, int] = (0, 1)) -> jaxdata.Loader:
        batch_size = max(size // 12, 2)
        return jaxdata.Loader(rows.repeat(2), batch_size=batch_size, shard=shard, prefetch=0)

    assert_same_on_hosts(loader, [2])
    assert_exactly_once((batch for host in (0, 1) for batch in loader((host, 2))), [docs], epochs=2)
    assert_resumes_everywhere(loader, tail=2)


def batch_rows(rows: Any) -> list[list[int]]:
    loader = jaxdata.Loader(rows, batch_size=24)
    return [loader.batch_rows(step).tolist() for step in range(len(loader))]


@pytest.mark.parametrize(
    ("before", "after", "seq_len"), [({}, {"web": 16}, 32), ({"web": 16}, {}, 48)]
)
def test_batches_before_an_amendment_stay_as_they_were_delivered(
    before: dict[str, int], after: dict[str, int], seq_len: int
) -> None:
    """Also where only what comes later lies in lanes."""
    rows = mixed(before)
    amended = rows.amend(24 * 4, rows=packed(after, seq_len))
    was, now = batch_rows(rows), batch_rows(amended)
    assert now[:4] == was[:4]
    for sorted_by_lane, some in ((before, now[:4]), (after, now[4:-1])):
        assert any(each != sorted(each) for each in some) == bool(sorted_by_lane)
    inside = rows.amend(24 * 4 + 9, rows=packed(after, seq_len))
    assert sorted(chain(*batch_rows(inside))) == list(range(len(inside)))
    loader = jaxdata.Loader(inside, batch_size=24, prefetch=0)
    for step, batch in enumerate(loader):
        for at, number in enumerate(loader.batch_rows(step).tolist()):
            assert (batch["inputs"][at] == inside[number]["inputs"]).all()


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
