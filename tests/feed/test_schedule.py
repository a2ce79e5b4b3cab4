"""Schedules, however they move, against plain lists of rows; and what a process makes of them."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed.batches import BatchMaker, Share, make_in_groups
from jaxdata.feed.layouts import native
from jaxdata.feed.schedule import Schedule, Skips, Span, check_batch_size, check_skips
from jaxdata.rows.table import Key

Points = list[tuple[int, int]]
Delivered = tuple[list[int], int]
"""the rows of a batch, and its size, which those may fall short of"""
MOST = 30


class Slow:
    """A schedule as plain lists: the batches before here, and the rows that are to come."""

    def __init__(self, total: int, ramp: Points, skips: Points, whole: bool, sections: Any) -> None:
        self.total, self.ramp, self.whole, self.sections = total, ramp, whole, sections
        self.skips = [(a, b, 0) for a, b in skips]
        self.past: list[Delivered] = []
        self.row = 0

    def kept(self) -> list[int]:
        """The rows that are delivered at all."""
        gone = {row for a, b, since in self.skips for row in range(max(a, since), b)}
        return [row for row in range(self.total) if row not in gone]

    def future(self) -> list[Delivered]:
        """The batches to come, an unfilled last one included."""
        rest = [row for row in self.kept() if row >= self.row]
        batches: list[Delivered] = []
        while rest:
            size = [size for begin, size in self.ramp if begin <= rest[0]][-1]
            edge = min([start for start in self.sections if start > rest[0]], default=self.total)
            batch = [row for row in rest if row < edge][:size]
            batches.append((batch, size))
            rest = rest[len(batch) :]
        return batches

    def all(self) -> list[Delivered]:
        return self.past + self.future()

    def steps(self) -> int:
        """Those that are delivered: not the last batch, where one that is not full is dropped."""
        every = self.all()
        dropped = self.whole and every and len(every[-1][0]) < every[-1][1]
        return len(every) - bool(dropped)

    def spans(self) -> list[Span]:
        kept = self.kept()
        return [
            Span(kept.index(rows[0]), size, sum(start <= rows[0] for start in self.sections) - 1)
            for rows, size in self.all()[len(self.past) : self.steps()]
        ]

    def advance(self) -> None:
        rows, size = self.future()[0]
        self.past.append((rows, size))
        self.row = rows[-1] + 1

    def seek(self, row: int) -> None:
        passed = [([each for each in rows if each < row], size) for rows, size in self.all()]
        self.past = [(rows, size) for rows, size in passed if rows]
        self.skips = [(a, b, min(since, row)) for a, b, since in self.skips]
        self.row = row

    def seek_step(self, step: int) -> None:
        every = self.all()
        self.seek(every[step][0][0] if step < len(every) else self.total)

    def skip(self, ranges: Points) -> None:
        self.skips += [(a, b, self.next_row) for a, b in ranges]

    @property
    def next_row(self) -> int:
        return next((row for row in self.kept() if row >= self.row), self.total)


def check(found: Schedule, slow: Slow) -> None:
    """Everything that a schedule says."""
    every, kept = slow.all(), slow.kept()
    assert (found.step, found.next_row) == (len(slow.past), slow.next_row)
    assert found.count == len(kept)
    assert len(found) == slow.steps()
    assert [*found.spans()] == slow.spans()
    assert found.at_end == (not slow.spans())
    for step, (rows, size) in enumerate(every):
        batch = found.batch_rows(step)
        assert (batch.tolist(), batch.dtype) == (rows, np.int64)
        section = sum(start <= rows[0] for start in slow.sections) - 1
        assert found.span(step) == Span(kept.index(rows[0]), size, section)
    assert found.batch_rows(len(every) + 3).tolist() == [], "beyond the end"
    places = {row: step for step, (rows, _) in enumerate(every[: slow.steps()]) for row in rows}
    lost = [row for a, b in found.skips.gaps for row in range(a, min(b, slow.total))]
    assert sorted([*kept, *lost]) == [*range(slow.total)]
    told = {row: found.find(row) for row in range(slow.total + 2)}
    assert told == {row: places.get(row) for row in range(slow.total + 2)}


RANGE = st.tuples(st.integers(0, MOST), st.integers(1, 15)).map(lambda r: (r[0], r[0] + r[1]))
RANGES = st.lists(RANGE, max_size=3)
LATER = st.dictionaries(st.integers(1, MOST), st.integers(1, 9), max_size=3)
RAMPS = st.tuples(st.integers(1, 9), LATER).map(lambda r: [(0, r[0]), *sorted(r[1].items())])


@st.composite
def settings(draw: st.DrawFn, total: int) -> tuple[int, Points, Points, bool, list[int]]:
    edges = draw(st.sets(st.integers(1, MOST), max_size=3))
    sections = [0, *sorted(edge for edge in edges if edge < total)]
    return total, draw(RAMPS), draw(RANGES), draw(st.booleans()), sections


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, Slow]:
    given_ = draw(settings(draw(st.integers(0, MOST))))
    return Schedule(*given_), Slow(*given_)


def move(found: Schedule, slow: Slow, data: st.DataObject) -> None:
    """Anything that a loader may do next."""
    how = data.draw(st.sampled_from(["advance", "advance", "seek", "seek_step", "skip"]))
    if how == "advance":
        for _ in range(data.draw(st.integers(1, 4))):
            if span := next(found.spans(), None):
                found.advance(span)
                slow.advance()
    elif how == "skip":
        ranges = data.draw(RANGES)
        found.skip(ranges)
        slow.skip(ranges)
    else:
        last = slow.total if how == "seek" else len(slow.all())
        to = data.draw(st.integers(0, last))
        found.seek(found.first_row(to) if how == "seek_step" else to)
        getattr(slow, how)(to)


@given(schedules(), st.data())
def test_wherever_it_moves_all_steps_are_those_of_the_lists(both: Any, data: Any) -> None:
    found, slow = both
    check(found, slow)
    for _ in range(data.draw(st.integers(0, 4))):
        move(found, slow, data)
        check(found, slow)


@given(schedules(), st.data())
def test_a_state_goes_on_in_a_schedule_whose_skips_hold_from_there(both: Any, data: Any) -> None:
    found, slow = both
    for _ in range(data.draw(st.integers(0, 3))):
        move(found, slow, data)
    fresh = data.draw(settings(slow.total))
    other, slow_other = Schedule(*fresh), Slow(*fresh)
    slow_other.row, slow_other.past = slow.next_row, slow.past
    slow_other.skips = slow.skips + [(a, b, slow.next_row) for a, b, _ in slow_other.skips]
    other.restore(*json.loads(json.dumps([found.next_row, found.history, found.skips.ranges])))
    check(other, slow_other)
    if slow.past:
        assert other.history == found.history
    move(other, slow_other, data)
    check(other, slow_other)


def test_steps_of_endless_rows_take_no_time() -> None:
    schedule = Schedule(2**62, [(0, 1024), (2**60, 4096)], [(2**50, 2**51), (2**61, 2**61 + 8)])
    schedule.seek(schedule.first_row(len(schedule) - 1))
    assert schedule.step == len(schedule) - 1


def test_sizes_and_ranges_are_pairs_of_whole_numbers_in_order() -> None:
    for size in (3, np.int64(3), np.uint8(3)):
        assert check_batch_size(size) == [(0, 3)], "one size is a ramp of one point"
    found = check_batch_size(np.array([(0, 4), (8, 2)]))
    assert (found, type(found[1][0])) == ([(0, 4), (8, 2)], int)
    falling = [(0, 4), (8, 2), (8, 3)]
    for wrong in (0, 1.0, [], [(1, 4)], falling, [(0, 4), (8, 0)], [(0, True)], None, "8", [1]):
        with pytest.raises(InputError, match=r"batch_size=.*: expected a whole number of at least"):
            check_batch_size(wrong)
    with pytest.raises(InputError, match=r"at least 1 and at most 16,777,216 rows"):
        check_batch_size([(0, 2**24), (8, 2**24 + 1)])
    check_skips([(0, 1), (3, 9)], 9)
    for a, b in ((-1, 3), (3, 3), (3, 10), (1.0, 2)):
        with pytest.raises(InputError, match=rf"cannot skip rows \({a}, {b}\): .* <= 9, the "):
            check_skips([(2, 3), (a, b)], 9)  # type: ignore[list-item]


class Sorted(NamedTuple):
    """Rows with a key of their own, many of them alike."""

    lanes: int
    factor: int

    def batch_key(self, rows: Ints) -> Key:
        return (rows * self.factor % 5).astype(np.uint64)


@given(st.data())
def test_a_process_has_the_rows_at_its_offsets_of_each_batch(data: st.DataObject) -> None:
    skipped = data.draw(st.lists(st.integers(0, 40).map(lambda a: (2 * a, 2 * a + 1)), max_size=4))
    ends = sorted(data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=3)))
    size = data.draw(st.integers(1, 12))
    offsets = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    lanes, factor = data.draw(st.sampled_from([1, 2, 8])), data.draw(st.integers(1, 4))
    keyed = [Sorted(lanes, factor)] * len(ends) * data.draw(st.booleans())
    shift = data.draw(st.sampled_from([0, 100, 2**40]))
    each = {size: np.array(offsets, np.int64), size + 1: np.arange(2)}
    share = Share(each, Skips(skipped), ends, keyed, shift)
    section = data.draw(st.integers(0, len(ends) - 1))
    begin = ends[section - 1] if section else 0
    last = max(ends[section] - 1, begin)
    firsts = data.draw(st.sets(st.integers(begin, last), max_size=3)) | {last}
    spans = [Span(first, size, section) for first in sorted(firsts)]
    kept = [row for row in range(200) if not any(a <= row < b for a, b in skipped)]
    expected = []
    for span in spans:
        batch = kept[span.first : min(span.first + size, ends[section])]
        if keyed and lanes > 1:
            batch.sort(key=lambda row: (row * factor % 5, row))
        expected.append([batch[at] + shift for at in offsets if at < len(batch)])
        assert share.size(span) == len(offsets)
    found = share.rows(spans)
    assert [rows.tolist() for rows in found] == expected
    assert {rows.dtype.name for rows in found} == {"int64"}


class Rows:
    """A dataset that was transformed, of which a row was lost."""

    def __init__(self) -> None:
        self.read = list[int]()

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return None if row == 3 else {"x": np.array([row, row + 1], np.int16)}


def test_rows_that_became_none_are_refused_and_a_batch_without_rows_looks_like_the_first() -> None:
    rows = Rows()
    maker = BatchMaker([rows], Share({4: np.array([1, 3])}, Skips(), [10]))
    batches = [batch["x"].tolist() for batch in maker.make([Span(4, 4), Span(8, 4), Span(9, 4)])]
    assert batches == [[[5, 6], [7, 8]], [[9, 10], [0, 0]], [[0, 0], [0, 0]]]
    assert rows.read == [5, 7, 9, 0]
    with pytest.raises(InputError, match="row 3 is None: rows cannot be filtered after packing, "):
        next(maker.make([Span(0, 4)]))


class Maker(BatchMaker):
    """Makes texts of spans, and notes how many at a time."""

    limits: tuple[int, ...]
    groups: list[int]

    def __init__(self, *limits: int, layout: Any = native) -> None:
        vars(self).update(limits=limits, layout=layout, groups=[])

    def together(self, span: Span) -> int:
        return self.limits[min(span.first, len(self.limits) - 1)]

    def arrays(self, spans: Any, buffers: Any = None) -> Iterator[Any]:
        self.groups.append(len(spans))
        return (f"batch {span.first}" for span in spans)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 40))
def test_groups_double_up_to_what_is_best_made_together(limits: list[int], count: int) -> None:
    spans = [Span(number, 1) for number in range(count)]
    maker, left = Maker(*limits, layout=str.upper), iter(spans)
    found = [batch for _, batch in make_in_groups(maker, lambda most: list(islice(left, most)))]
    assert found == [f"BATCH {n}" for n in range(count)]
    expected, made, size = list[int](), 0, 1
    while made < count:
        expected.append(min(size, count - made))
        made += expected[-1]
        size = min(2 * size, maker.together(spans[made - 1]))
    assert maker.groups == expected
