"""Tables one after another, against a list of their rows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import jaxdata
from jaxdata.rows.packing.packed_rows import ConcatenatedRows, PackedRows, RepeatedRows
from jaxdata.rows.table import TokenCounts


class Case(NamedTuple):
    tables: list[PackedRows]
    limit: int | None

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Source and row of it, one source after another."""
        every = [(n, row) for n, table in enumerate(self.tables) for row in range(len(table))]
        return every[: self.limit]


def table_of(lengths: list[int], name: str, **settings: Any) -> PackedRows:
    documents = jaxdata.ArrayDocuments([[1] * n for n in lengths], name=name)
    return jaxdata.pack(documents, seq_len=6, **settings).table


lengths_lists = st.lists(st.integers(1, 14), max_size=6)
cases = st.builds(
    lambda lengths, limit: Case([table_of(e, f"s{n}") for n, e in enumerate(lengths)], limit),
    st.lists(lengths_lists, min_size=1, max_size=4),
    st.none() | st.integers(0, 30),
)


def listed(found: Any) -> list[tuple[int, ...]]:
    return [*zip(*(each.tolist() for each in found.columns), strict=True)]


def segments_of(case: Case, rows: list[int]) -> list[tuple[int, ...]]:
    """Of rows beyond the last those of the same number from the beginning."""
    expected = []
    for at, row in enumerate(rows):
        source, own = case.rows[row % len(case.rows)]
        for _, _, *more in listed(case.tables[source].segments(np.array([own]))):
            expected.append((at, source, *more))
    return expected


@examples(max_examples=25)
@given(cases, st.data())
def test_each_row_is_that_of_its_source_in_every_epoch(case: Case, data: st.DataObject) -> None:
    made = ConcatenatedRows(case.tables, case.limit)
    assert len(made) == len(case.rows)
    if case.rows:
        numbers = st.integers(0, 3 * len(case.rows))
        for rows in ([*range(len(case.rows))], data.draw(st.lists(numbers, min_size=1))):
            assert listed(made.segments(np.array(rows))) == segments_of(case, rows)
    assert not len(made.segments(np.arange(0)).row)
    assert made.documents == [table.documents[0] for table in case.tables]
    assert (made.seq_len, made.positions) == (6, "segment")
    assert [*made.sources.items()] == [(t.documents[0].name, t) for t in case.tables]


@examples(max_examples=25)
@given(cases)
def test_totals_and_the_rows_of_documents_are_those_of_the_list(case: Case) -> None:
    made = ConcatenatedRows(case.tables, case.limit)
    rows = case.rows
    for stop in range(len(rows) + 1):
        counts = {f"s{n}": TokenCounts() for n in range(len(case.tables))}
        for source, row in rows[:stop]:
            table = case.tables[source]
            counts[f"s{source}"] += table.total(row + 1) - table.total(row)
        assert made.token_counts(stop) == counts
    found = made.segments(np.arange(len(rows)))
    for number, table in enumerate(case.tables):
        for document in range(len(table.documents[0])):
            mine = (found.source == number) & (found.document == document)
            holding = sorted({*found.row[mine].tolist()})
            assert made.rows_with(f"s{number}", document) == holding
            stop = len(rows) // 2
            told = made.rows_with(f"s{number}", document, stop)
            assert told == [row for row in holding if row < stop]


def test_the_identity_is_that_of_the_packing_with_the_data_of_all_and_the_rows() -> None:
    tables = [table_of([7] * 3, "a"), table_of([7] * 2, "b")]
    one, other = (table.identity() for table in tables)
    for limit, rows in ((None, 5), (4, 4), (9, 5)):
        facts = ConcatenatedRows(tables, limit).identity()
        assert facts == one | {"data": one["data"] | other["data"], "rows": rows}


@examples(max_examples=15)
@given(st.lists(st.integers(2, 14), min_size=1, max_size=6), st.integers(0, 30))
def test_repeated_rows_are_those_of_the_table_epoch_after_epoch(
    lengths: list[int], rows: int
) -> None:
    table = table_of(lengths, "web", positions="row")
    made = RepeatedRows(table, rows)
    numbers = np.arange(rows)
    assert len(made) == rows
    assert listed(made.segments(numbers)) == listed(table.segments(numbers))
    assert made.batch_key(numbers).tolist() == table.batch_key(numbers).tolist()
    assert made.token_counts(rows) == table.token_counts(rows)
    assert made.epochs(rows) == {"web": Fraction(rows, len(table))}
    assert made.identity() == table.identity()
    assert made.sources == {"web": table}
    assert (made.seq_len, made.positions, made.documents) == (6, "row", table.documents)
    for document in range(len(lengths)):
        assert made.rows_with("web", document) == table.rows_with("web", document, rows)
        assert made.rows_with("web", document, 2) == table.rows_with("web", document, 2)


def test_repeated_rows_have_the_lanes_of_the_table() -> None:
    table = table_of([7] * 30, "web", lanes=4, chunk_bytes=16, block_bytes=64)
    assert RepeatedRows(table, 9).lanes == table.lanes == 4
