"""The rows of each batch that a process needs, against cutting global batches row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import InputError
from jaxdata.feed.batches import HostPlacement
from jaxdata.feed.schedule import Share, Span
from jaxdata.feed.skips import Skips
from jaxdata.ragged import Ints
from jaxdata.rows.batch_order import Key


class Sorted(NamedTuple):
    """Rows with a key of their own, many of them alike."""

    lanes: int
    factor: int

    def key(self, row: int) -> int:
        return row * self.factor % 5

    def batch_key(self, rows: Ints) -> Key:
        return np.array([self.key(row) for row in rows.tolist()], np.uint64)


class Case(NamedTuple):
    share: Share
    skipped: list[tuple[int, int]]

    def batch(self, span: Span) -> list[int]:
        """The rows of a global batch as it holds them."""
        rows = [row for row in range(200) if not any(a <= row < b for a, b in self.skipped)]
        found = rows[span.first : min(span.first + span.size, self.share.ends[span.section])]
        keyed = self.share.keyed[span.section] if self.share.keyed else None
        if isinstance(keyed, Sorted) and keyed.lanes > 1:
            found = [row for _, row in sorted((keyed.key(row), row) for row in found)]
        return [row + self.share.shift for row in found]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    skipped = draw(
        st.lists(st.tuples(st.integers(0, 60), st.integers(61, 70)), max_size=1)
        | st.lists(st.integers(0, 40).map(lambda a: (2 * a, 2 * a + 1)), max_size=4)
    )
    ends = sorted(draw(st.lists(st.integers(1, 60), min_size=1, max_size=3)))
    offsets = {
        size: np.array(sorted(draw(st.sets(st.integers(0, size - 1)))), np.int64)
        for size in draw(st.sets(st.integers(1, 12), min_size=1, max_size=2))
    }
    keyed = [
        Sorted(draw(st.sampled_from([1, 2, 8])), draw(st.integers(1, 4)))
        for _ in ends * draw(st.booleans())
    ]
    shift = draw(st.sampled_from([0, 0, 100, 2**40]))
    return Case(Share(offsets, Skips(skipped), ends, keyed, shift), skipped)


@given(cases(), st.data())
def test_a_process_has_the_rows_at_its_offsets_of_each_batch(
    case: Case, data: st.DataObject
) -> None:
    share = case.share
    size = data.draw(st.sampled_from(sorted(share.offsets)))
    section = data.draw(st.integers(0, len(share.ends) - 1))
    begin = share.ends[section - 1] if section else 0
    last = max(share.ends[section] - 1, begin)
    firsts = data.draw(st.lists(st.integers(begin, last), min_size=1, max_size=4))
    spans = [Span(first, size, section) for first in sorted({*firsts, last})]
    offsets = share.offsets[size].tolist()
    expected = []
    for span in spans:
        batch = case.batch(span)
        expected.append([batch[offset] for offset in offsets if offset < len(batch)])
        assert share.size(span) == len(offsets)
    found = share.rows(spans)
    assert [rows.tolist() for rows in found] == expected
    assert {rows.dtype.name for rows in found} == {"int64"}
    lanes = [keyed.lanes for keyed in share.keyed] or [1] * len(share.ends)
    assert share.is_sorted(spans[0]) == (lanes[section] > 1)


@given(st.integers(1, 40), st.integers(-1, 6), st.integers(-1, 6))
def test_shards_are_the_parts_of_a_batch_in_order(size: int, number: int, shards: int) -> None:
    refusal = None
    if not 0 <= number < shards:
        refusal = f"shard=({number}, {shards}): expected (i, n) with 0 <= i < n"
    elif len({len(range(part, size, shards)) for part in range(shards)}) > 1 or size < shards:
        refusal = (
            f"batch_size={size} cannot be divided among {shards} shards: batch_size is that of all "
            f"shards together; choose a multiple of {shards}"
        )
    if refusal:
        with pytest.raises(InputError) as caught:
            HostPlacement(size, (number, shards))
        assert str(caught.value) == refusal
        return
    parts = [HostPlacement(size, (part, shards)).rows.tolist() for part in range(shards)]
    assert [row for part in parts for row in part] == [*range(size)]
    assert len({len(part) for part in parts}) == 1
    batch = {"x": np.arange(3)}
    placement = HostPlacement(size, (number, shards))
    assert placement.place(batch) is batch
    assert not placement.works
