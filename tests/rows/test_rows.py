"""Rows as a `grain.MapDataset`, their indices, and their totals."""

from __future__ import annotations

import sys
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.lanes import Lanes
from jaxdata.rows.table import TokenCounts, row_number, rows_of_epochs
from tests.builders import documents


def test_they_are_a_map_dataset() -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments(documents(200)), seq_len=32)
    assert isinstance(rows, grain.MapDataset)
    lengths = rows.map(lambda row: int(row["loss_mask"].sum()))
    assert sum(lengths[k] for k in range(len(lengths))) == rows.plan.trained_tokens
    twice, part, every = rows.repeat(2), rows[10:20], list(rows.to_iter_dataset())
    assert (len(twice), len(part), len(every)) == (2 * len(rows), 10, len(rows))
    for found, expected in (
        (rows.batch(4)[0]["inputs"][3], rows[3]),
        (rows[-1]["inputs"], rows[len(rows) - 1]),
        (part[3]["inputs"], rows[13]),
        (twice[len(rows)]["inputs"], rows[len(rows)]),
        (every[7]["inputs"], rows[7]),
    ):
        np.testing.assert_array_equal(found, expected["inputs"])
    inputs = rows.map(lambda row: row["inputs"])
    options = [grain.sharding.ShardOptions(shard_index=k, shard_count=2) for k in range(2)]
    hosts = [grain.experimental.ElasticIterator(inputs, 8, option) for option in options]
    first = [next(host) for host in hosts]  # grain's hosts take rows in turn
    assert all(np.array_equal(first[k % 2][k // 2], inputs[k]) for k in range(8))


@given(st.integers(-40, 40), st.integers(0, 9))
def test_a_negative_index_counts_from_the_end_of_an_epoch(index: int, rows: int) -> None:
    expected = index if index >= 0 or not rows else range(rows)[index % rows]
    assert row_number(index, rows) == (expected if rows or index >= 0 else 0)


def test_an_epoch_is_repeated_a_whole_number_of_times() -> None:
    assert [rows_of_epochs(5, times) for times in (1, 3, None)] == [5, 15, sys.maxsize]
    assert rows_of_epochs(0, None) == 0
    assert rows_of_epochs(sys.maxsize, 1) == sys.maxsize
    for times in (0, -1, 1.5, "2"):
        with pytest.raises(InputError, match="expected a whole number of epochs of at least 1, or"):
            rows_of_epochs(5, times)
    with pytest.raises(InputError, match=r"expected fewer than 2\^63 rows"):
        rows_of_epochs(2**62, 2)
    assert row_number(sys.maxsize, 5) == sys.maxsize
    with pytest.raises(IndexError, match="it does not fit in 64 bits"):
        row_number(sys.maxsize + 1, 5)


numbers = st.lists(st.integers(-(10**9), 10**9), min_size=7, max_size=7)


@given(numbers, numbers, st.integers(0, 9))
def test_totals_are_added_subtracted_and_multiplied_each_by_itself(
    one: list[int], other: list[int], times: int
) -> None:
    a, b = TokenCounts(*one), TokenCounts(*other)
    pairs = list(zip(one, other, strict=True))
    assert a + b == TokenCounts(*(x + y for x, y in pairs))
    assert a - b == TokenCounts(*(x - y for x, y in pairs))
    assert a * times == TokenCounts(*(x * times for x in one))
    assert TokenCounts() == a - a


def test_nothing_packs_to_no_rows() -> None:
    for nothing in ([], [[0], [0]]):
        rows = jaxdata.pack(jaxdata.ArrayDocuments(nothing), seq_len=4)
        assert list(jaxdata.Loader(rows, batch_size=2)) == []
        assert len(rows) == len(rows.repeat()) == 0


@given(st.integers(1, 200), st.integers(0, 4), st.data())
def test_lanes_are_turns_at_the_parts_of_an_epoch(rows: int, power: int, data: Any) -> None:
    """Row j of an epoch lies in the lane of j's reversed bits; each lane is read from its start."""
    lanes = Lanes(rows, 2**power)
    turns = [int(f"{turn:0{power}b}"[::-1], 2) if power else 0 for turn in range(2**power)]
    read: list[list[int]] = [[] for _ in turns]
    for row in range(rows):
        read[turns[row % 2**power]].append(row)
    in_order = [row for lane in read for row in lane]
    positions = np.arange(rows)
    assert lanes.row(positions).tolist() == in_order
    assert lanes.position(np.array(in_order)).tolist() == positions.tolist()
    first = data.draw(st.integers(0, rows))
    was_read = [row < first for row in in_order]
    assert lanes.visited(positions, first).tolist() == was_read
    assert lanes.visited_before(np.arange(rows + 1), first).tolist() == [
        sum(was_read[:position]) for position in range(rows + 1)
    ]


def test_numbers_of_numpy_are_taken_and_floats_are_not() -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 20)
    rows = jaxdata.pack(docs, seq_len=np.int64(6), seed=np.uint8(3))
    same = jaxdata.pack(docs, seq_len=6, seed=3)
    assert [row["inputs"].tolist() for row in rows] == [row["inputs"].tolist() for row in same]
    mixed = jaxdata.mix({"a": rows}, phases=[jaxdata.Phase(rows=8, weights={"a": 1})])
    assert mixed.counts(np.int64(5)) == mixed.counts(5) == {"a": 5}
    assert mixed.epochs(np.int64(5)) == mixed.epochs(5) == {"a": 0.5}
    for asked in (mixed.counts, mixed.epochs):
        with pytest.raises(InputError, match=r"rows=5\.0: expected a whole number"):
            asked(5.0)
    with pytest.raises(InputError, match=r"seq_len=6\.0: expected a whole number"):
        jaxdata.pack(docs, seq_len=6.0)


def test_pairs_repeat_in_another_order_unless_asked_not_to() -> None:
    prompts = [[7, n] for n in range(1, 30)]
    sides = [
        jaxdata.ArrayDocuments(
            [[*p, end, 0] for p in prompts], masks=[[0, 0, 1, 1]] * 29, name=name
        )
        for name, end in (("c/chosen", 50), ("c/rejected", 60))
    ]
    rows = jaxdata.pairs(*sides, seq_len=8)
    first = [rows[n]["chosen_inputs"].tolist() for n in range(29)]
    for again, same in ((True, False), (False, True)):
        twice = rows.repeat(2, reseed_each_epoch=again)
        second = [twice[29 + n]["chosen_inputs"].tolist() for n in range(29)]
        assert sorted(second) == sorted(first)
        assert (second == first) is same
