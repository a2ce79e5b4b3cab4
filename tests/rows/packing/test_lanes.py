"""Lanes are a bijection that spreads consecutive rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.rows.lanes import Lanes


@given(st.integers(0, 3000), st.sampled_from([1, 2, 8, 512]), st.data())
def test_rows_and_positions(rows: int, count: int, data: st.DataObject) -> None:
    lanes, all_rows = Lanes(rows, count), np.arange(rows)
    position = lanes.position(all_rows)
    assert sorted(position.tolist()) == all_rows.tolist()
    assert lanes.row(position).tolist() == all_rows.tolist()
    done = data.draw(st.integers(0, rows))
    seen = np.zeros(rows, bool)
    seen[position[:done]] = True
    assert lanes.visited(all_rows, done).tolist() == seen.tolist()
    before = lanes.visited_before(np.arange(rows + 1), done)
    assert before.tolist() == [0, *np.cumsum(seen).tolist()]


@pytest.mark.parametrize("rows", [1, 7, 511, 513, 10**6])
@pytest.mark.parametrize("count", [1, 8, 512])
def test_lanes_differ_by_at_most_a_row(rows: int, count: int) -> None:
    held = np.diff(Lanes(rows, count).starts)
    assert held.sum() == rows
    assert held.max() - held.min() <= 1


def test_any_number_of_consecutive_rows_is_spread_evenly() -> None:
    lanes = Lanes(10**6, 512)
    for rows in (2, 16, 100, 512, 700):
        found = np.bincount(
            lanes.lane(lanes.position(np.arange(3_000, 3_000 + rows))), minlength=512
        )
        for parts in (2, 8, 64):
            shares = found.reshape(parts, -1).sum(1)
            assert shares.max() - shares.min() <= 1 + rows // 512
