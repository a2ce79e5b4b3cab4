"""Parts that are fetched: of a column, next to the array that it stands for; of files, merged."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.base.ragged import Ints
from jaxdata.storage.pages.index_columns import SPAN, FarColumn
from jaxdata.storage.ranges import merged

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


@settings(max_examples=50)
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


def test_what_is_here_is_not_fetched_again_and_many_parts_are_the_whole() -> None:
    one = Counted()
    for _ in range(3):
        one.column[np.array([[1, SPAN + 1], [2, SIZE - 1]])]
    assert (one.fetched, one.whole) == ((2 * SPAN + 5) * 4, 0)
    one.column.fetch(np.arange(3 * SPAN, 5 * SPAN, SPAN))
    assert (one.fetched, one.whole) == ((4 * SPAN + 5) * 4, 0), "an eighth of the 41"
    one.column[np.array([6 * SPAN])]
    assert (one.fetched, one.whole) == ((4 * SPAN + 5) * 4, 1)
    assert one.column[np.array([3])].tolist() == [int(one.data[3])]
    assert int(one.column.sum()) == int(one.data.sum())
    assert np.asarray(one.column).tolist() == one.data.tolist()
    assert (len(one.column), one.column.shape, one.whole) == (SIZE, (SIZE,), 1)
    with pytest.raises(IndexError, match=f"out of bounds of a column of {SIZE} entries"):
        Counted().column[np.array([SIZE])]


RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 60)))


@example([(0, 0, 0), (0, 1, 0), (0, 2, 0)], 1)
@given(RANGES, st.integers(0, 20))
def test_each_range_lies_in_one_extent_and_extents_lie_apart(
    ranges: list[tuple[int, int, int]], gap: int
) -> None:
    file, start, size = (
        (np.array(column, np.int64) for column in zip(*ranges, strict=True))
        if (ranges)
        else (np.empty(0, np.int64),) * 3
    )
    found = merged(file, start, start + size, gap)
    for number, owner in enumerate(found.owner.tolist()):
        assert found.file[owner] == file[number]
        assert found.start[owner] <= start[number]
        assert start[number] + size[number] <= found.stop[owner]
    asked = {(f, byte) for f, a, n in ranges for byte in range(a, a + n)}
    extents = sorted(zip(*(each.tolist() for each in found[:3]), strict=True))
    for (f, _, stop), (g, start_, _) in pairwise(extents):
        assert f != g or start_ - stop > gap
    # Nothing but gaps is fetched beyond what was asked for.
    for f, a, b in extents:
        beyond = [byte for byte in range(a, b) if (f, byte) not in asked]
        empty = {byte for g, byte, n in ranges if g == f and not n}  # a gap ends there, too
        ends = [
            n for n in range(1, len(beyond)) if beyond[n] in empty or beyond[n] - beyond[n - 1] > 1
        ]
        runs = np.split(np.array(beyond), ends)
        assert all(len(run) <= gap for run in runs)
