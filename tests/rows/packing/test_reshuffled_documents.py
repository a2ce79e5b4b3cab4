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


@pytest.mark.parametrize("settings", [{}, {"chunk_bytes": 64, "block_bytes": 2**20}])
def test_documents_have_other_company_in_each_epoch(settings: dict[str, Any]) -> None:
    one, other = (pairs(rows_of(packed(**settings), epoch)) for epoch in (0, 1))
    assert len(one & other) < len(one) / 30, "a few, as in any random deal"
    same = packed(reshuffle="rows", **settings)
    assert pairs(rows_of(same, 0)) == pairs(rows_of(same, 1)) == one


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
