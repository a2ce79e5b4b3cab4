"""What every table of rows says of itself, and segments of rows that several tables hold."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.reading import far_ranges
from jaxdata.rows.table import Segments, in_batch_order, joint
from tests.rows.test_assembling import GivenRows, Segment, Source, _cases


def test_a_table_says_what_most_tables_say() -> None:
    sources = [Source([[1, 2, 3]], None, [[0.0] * 3])]
    table = GivenRows(sources, [[Segment(0, 0, 0, 2, 0)]] * 1500, 1200, "segment", 1)
    assert repr(table) == "GivenRows(1,500 rows of 1,200)"
    assert (table.sources, table.intervals, table.exhaustions) == ({}, (), ())
    with pytest.raises(InputError, match="these rows cannot be searched: expected rows as pack"):
        table.rows_with("web", 0)
    with pytest.raises(InputError, match="of these rows cannot be counted without reading them"):
        table.total(3)
    rows = np.array([5, 3, 8])
    assert in_batch_order(table, rows) is rows
    keyed = SimpleNamespace(lanes=2, batch_key=lambda rows: rows % 5)
    assert in_batch_order(keyed, rows).tolist() == [5, 3, 8], "two lanes are enough to sort"
    assert table.batch_key(rows).tolist() == [int(f"{row:064b}"[::-1], 2) for row in rows]


@given(st.integers(0, 3000), st.sampled_from([1, 2, 8, 512]), st.data())
def test_lanes_are_a_bijection_that_spreads_rows(rows: int, count: int, data: Any) -> None:
    lanes, all_rows = Lanes(rows, count), np.arange(rows)
    position = lanes.position(all_rows)
    assert sorted(position.tolist()) == all_rows.tolist()
    assert lanes.row(position).tolist() == all_rows.tolist()
    held = np.diff(lanes.starts)
    assert held.sum() == rows
    assert held.max() - held.min() <= 1
    done = data.draw(st.integers(0, rows))
    seen = np.zeros(rows, bool)
    seen[position[:done]] = True
    before = lanes.visited_before(np.arange(rows + 1), done)
    assert before.tolist() == [0, *np.cumsum(seen).tolist()]
    found = np.bincount(lanes.lane(position[:done]), minlength=count)
    shares = found.reshape(min(count, 8), -1).sum(1)
    assert shares.max() - shares.min() <= 1 + done // count, "any consecutive rows, evenly"


@given(_cases(), st.integers(1, 9))
def test_the_work_of_a_row_is_what_its_slots_see_within_the_window(case: Any, window: int) -> None:
    rows = case[1]
    slots = [[slot for each in row for slot in range(each.slots)] for row in rows]
    expected = [sum(min(2 * slot + 1, 2 * window) for slot in row) for row in slots]
    assert GivenRows(*case).row_work(np.arange(len(rows)), window).tolist() == expected


@given(_cases(), st.lists(st.integers(0, 2), max_size=12))
def test_segments_of_several_tables_are_sorted_by_row(case: Any, tables: list[int]) -> None:
    table, count = GivenRows(*case), len(case[1])
    rows = np.array([(at * 7 + number) % count for at, number in enumerate(tables)], np.int64)
    looked_up = list[int]()

    def find(number: int, mine: Any) -> Segments:
        looked_up.append(number)
        return table.segments(rows[mine])

    found = Segments.gather(np.array(tables, np.int64), find)
    whole = table.segments(rows)
    assert [each.tolist() for each in found.columns] == [each.tolist() for each in whole.columns]
    assert {column.dtype.name for column in found.columns} == {"int64"}
    assert looked_up == sorted({*tables}), "each table is asked once"
    key = joint(np.array(tables, np.int64), lambda n, mine: rows[mine] * 3 + n)
    assert key.tolist() == [row * 3 + n for row, n in zip(rows.tolist(), tables, strict=True)]
    assert key.dtype == np.int64


def stored(name: str, lengths: list[int], is_far: bool) -> Any:
    """Documents in a bucket, or not, whose pages are what was asked for."""
    return SimpleNamespace(
        lengths=np.array(lengths),
        is_far=is_far,
        pages=name,
        page_ranges=lambda *asked: [tuple(each) for each in np.array(asked).T.tolist()],
    )


@given(_cases(), st.lists(st.booleans(), min_size=3, max_size=3), st.booleans())
def test_what_lies_in_buckets_is_told_by_source(case: Any, far: list[bool], weighs: bool) -> None:
    sources, rows, *_ = case
    table: Any = GivenRows(*case)
    table.documents = []
    for at, source in enumerate(sources):
        documents = stored(f"source {at}", [*map(len, source.tokens)], far[at])
        documents.side = {"weight": stored(f"source {at} weight", [], far[at])}
        table.documents.append(documents)
    extras = ["document", "target_weight"] if weighs else ()
    found = [*far_ranges(table, np.arange(len(rows)), extras)]
    expected = list[Any]()
    for at, source in enumerate(sources):
        mine = [each for row in rows for each in row if each.source == at]
        lengths = [len(source.tokens[each.document]) - each.start for each in mine]
        pairs = zip(mine, lengths, strict=True)
        asked = [(each.document, each.start, min(each.slots + 1, n)) for each, n in pairs]
        if far[at] and mine:
            names = ["", " weight"] if weighs else [""]
            expected += [(f"source {at}{name}", asked) for name in names]
    assert found == expected
