"""Steps, rows and skips against the slow way: going through all rows one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.errors import InputError
from jaxdata.feed.schedule import BatchSizes, Schedule, check_batch_size
from jaxdata.feed.skips import Skips, check_skips

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda r: (r[0], r[0] + r[1])), max_size=5
)
RAMPS = st.dictionaries(st.integers(1, 70), st.integers(1, 9), max_size=3).flatmap(
    lambda later: st.integers(1, 9).map(lambda first: [(0, first), *sorted(later.items())])
)


def walk(schedule: Schedule) -> list[list[int]]:
    """The rows of each batch from here on, noting each as delivered."""
    batches = []
    for span in schedule.spans():
        ordinals = np.arange(span.first, min(span.first + span.size, schedule.count))
        batches.append(schedule.skips.rows(ordinals).tolist())
        schedule.advance(span)
    return batches


def slow(total: int, ramp: list[tuple[int, int]], skipped: set[int]) -> list[list[int]]:
    kept, batches = [row for row in range(total) if row not in skipped], []
    while kept:
        size = [size for row, size in ramp if row <= kept[0]][-1]
        batches.append(kept[:size])
        kept = kept[size:]
    return batches


def rows_in(ranges: list[tuple[int, int]]) -> set[int]:
    return {row for a, b in ranges for row in range(a, b)}


@given(RANGES, st.integers(0, 90))
def test_places_and_rows_are_inverse(ranges: list[tuple[int, int]], total: int) -> None:
    skips, gone = Skips(ranges), rows_in(ranges)
    kept = [row for row in range(total) if row not in gone]
    assert skips.rows(np.arange(len(kept))).tolist() == kept
    assert [skips.ordinal(row) for row in kept] == list(range(len(kept)))
    assert skips.before(total) == total - len(kept)
    assert rows_in([(a, b) for a, b in skips.ranges]) == gone


@given(st.integers(0, 90), RAMPS, RANGES)
def test_a_ramp_over_skipped_rows(
    total: int, ramp: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    schedule = Schedule(total, ramp, ranges)
    expected = slow(total, ramp, rows_in(ranges))
    assert len(schedule) == len(expected)
    assert walk(schedule) == expected
    assert (schedule.step, schedule.next_row) == (len(expected), total)
    for step in range(len(expected)):
        schedule.seek_step(step)
        assert (schedule.step, schedule.next_row) == (step, expected[step][0])
        assert walk(schedule) == expected[step:]


@given(st.integers(1, 90), RAMPS, RANGES, st.lists(st.integers(0, 90), max_size=5))
def test_seeking_ahead_and_back_changes_no_step(
    total: int, ramp: list[tuple[int, int]], ranges: list[tuple[int, int]], steps: list[int]
) -> None:
    schedule = Schedule(total, ramp, ranges)
    expected = slow(total, ramp, rows_in(ranges))
    for step in steps:
        target = step % (len(expected) + 1)
        schedule.seek_step(target)
        assert (schedule.step, len(schedule)) == (target, len(expected))
        assert schedule.next_row == (expected[target][0] if target < len(expected) else total)
    begun = schedule.step
    assert walk(schedule) == expected[begun:]


@given(st.integers(1, 90), RAMPS, RANGES, st.lists(st.integers(0, 90), max_size=5))
def test_a_dropped_remainder_stays_dropped(
    total: int, ramp: list[tuple[int, int]], ranges: list[tuple[int, int]], rows: list[int]
) -> None:
    schedule = Schedule(total, ramp, ranges, drop_remainder=True)
    for row in [*rows, total, 0]:
        schedule.seek(min(row, total))
    whole = Schedule(total, ramp, ranges)
    batches = walk(schedule)
    assert len(schedule) == len(batches)
    assert all(len(batch) in {size for _, size in ramp} for batch in batches)
    assert len(batches) in (len(whole), len(whole) - 1)


@given(st.integers(1, 90), RAMPS, RANGES, RANGES, st.integers(0, 12))
def test_a_skip_on_the_way_leaves_the_past_alone(
    total: int,
    ramp: list[tuple[int, int]],
    early: list[tuple[int, int]],
    late: list[tuple[int, int]],
    steps: int,
) -> None:
    before = slow(total, ramp, rows_in(early))[:steps]
    schedule = Schedule(total, ramp, early)
    for span, _ in zip(schedule.spans(), before, strict=False):
        schedule.advance(span)
    schedule.skip(late)
    delivered = {row for batch in before for row in batch}
    after = walk(schedule)
    rest = [row for batch in after for row in batch]
    assert rest == [row for row in range(total) if row not in delivered | rows_in(early + late)]
    assert schedule.step == len(schedule) == len(before) + len(after)
    for step, batch in enumerate(before):  # where each step was is still known
        other = Schedule(total, ramp)
        other.restore(schedule.next_row, schedule.history, schedule.skips.ranges)
        assert other.history == schedule.history
        other.seek_step(step)
        again = [row for rows in walk(other) for row in rows]
        kept = (row for row in range(batch[0], total) if row not in rows_in(early + late))
        assert again == list(kept), "but what was skipped never comes again"


@given(
    st.integers(1, 90),
    RANGES,
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=5),
)
def test_legs_of_different_batch_sizes(
    total: int, ranges: list[tuple[int, int]], legs: list[tuple[int, int]]
) -> None:
    state, delivered = (0, [], ranges), []
    for size, steps in [*legs, (7, 100)]:
        schedule = Schedule(total, [(0, size)])
        schedule.restore(*json.loads(json.dumps(state)))
        begun = schedule.step
        for span, _ in zip(schedule.spans(), range(steps), strict=False):
            first = span.first
            delivered += schedule.skips.rows(
                np.arange(first, min(first + span.size, schedule.count))
            ).tolist()
            schedule.advance(span)
            begun += 1
            assert schedule.step == begun
        state = (schedule.next_row, schedule.history, schedule.skips.ranges)
    assert delivered == [row for row in range(total) if row not in rows_in(ranges)]


def test_a_seek_between_batches_begins_batches_there() -> None:
    schedule = Schedule(100, [(0, 24)])
    schedule.seek(30)
    assert (schedule.step, schedule.next_row, walk(schedule)[0][0]) == (2, 30, 30)
    assert schedule.history == [[0, 24], [30, 24]]
    schedule.seek_step(3)
    assert (schedule.step, schedule.next_row) == (3, 54)


def test_a_size_holds_for_batches_that_begin_at_its_row_or_later() -> None:
    schedule = Schedule(2048, [(0, 256), (1000, 512)])
    assert [len(batch) for batch in walk(schedule)] == [256] * 4 + [512] * 2
    assert schedule.history == [[0, 256], [1024, 512]]


def test_huge_numbers_of_rows_take_no_time() -> None:
    schedule = Schedule(2**62, [(0, 1024), (2**60, 4096)], [(2**50, 2**51), (2**61, 2**61 + 8)])
    schedule.seek_step(len(schedule) - 1)
    assert schedule.step == len(schedule) - 1
    assert schedule.skips.before(2**62) == 2**50 + 8


def test_a_range_is_asked_for_once() -> None:
    skips = Skips([(4, 9), (5, 7), (9, 12), (20, 30, 25), (20, 30, 28), (22, 30, 29)])
    assert skips.ranges == [[4, 12], [20, 30, 25]]
    assert Skips(skips.ranges).ranges == skips.ranges
    assert skips.joined([(20, 30)], 40).ranges == skips.ranges
    assert skips.replayed(21).ranges == [[4, 12], [20, 30, 21]]
    assert skips.replayed(3).ranges == [[4, 12], [20, 30]]


def test_sizes_and_ranges_are_checked() -> None:
    assert check_batch_size(np.int64(4)) == [(0, 4)]
    assert check_batch_size([[0, 4], (8, 2)]) == [(0, 4), (8, 2)]
    assert check_skips([[1, 2], (np.int64(4), 9)], 9) == [(1, 2), (4, 9)]
    for wrong in ([(0, 4), (8, 0)], [(0, 4), (2, 4), (1, 4)], [], "4", [(0, 4.5)]):
        with pytest.raises(InputError, match="expected a whole number of at least 1, or sizes by"):
            check_batch_size(wrong)
    with pytest.raises(InputError, match=r"cannot skip rows \(4, 10\): .* 0 <= a < b <= 9, the"):
        check_skips([(4, 10)], 9)


def test_the_first_size_of_an_empty_schedule() -> None:
    schedule = Schedule(0, [(0, 8)])
    assert (len(schedule), schedule.step, schedule.next_row, schedule.history) == (
        0,
        0,
        0,
        [[0, 8]],
    )
    assert BatchSizes([(0, 8)]).past(0) == [(0, 8)]


@given(
    st.integers(1, 120),
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 9)), max_size=3),
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=2),
    st.sets(st.integers(1, 119), max_size=3),
    st.booleans(),
)
def test_no_batch_reaches_over_a_section(
    total: int,
    later: list[tuple[int, int]],
    gaps: list[tuple[int, int]],
    edges: set[int],
    drop_remainder: bool,
) -> None:
    ramp = sorted({0: 5, **dict(later)}.items())
    skipped = [(a, min(a + n, total)) for a, n in gaps if a < total]
    sections = [0, *sorted(edge for edge in edges if edge < total)]
    schedule = Schedule(total, ramp, skipped, drop_remainder, sections)
    kept = [row for row in range(total) if not any(a <= row < b for a, b in skipped)]
    spans, at = [], 0
    while at < len(kept):
        row = kept[at]
        size = next(size for begin, size in reversed(ramp) if begin <= row)
        edge = next((edge for edge in sections if edge > row), total)
        end = sum(other < edge for other in kept)
        if drop_remainder and end == len(kept) < at + size:
            break
        spans.append((at, size))
        at = min(at + size, end)
    assert [(span.first, span.size) for span in schedule.spans()] == spans
    assert len(schedule) == len(spans)
    for step, (ordinal, _) in enumerate(spans):
        schedule.seek_step(step)
        assert (schedule.next_row, schedule.step) == (kept[ordinal], step)
        assert [(span.first, span.size) for span in schedule.spans()] == spans[step:]
