from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from jaxdata.packing.block_plan import BlockPlan
from jaxdata.packing.planner import pack_block
from jaxdata.packing.strategies import STRATEGIES
from jaxdata.packing.strategies.best_fit import assign_best_fit
from jaxdata.packing.strategies.crop import assign_crop
from jaxdata.packing.windows import BinAssignment, cut_windows, window_counts

lengths_lists = st.lists(st.integers(0, 60), max_size=60)


@st.composite
def sizes_and_capacity(draw: st.DrawFn, beyond: int = 1) -> tuple[list[int], int, int]:
    capacity = draw(st.integers(1, 30))
    sizes = draw(st.lists(st.integers(1, capacity * beyond), max_size=60))
    return sizes, capacity, draw(st.sampled_from([1, 2, 3, capacity]))


def slow_best_fit(sizes: list[int], capacity: int, limit: int) -> list[tuple[int, int]]:
    """(room left, items) of each row, one item at a time into the fullest row that takes it."""
    rows: list[tuple[int, int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [k for k, (room, held) in enumerate(rows) if room >= size and held < limit]
        if fitting:
            best = min(fitting, key=lambda k: rows[k][0])
            rows[best] = (rows[best][0] - size, rows[best][1] + 1)
        else:
            rows.append((capacity - size, 1))
    return rows


def slow_crop(sizes: list[int], capacity: int, limit: int) -> list[list[int]]:
    """Slots of the items of each row, one row at a time."""
    left, rows = sorted(sizes), []
    while left:
        row, room = [], capacity
        while left and room and len(row) < limit:
            fitting = [size for size in left if size <= room]
            if fitting:
                left.remove(fitting[-1])
                row.append(fitting[-1])
            else:
                del left[0]
                row.append(room)
            room -= row[-1]
        rows.append(row)
    return rows


def rows_of_items(placement: BinAssignment) -> NDArray[np.int64]:
    """The row of each item, in order of placing; each comes behind those placed there before."""
    row_starts, place = placement.lay_out()
    assert sorted(place.tolist()) == list(range(row_starts[-1]))
    row = np.searchsorted(row_starts, place, side="right") - 1
    assert place[np.argsort(row, kind="stable")].tolist() == list(range(len(place)))
    return row


@given(sizes_and_capacity())
def test_best_fit_is_best_fit_decreasing(case: tuple[list[int], int, int]) -> None:
    sizes, capacity, limit = case
    placement = assign_best_fit(np.array(sizes, np.int64), capacity, limit)
    item, row, slots = placement.items(), rows_of_items(placement), placement.slots()
    assert sorted(item.tolist()) == list(range(len(sizes)))
    assert slots.tolist() == [sizes[k] for k in item]
    held = np.bincount(row) if sizes else np.zeros(0, int)
    fill = np.bincount(row, weights=slots) if sizes else np.zeros(0)
    assert held.max(initial=0) <= limit
    assert fill.max(initial=0) <= capacity
    if limit == capacity:
        rooms = sorted(room for room, _ in slow_best_fit(sizes, capacity, limit))
        assert sorted((capacity - fill).tolist()) == rooms


@given(sizes_and_capacity(beyond=3))
def test_crop_fills_row_by_row(case: tuple[list[int], int, int]) -> None:
    sizes, capacity, limit = case
    placement = assign_crop(np.array(sizes, np.int64), capacity, limit)
    item, row, slots = placement.items(), rows_of_items(placement), placement.slots()
    assert sorted(item.tolist()) == list(range(len(sizes)))
    got: dict[int, list[int]] = {}
    for number, width in zip(row.tolist(), slots.tolist(), strict=True):
        got.setdefault(number, []).append(width)
    assert [got[k] for k in sorted(got)] == slow_crop(sizes, capacity, limit)


def test_crop_takes_the_documents_that_autoresearch_takes() -> None:
    # semantics.md A3: capacity 12, lengths with BOS A5 B7 C9 D4 -> C and D cropped to 3; then B, A.
    # There a row of 12 tokens holds documents whole; here a document of n tokens takes n - 1 slots.
    placement = assign_crop(np.array([5, 7, 9, 4]), 12, 12)
    item, row, slots = placement.items(), rows_of_items(placement), placement.slots()
    assert item.tolist() == [2, 3, 1, 0]
    assert row.tolist() == [0, 0, 1, 1]
    assert slots.tolist() == [9, 3, 7, 5]


@given(st.integers(0, 200), st.integers(1, 20), st.data())
def test_windows_cover_each_pair_once(length: int, seq_len: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, seq_len // 2))
    windows = cut_windows([length], seq_len, overlap)
    context = windows.context(windows.start)
    trained = [
        target
        for start, slots, skipped in zip(windows.start, windows.slots, context, strict=True)
        for target in range(start + 1 + skipped, start + 1 + slots)
    ]
    assert trained == list(range(1, length))
    assert window_counts([length], seq_len, overlap).tolist() == [len(windows.start)]
    assert windows.slots.max(initial=0) <= seq_len
    # A window's first `overlap` targets are the last ones of the window before it.
    begins = windows.start.tolist()
    ends = (windows.start + windows.slots + 1).tolist()
    assert begins[1:] == [end - 1 - overlap for end in ends[:-1]]


@given(
    lengths_lists,
    st.integers(1, 20),
    st.sampled_from(sorted(STRATEGIES)),
    st.sampled_from([None, 1, 2, 5]),
)
def test_rows_are_within_their_measure(
    lengths: list[int], seq_len: int, strategy: str, limit: int | None
) -> None:
    plan = pack_block(lengths, seq_len=seq_len, strategy=strategy, max_segments=limit).plan()
    counts = np.diff(plan.row_starts)
    assert counts.min(initial=1) >= 1
    assert counts.max(initial=0) <= (limit or seq_len)
    assert plan.slots.min(initial=1) >= 1
    row = np.repeat(np.arange(plan.rows), counts)
    assert np.bincount(row, weights=plan.slots, minlength=1).max() <= seq_len


@given(lengths_lists, st.integers(2, 20), st.sampled_from(sorted(STRATEGIES)), st.data())
def test_the_size_of_a_block_is_that_of_its_rows(
    lengths: list[int], seq_len: int, strategy: str, data: st.DataObject
) -> None:
    cuts = strategy in ("best_fit", "pad")
    overlap = data.draw(st.integers(0, seq_len // 2)) if cuts else 0
    packed = pack_block(lengths, seq_len=seq_len, strategy=strategy, overlap=overlap)
    plan, size = packed.plan(), packed.size()
    assert (size.rows, size.filled) == (plan.rows, plan.slots.sum())
    assert size.overlap == plan.context.sum()
    assert size.begun == (plan.start == 0).sum()
    reached = np.full(len(lengths), -1)
    np.maximum.at(reached, plan.document, plan.start + plan.slots)
    there = reached >= 0
    assert size.finished == (reached[there] >= np.array(lengths, int)[there] - 1).sum()
    targets = np.array(lengths, int)[plan.document] - 1 - plan.start
    assert size.trained == np.minimum(plan.slots, targets).sum() - size.overlap


@given(lengths_lists, st.integers(1, 20))
def test_concat_is_one_stream_without_padding(lengths: list[int], seq_len: int) -> None:
    plan = pack_block(lengths, seq_len=seq_len, strategy="concat").plan()
    tokens = [
        (document, token)
        for document, start, slots in zip(plan.document, plan.start, plan.slots, strict=True)
        for token in range(start, start + slots)
    ]
    assert tokens == [(d, t) for d, length in enumerate(lengths) for t in range(length)]
    filled = np.add.reduceat(plan.slots, plan.row_starts[:-1]) if plan.rows else np.zeros(0)
    assert (filled[:-1] == seq_len).all()


@given(lengths_lists, st.integers(1, 20), st.sampled_from(sorted(STRATEGIES)))
def test_document_order_keeps_the_rows(lengths: list[int], seq_len: int, strategy: str) -> None:
    plan = pack_block(lengths, seq_len=seq_len, strategy=strategy).plan()
    ordered = plan.in_document_order()
    assert Counter(rows_of(plan)) == Counter(rows_of(ordered))
    firsts = [row[0] for row in rows_in_order(ordered)]
    assert firsts == sorted(firsts)


def rows_in_order(plan: BlockPlan) -> list[list[tuple[int, ...]]]:
    columns = zip(plan.document, plan.start, plan.slots, plan.context, strict=True)
    segments = [tuple(int(value) for value in column) for column in columns]
    starts = plan.row_starts.tolist()
    return [segments[a:b] for a, b in pairwise(starts)]


def rows_of(plan: BlockPlan) -> list[tuple[tuple[int, ...], ...]]:
    return [tuple(sorted(row)) for row in rows_in_order(plan)]


@pytest.mark.parametrize(("seq_len", "most"), [(2048, 0.0005), (8192, 0.001)])
def test_best_fit_leaves_almost_no_padding(seq_len: int, most: float) -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1, 65_536).astype(int).clip(8, 20_000)
    plan = pack_block(lengths, seq_len=seq_len, strategy="best_fit").plan()
    assert 1 - plan.slots.sum() / (plan.rows * seq_len) <= most
