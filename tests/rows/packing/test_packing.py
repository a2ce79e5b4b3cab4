from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.packing.block_plan import BinAssignment, BlockPlan
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.packing.strategies.best_fit import assign_best_fit
from jaxdata.rows.packing.strategies.crop import assign_crop
from tests.rows.packing.blocks import pack_block

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


def rows_of_items(placement: BinAssignment) -> NDArray[np.int64]:
    """The row of each item, in order of placing; each comes behind those placed there before."""
    counts, place = placement.lay_out()
    assert sorted(place.tolist()) == list(range(counts.sum()))
    row = np.searchsorted(np.cumsum(counts), place, side="right")
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


def test_crop_takes_the_documents_that_autoresearch_takes() -> None:
    # semantics.md A3: capacity 12, lengths with BOS A5 B7 C9 D4 -> C and D cropped to 3; then B, A.
    # There a row of 12 tokens holds documents whole; here a document of n tokens takes n - 1 slots.
    placement = assign_crop(np.array([5, 7, 9, 4]), 12, 12)
    item, row, slots = placement.items(), rows_of_items(placement), placement.slots()
    assert item.tolist() == [2, 3, 1, 0]
    assert row.tolist() == [0, 0, 1, 1]
    assert slots.tolist() == [9, 3, 7, 5]


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


@pytest.mark.parametrize("strategy", ["pad", "best_fit"])
def test_the_second_window_of_the_shortest_rows_begins_at_token_one(strategy: str) -> None:
    """And its first slot is context all the same: it is where the first window ended."""
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]])
    rows = jaxdata.pack(docs, seq_len=2, overlap=1, strategy=strategy)
    trained = sorted(
        (int(token), int(target))
        for row in rows
        for token, target, loss in zip(row["inputs"], row["targets"], row["loss_mask"], strict=True)
        if loss
    )
    assert trained == [(1, 2), (2, 3), (3, 4), (4, 0)]
