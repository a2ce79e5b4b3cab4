"""What makes batches of spans, and of which rows; in how large groups; and streams of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from copy import copy
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base import processes
from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed import batches
from jaxdata.feed.batches import (
    Batches,
    BatchMaker,
    Change,
    DatasetBatches,
    DirectStream,
    Share,
    Stream,
    StreamReader,
    TableBatches,
    make_in_groups,
)
from jaxdata.feed.layouts import native
from jaxdata.feed.schedule import Schedule, Skips, Span
from jaxdata.rows.table import Key
from tests.rows.test_assembling import GivenRows, Segment, Source, row_of

SOURCES = [Source([[n * 10 + at for at in range(9)]], None, [[0.0] * 9]) for n in (1, 2)]
NAMES = ("inputs", "targets", "loss_mask", "segment_ids", "positions")


@st.composite
def rows_of_segments(draw: st.DrawFn, seq_len: int, count: int) -> list[list[Segment]]:
    rows = []
    for _ in range(count):
        slots = draw(st.integers(1, min(seq_len, 8)))
        start = draw(st.integers(0, 9 - slots))
        rows.append([Segment(draw(st.integers(0, 1)), 0, start, slots, 0)])
    return rows


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, Share]:
    total = draw(st.integers(1, 20))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    ramp = [(at * 6, size) for at, size in enumerate(sizes)]
    sections = [0, *sorted(edge for edge in draw(st.sets(st.just(total // 2))) if edge)]
    skipped = draw(st.lists(st.integers(0, 10).map(lambda a: (a, a + 2)), max_size=1))
    schedule = Schedule(total, ramp, skipped, False, sections)
    offsets = {
        size: np.array(sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))))
        for size in sizes
    }
    return schedule, Share(offsets, schedule.skips, schedule.ends)


@given(schedules(), st.data())
def test_batches_of_any_spans_hold_their_rows_in_the_shape_of_their_section(
    both: tuple[Schedule, Share], data: st.DataObject
) -> None:
    schedule, share = both
    spans = [*schedule.spans()]
    total = 20
    rows = data.draw(rows_of_segments(9, total))
    short = [[segment for segment in row if segment.slots <= 5] for row in rows]
    tables = [GivenRows(SOURCES, rows, 9, "segment"), GivenRows(SOURCES, short, 5, "row")]
    maker = TableBatches(tables, share)
    assert not maker.is_far
    assert [*maker.far_ranges(spans)] == []
    made = [*maker.make(spans)]
    compacted = [*TableBatches(tables, share, on_host=False).make(spans)]
    assert len(made) == len(compacted) == len(spans)
    for step, (span, batch, packed) in enumerate(zip(spans, made, compacted, strict=True)):
        numbers = schedule.batch_rows(step).tolist()
        offsets = share.offsets[span.size].tolist()
        local = [numbers[at] if at < len(numbers) else None for at in offsets]
        own, seq_len, positions = [(rows, 9, "segment"), (short, 5, "row")][span.section]
        chosen = [[] if number is None else own[number] for number in local]
        found = [row_of(SOURCES, row, seq_len, positions) for row in chosen]
        assert {*batch} == {*NAMES}
        for name in NAMES:
            assert batch[name].tolist() == [row[name] for row in found], name
        slots = [[count for count in counts if count] for counts in packed["slots"].tolist()]
        assert slots == [[segment.slots for segment in row] for row in chosen]


@pytest.mark.parametrize("lanes", [None, 1, 8])
def test_pages_are_chosen_once_by_the_part_of_a_batch_that_is_read_here(
    lanes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, asked = [], []

    def far(table: Any, rows: Any, extras: Any) -> Iterator[Any]:
        asked.append((table, rows.tolist(), extras))
        yield "files", "ranges"

    monkeypatch.setattr(batches, "choose_pages", lambda *given_: chosen.append(given_))
    monkeypatch.setattr(batches, "far_ranges", far)
    tables = [
        SimpleNamespace(sources={"web": 1, "code": 2}, documents=[]),
        SimpleNamespace(sources={"web": 3}, documents=[]),
    ]
    identity = SimpleNamespace(lanes=lanes, batch_key=lambda rows: rows.astype(np.uint64))
    keyed = [] if lanes is None else [SimpleNamespace(lanes=1), identity]
    offsets = {8: np.array([1, 3]), 4: np.array([0, 2, 3])}
    share = Share(offsets, Skips(), [16, 24], keyed)
    extras = ("source", "weight", "target_weight")
    maker = TableBatches(tables, share, extras)
    spans = [Span(0, 8), Span(8, 8), Span(16, 8, 1), Span(20, 4, 1)]
    for _ in range(2):
        assert [*maker.far_ranges(spans)] == [("files", "ranges")] * 3
    part = 2 / 8 if lanes == 8 else 1.0
    assert chosen == [({"web": 3, "code": 2}, part, extras)]
    assert asked[:3] == [
        (tables[0], [1, 3, 9, 11], extras),
        (tables[1], [17, 19], extras),
        (tables[1], [20, 22, 23], extras),
    ]


class Rows:
    """A dataset that was transformed."""

    def __init__(self, lost: int | None = None) -> None:
        self.lost, self.read = lost, list[int]()

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        if row == self.lost:
            return None
        return {"x": np.array([row, row + 1], np.int16), "flag": np.array(True)}


@given(schedules())
def test_transformed_rows_are_stacked_and_completed_with_zeros(
    both: tuple[Schedule, Share],
) -> None:
    schedule, share = both
    spans = [*schedule.spans()]
    rows = Rows()
    maker = DatasetBatches(rows, share)
    made = [*maker.make(spans)]
    assert len(made) == len(spans)
    for step, (span, batch) in enumerate(zip(spans, made, strict=True)):
        numbers = schedule.batch_rows(step).tolist()
        local = [
            numbers[at] if at < len(numbers) else None for at in share.offsets[span.size].tolist()
        ]
        expected = [[0, 0] if number is None else [number, number + 1] for number in local]
        assert batch["x"].tolist() == expected
        assert batch["flag"].tolist() == [number is not None for number in local]
        assert (batch["x"].dtype, batch["flag"].dtype) == (np.int16, np.bool_)
        assert maker.together(span) == 1
    assert not maker.is_far
    assert [*maker.far_ranges(spans)] == []


def test_rows_that_became_none_are_refused_and_a_batch_without_rows_looks_like_the_first() -> None:
    share = Share({4: np.array([2, 3])}, Skips(), [10])
    rows = Rows()
    [batch] = DatasetBatches(rows, share).make([Span(8, 4)])
    assert (batch["x"].tolist(), rows.read) == ([[0, 0], [0, 0]], [0])
    with pytest.raises(InputError) as caught:
        next(DatasetBatches(Rows(lost=3), share).make([Span(0, 4)]))
    assert str(caught.value) == (
        "row 3 is None: rows cannot be filtered after packing, because steps have fixed rows; "
        "filter documents before packing, or mask the loss of the row"
    )


class Maker(BatchMaker):
    """Makes texts of spans, and notes what it was asked."""

    def __init__(self, *limits: int, layout: Any = native) -> None:
        self.limits, self.layout = limits, layout
        self.groups: list[int] = []

    def together(self, span: Span) -> int:
        return self.limits[min(span.first, len(self.limits) - 1)]

    def arrays(self, spans: Any, buffers: Any = None) -> Iterator[Any]:
        self.groups.append(len(spans))
        self.buffers = buffers
        return (f"batch {span.first}" for span in spans)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 40))
def test_groups_double_up_to_what_is_best_made_together(limits: list[int], count: int) -> None:
    spans = [Span(number, 1) for number in range(count)]
    maker, given_ = Maker(*limits), iter(range(count))
    found = [*make_in_groups(maker, lambda most: [spans[at] for at in islice(given_, most)])]
    assert found == [(span, f"batch {span.first}") for span in spans]
    expected, made, size = [], 0, 1
    while made < count:
        expected.append(min(size, count - made))
        made += expected[-1]
        size = min(2 * size, maker.together(spans[made - 1]))
    assert maker.groups == expected
    laid_out = Maker(*limits, layout=lambda batch: f"<{batch}>")
    stream = DirectStream(laid_out, iter(spans))
    assert [*stream] == [(span, f"<{batch}>") for span, batch in found]
    stream.close()
    assert laid_out.groups == expected


def test_another_recipe_holds_from_the_next_batch_on() -> None:
    spans = [Span(number, 1) for number in range(9)]
    stream = DirectStream(Maker(3), iter(spans))
    assert [next(stream)[0].first for _ in range(3)] == [0, 1, 2]
    other = Maker(3, layout=str.upper)
    stream.change(Change(lambda _: other, iter(spans[2:7])))
    assert [batch for _, batch in stream] == [f"BATCH {number}" for number in range(3, 7)]
    assert other.groups == [1, 2, 1], "the first of them is not waited for longer"


class Counting(Stream[Any]):
    """A stream of numbers; an exception among them is raised."""

    def __init__(self, *given_: Any) -> None:
        self.given, self.closed = iter(given_), 0

    def __next__(self) -> Any:
        found = next(self.given)
        if isinstance(found, BaseException):
            raise found
        return Span(found, 1), found * 10

    def close(self) -> None:
        self.closed += 1


class Reader(StreamReader):
    """Reads given streams, one after another."""

    def __init__(self, *streams: Counting, on_devices: bool = False) -> None:
        super().__init__(on_devices)
        self.streams, self.opened, self.advanced = iter(streams), 0, list[int]()

    def _open(self) -> Batches:
        self.opened += 1
        return next(self.streams)

    def _advance(self, note: Any) -> None:
        self.advanced.append(note.first)


def test_a_stream_is_opened_once_and_closed_with_its_reader_or_where_it_moves() -> None:
    one, other = Counting(1, 2), Counting(5)
    reader = Reader(one, other)
    assert reader in [*processes._forgetful], "it is told in a forked copy"
    reader.start_prefetch()
    assert (next(reader), next(reader), reader.opened, reader.advanced) == (10, 20, 1, [1, 2])
    with reader._moving():
        assert one.closed == 1
    assert (next(reader), reader.opened) == (50, 2)
    assert [next(reader, None), next(reader, None)] == [None, None]
    assert (one.closed, other.closed, reader.opened) == (1, 1, 2), "an end is an end"
    with reader._moving():
        pass
    reader.streams = iter([last := Counting(7)])
    assert next(reader) == 70
    del reader
    gc.collect()
    assert last.closed == 1
    with pytest.raises(InputError, match="a Reader is not copied or pickled, as it has threads"):
        copy(Reader())


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()])
def test_after_an_error_or_an_interrupt_a_stream_is_opened_anew(error: BaseException) -> None:
    broken, again = Counting(error), Counting(3)
    reader = Reader(broken, again)
    with pytest.raises(type(error)):
        next(reader)
    assert (broken.closed, next(reader)) == (1, 30)


def test_a_closed_one_does_nothing_more() -> None:
    reader = Reader(stream := Counting(1, 2))
    next(reader)
    reader.close()
    assert stream.closed == 1
    for call in (reader.__next__, reader.start_prefetch, reader._moving().__enter__):
        with pytest.raises(InputError, match=r"^this loader is closed: make another"):
            call()


def test_a_forked_copy_leaves_the_stream_alone_and_opens_its_own_but_on_devices() -> None:
    for on_devices in (False, True):
        reader = Reader(original := Counting(1, 2), Counting(7), on_devices=on_devices)
        next(reader)
        lock = reader.lock
        reader.forget()
        assert reader.lock is not lock
        if not on_devices:
            assert next(reader) == 70
        else:
            with pytest.raises(InputError, match="JAX cannot be used in a forked process, and thi"):
                next(reader)
        reader.close()
        assert original.closed == 0


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
