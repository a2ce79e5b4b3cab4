"""Epochs that are dealt anew: the company of documents, against deals by numpy's random numbers."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.packing import planner
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.testing import write_dataset

LENGTHS = np.random.default_rng(5).choice([9, 17, 24, 40], 1_200)
EPOCHS = 6


def packed(lengths: Any = LENGTHS, **settings: Any) -> PackedRows:
    documents = jaxdata.ArrayDocuments([np.ones(n, np.uint16) for n in lengths], name="web")
    given = {"seq_len": 64, "reshuffle": "documents", **settings}
    return jaxdata.pack(documents, **given).table


def rows_of(table: PackedRows, epoch: int) -> NDArray[np.int64]:
    """(documents,) the row of each, in an epoch."""
    found = table.segments(np.arange(table.first_row(epoch), table.first_row(epoch + 1)))
    row = np.empty(len(LENGTHS), np.int64)
    row[found.document] = found.row
    return row


def pairs(row: NDArray[np.int64]) -> set[tuple[int, int]]:
    """The documents that share a row."""
    order = np.argsort(row, kind="stable")
    held = np.split(order, np.flatnonzero(np.diff(row[order])) + 1)
    return {pair for each in held for pair in combinations(sorted(each.tolist()), 2)}


def kept(rows: list[NDArray[np.int64]]) -> int:
    """Pairs that share a row in two epochs, over all pairs of epochs."""
    return sum(len(pairs(a) & pairs(b)) for a, b in combinations(rows, 2))


def dealt(row: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """The same rows, with documents of one length dealt at random."""
    other = row.copy()
    for length in np.unique(LENGTHS):
        mine = np.flatnonzero(length == LENGTHS)
        other[mine] = row[random.permutation(mine)]
    return other


SETTINGS: list[dict[str, Any]] = [{}, {"chunk_bytes": 64, "block_bytes": 2**20}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_documents_keep_no_more_company_than_in_a_random_deal(settings: dict[str, Any]) -> None:
    table = packed(**settings)
    rows = [rows_of(table, epoch) for epoch in range(EPOCHS)]
    random = np.random.default_rng(0)
    deals = [kept([dealt(row, random) for row in rows]) for _ in range(20)]
    mean, deviation = np.mean(deals), max(np.std(deals), 1)
    assert mean > 50, "there is something to count"
    assert abs(kept(rows) - mean) < 5 * deviation
    same = packed(reshuffle="rows", **settings)
    again = [rows_of(same, epoch) for epoch in range(2)]
    assert kept(again) == len(pairs(again[0])) > 40 * mean / 15


def test_epochs_are_planned_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[*range(1, 2 + n * n % 23), 0] for n in range(60)]
    dataset = write_dataset(tmp_path / "d", {"train/web": documents})
    planned: list[int] = []
    table = planner.Planner.table
    monkeypatch.setattr(
        planner.Planner, "table", lambda self, *a: planned.append(1) or table(self, *a)
    )

    def mixed(**more: Any) -> Any:
        rows = jaxdata.pack(dataset.source("train", "web"), seq_len=16, reshuffle="documents")
        return jaxdata.mix({"web": rows}, epochs={"web": 2.5}, **more)

    first = mixed()
    assert len(planned) == 3
    assert len(mixed()) == len(first)
    assert [*first.epochs().values()] == [2.5]
    assert first.table.rows_with("web", 3)
    assert len(planned) == 3
    same = jaxdata.pack(dataset.source("train", "web"), seq_len=16)
    assert len(planned) == 3, "the first epoch is that of rows that are dealt once"
    assert len(same) == first.sources["web"].table.first_row(1)


GIVEN: Any = {"seq_len": 64, "reshuffle": "documents"}


def test_too_many_epochs_to_plan_are_refused() -> None:
    table = packed([5, 6, 7])
    says = "with reshuffle='documents' every epoch is planned, and at most 10,000; use reshuffle="
    rows = jaxdata.pack(table.documents[0], **GIVEN)
    for asked in (
        lambda: table.segments(np.array([2**62])),
        lambda: jaxdata.mix({"web": rows}, epochs={"web": 10_001.5}),
        lambda: rows.repeat(10_001),
    ):
        with pytest.raises(InputError) as caught:
            asked()
        assert says in str(caught.value)
    assert sorted(table._deals) == [0]


def test_sources_without_a_target_have_no_row_in_any_epoch() -> None:
    table = packed([1, 1])
    assert [table.first_row(epoch) for epoch in (0, 1, 9)] == [0, 0, 0]
    assert table.total(0).rows == 0
