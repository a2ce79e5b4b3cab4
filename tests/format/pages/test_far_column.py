"""A column of which parts are fetched, next to the array that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.format.storage.pages import far_column
from jaxdata.format.storage.pages.far_column import SPAN, FarColumn
from jaxdata.ragged import Ints

SIZE = 40 * SPAN + 5


class Counted:
    """A column, and what was fetched of it."""

    def __init__(self, size: int = SIZE) -> None:
        self.data = np.random.default_rng(0).integers(0, 2**32, size).astype("<u4")
        self.fetched, self.whole = 0, 0
        self.column = FarColumn(size, self.data.dtype, self._read, self._all)

    def _read(self, start: Ints, stop: Ints) -> list[Any]:
        self.fetched += int((stop - start).sum())
        data = self.data.tobytes()
        return [data[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True)]

    def _all(self) -> Any:
        self.whole += 1
        return self.data


@given(st.lists(st.lists(st.integers(-SIZE, SIZE - 1), max_size=8), max_size=12))
def test_it_is_the_array(lookups: list[list[int]]) -> None:
    one = Counted()
    for places in lookups:
        chosen = np.array(places, np.int64)
        assert one.column[chosen].tolist() == one.data[chosen].tolist()
        beyond = chosen * 3
        clipped = one.data.take(beyond, mode="clip")
        assert one.column.take(beyond, mode="clip").tolist() == clipped.tolist()
    assert one.column[5:9].tolist() == one.data[5:9].tolist()
    assert int(one.column[-1]) == int(one.data[-1])


def test_what_is_here_is_not_fetched_again() -> None:
    one = Counted()
    for _ in range(3):
        one.column[np.array([[1, SPAN + 1], [2, SIZE - 1]])]
    assert one.fetched == (2 * SPAN + 5) * 4
    assert one.whole == 0


def test_many_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_column, "_MOST", 1 / 8)
    one = Counted()
    one.column[np.arange(0, SIZE, SPAN)]
    assert (one.fetched, one.whole) == (0, 1)
    assert one.column[np.array([3])].tolist() == [int(one.data[3])]


def test_all_else_is_done_by_the_whole() -> None:
    one = Counted()
    assert int(one.column.sum()) == int(one.data.sum())
    assert np.asarray(one.column).tolist() == one.data.tolist()
    assert (len(one.column), one.column.shape, one.whole) == (SIZE, (SIZE,), 1)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(IndexError, match=f"out of bounds of a column of {SIZE} entries"):
        Counted().column[np.array([SIZE])]
