"""Ranges that are fetched together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.format.storage.merged import merged

RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 60)))


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
        runs = np.split(np.array(beyond), np.flatnonzero(np.diff(beyond) != 1) + 1)
        assert all(len(run) <= gap for run in runs)
