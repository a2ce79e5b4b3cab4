"""What makes batches of spans, and of which rows; in how large groups; and streams of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed import batches
from jaxdata.feed.batches import (
    BatchMaker,
    DatasetBatches,
    DirectStream,
    HostPlacement,
    OpenStream,
    PlacedStream,
    TableBatches,
    make_in_groups,
    prefetch,
)
from jaxdata.feed.layouts import native
from jaxdata.feed.schedule import Schedule, Share, Skips, Span
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


def table_of(sources: int, lanes: int, far: bool) -> Any:
    documents = [SimpleNamespace(is_far=far and at % 3 == 0) for at in range(sources)]
    return SimpleNamespace(documents=documents, lanes=lanes, sources={"web": "table"})


@given(
    st.integers(1, 80),
    st.sampled_from([1, 8, 64, 256, 512, 4096]),
    st.booleans(),
    st.integers(1, 40_000),
    st.integers(0, 600),
    st.booleans(),
)
def test_batches_are_made_together_up_to_so_many_rows(
    sources: int, lanes: int, far: bool, size: int, local: int, sorts: bool
) -> None:
    offsets = np.arange(min(local, size))
    keyed = [SimpleNamespace(lanes=lanes)] if sorts else []
    share = Share({size: offsets}, Skips(), [10**9], keyed)
    maker = TableBatches([table_of(sources, lanes, far)], share)
    most = {1: 32, 8: 256, 64: 2048, 256: 8192, 512: 16_384, 4096: 131_072}[lanes]
    most = min(max(most, 1024, 256 * sources), 16_384)
    if far:
        most = min(most, 512)
    each = len(offsets) or 1
    expected = 1
    while (expected + 1) * each <= most and (
        not sorts or lanes == 1 or (expected + 1) * size <= 65_536
    ):
        expected += 1
    assert maker.is_far == far
    assert maker.together(Span(0, size)) == expected


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

    is_far = True

    def __init__(self, *limits: int, layout: Any = native) -> None:
        self.limits, self.layout = limits, layout
        self.groups: list[int] = []

    def together(self, span: Span) -> int:
        return self.limits[min(span.first, len(self.limits) - 1)]

    def far_ranges(self, spans: Any) -> Iterator[Any]:
        for span in spans:
            yield self, np.zeros(span.size, np.uint8)

    def prefetch(self, ranges: Any) -> None:
        self.groups.append(len(ranges))

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
    direct = Maker(*limits)
    stream = DirectStream(direct, iter(spans))
    assert [next(stream) for _ in spans] == found
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    assert direct.groups == expected


def test_a_layout_is_applied_to_each_batch() -> None:
    maker, pool = Maker(3, layout=lambda batch: f"<{batch}>"), object()
    spans = [Span(0, 2), Span(1, 6)]
    groups = iter([spans, []])
    made = make_in_groups(maker, lambda _: next(groups), pool)
    assert [*made] == [(spans[0], "<batch 0>"), (spans[1], "<batch 1>")]
    assert maker.buffers is pool
    assert [*maker.arrays(spans)] == ["batch 0", "batch 1"]
    assert prefetch(maker, spans) == 8, "what is fetched beforehand is told in bytes"
    assert maker.groups[-2:] == [2, 6]


def test_rows_that_are_given_one_by_one_are_neither_far_nor_made_together() -> None:
    maker = DatasetBatches([], Share({4: np.arange(4)}, Skips(), [8]))
    assert not maker.is_far
    assert maker.together(Span(0, 4)) == 1
    assert [*maker.far_ranges([Span(0, 4)])] == []


class Counting:
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


def refuse() -> Any:
    raise AssertionError("there is one")


def test_a_stream_is_opened_once_and_closed_once() -> None:
    stream, opened, advanced = Counting(1), OpenStream(), list[Any]()
    assert opened.get(lambda: stream) is opened.get(refuse) is stream
    assert opened.next(refuse, advanced.append) == 10
    assert advanced == [Span(1, 1)]
    opened.close()
    opened.close()
    assert stream.closed == 1
    other = Counting(5)
    assert opened.next(lambda: other, advanced.append) == 50
    del opened
    gc.collect()
    assert other.closed == 1, "it closes with whoever reads it"


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt()])
def test_a_stream_that_ends_or_is_interrupted_is_closed(error: BaseException) -> None:
    stream, again, opened = Counting(error), Counting(3), OpenStream()
    with pytest.raises(type(error)):
        opened.next(lambda: stream, refuse)
    assert stream.closed == 1

    def fail(_: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        opened.next(lambda: again, fail)
    assert again.closed == 1


def test_a_forked_copy_leaves_the_stream_alone_and_opens_its_own_but_on_devices() -> None:
    for on_devices in (False, True):
        stream, other, opened = Counting(1), Counting(7), OpenStream(on_devices)
        opened.get(lambda: stream)  # noqa: B023
        lock = opened.lock
        opened.forget()
        assert opened.lock is not lock
        opened.close()
        assert stream.closed == 0
        if not on_devices:
            assert opened.next(lambda: other, lambda _: None) == 70  # noqa: B023
            continue
        with pytest.raises(InputError) as caught:
            opened.get(refuse)
        assert str(caught.value) == (
            "JAX cannot be used in a forked process, and this iterator places batches on its "
            "devices: start the process with 'spawn', or use shard=(i, n) for numpy batches"
        )


def test_a_placed_stream_passes_each_batch_through() -> None:
    stream = Counting(1, 2)
    placed = PlacedStream(stream, lambda span, batch: (span.first, batch + 1))
    assert [next(placed), next(placed)] == [(Span(1, 1), (1, 11)), (Span(2, 1), (2, 21))]
    placed.close()
    assert stream.closed == 1


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
