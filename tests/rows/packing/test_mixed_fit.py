"""Order 2: rows mix lengths, and hardly any padding is left."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.packing.block_plan import RowItems, rows_in_order
from jaxdata.rows.packing.mixed_fit import place_online
from jaxdata.rows.packing.planner import pack_blocks
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies.best_fit import assign_best_fit, assign_mixed
from jaxdata.rows.packing.strategies.crop import crop_online
from jaxdata.testing import shuffle_quality

SEQ_LEN = 2048


@st.composite
def items(draw: st.DrawFn) -> tuple[NDArray[np.int64], int, int]:
    capacity = draw(st.integers(1, 300))
    largest = draw(st.integers(1, capacity))
    seed, count = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 900))
    chance = np.random.default_rng(seed)
    some = chance.integers(1, largest + 1, draw(st.integers(1, 40)))  # few sizes, or many
    sizes = (
        chance.choice(some, count)
        if draw(st.booleans())
        else chance.integers(1, largest + 1, count)
    )
    return sizes, capacity, draw(st.sampled_from([1, 2, 5, capacity]))


def mixed(sizes: NDArray[np.int64], capacity: int, limit: int) -> RowItems:
    row, (count,) = assign_mixed(sizes, np.array([0, len(sizes)]), capacity, limit).close()
    rows = rows_in_order(row)
    assert rows.rows == count
    return rows


@given(items())
def test_every_item_is_in_one_row_that_has_room(
    given_items: tuple[NDArray[np.int64], int, int],
) -> None:
    sizes, capacity, limit = given_items
    rows = mixed(sizes, capacity, limit)
    assert sorted(rows.items.tolist()) == list(range(len(sizes)))
    row = np.repeat(np.arange(rows.rows), rows.counts)
    assert (np.bincount(row, sizes[rows.items], rows.rows) <= capacity).all()
    assert rows.rows == 0 or 1 <= rows.counts.min() <= rows.counts.max() <= limit


@given(items())
def test_it_needs_hardly_more_rows_than_best_fit_decreasing(
    given_items: tuple[NDArray[np.int64], int, int],
) -> None:
    sizes, capacity, limit = given_items
    least = assign_best_fit(sizes, capacity, limit).rows
    assert mixed(sizes, capacity, limit).rows <= 1.05 * least + 2


@pytest.mark.parametrize("sizes", [(26, 49), (26, 49, 100), (33, 35, 33, 35, 100)])
def test_few_sizes_that_do_not_mix_are_packed_by_best_fit_decreasing(sizes: tuple[int]) -> None:
    for count in (900, 5_000):
        drawn = np.random.default_rng(0).choice(sizes, count)
        rows = mixed(drawn, 100, 100)
        assert sorted(rows.items.tolist()) == list(range(count))
        assert rows.rows == assign_best_fit(drawn, 100, 100).rows


def test_online_best_fit_takes_the_fullest_row() -> None:
    assert place_online([6, 3, 2, 1, 4], 8, 8) == [0, 1, 0, 1, 1]
    assert place_online([3, 2], 8, 8, [(7, 1), (4, 1), (3, 2)]) == [2, 1], "in rows that are open"
    assert place_online([3, 2, 1], 8, 3, [(7, 2)]) == [0, 1, 1], "three in a row at most"


def test_the_largest_come_first_where_the_order_needs_more_rows() -> None:
    assert place_online([3, 3, 5, 5], 8, 8) == [1, 0, 0, 1]
    assert max(place_online([4] * 4 + [6] * 4, 10, 8)) == 3, "two rows fewer than in the order"


@given(items())
def test_online_crop_fills_rows_and_crops_one_item_of_each(
    given_items: tuple[NDArray[np.int64], int, int],
) -> None:
    sizes, capacity, limit = given_items
    rows, slots = crop_online(sizes, capacity, limit)
    assert sorted(rows.items.tolist()) == list(range(len(sizes)))
    assert ((slots >= 1) & (slots <= sizes)).all()
    row = np.repeat(np.arange(rows.rows), rows.counts)
    filled = np.bincount(row, slots[rows.items], rows.rows)
    assert (filled <= capacity).all()
    assert ((filled == capacity) | (rows.counts == limit))[:-1].all()
    assert np.bincount(row, (slots < sizes)[rows.items], rows.rows).max(initial=0) <= 1
    assert rows.counts.max(initial=0) <= limit


def test_items_that_fit_nowhere_together_stay_as_they_were() -> None:
    sizes = np.full(5_000, 1_500)
    assert mixed(sizes, SEQ_LEN, SEQ_LEN).rows == 5_000


def numbers(count: int, least: int, most: int) -> NDArray[np.int64]:
    """Numbers that no random generator made, from `least` to `most`."""
    number = np.arange(count)
    return least + number * number * 7_919 % 10_007 % (most - least + 1)


WHOLE = np.arange(20_000) ** 2 * 31 % 5_003 // (1 + np.arange(20_000) % 7)
SIX = [0, 1, 10, 200, 900, 2_600, 5_400]
PLANS: dict[str, tuple[NDArray[np.int64], list[int], dict[str, Any], str]] = {
    "best_fit": (WHOLE, [0, 20_000], {"seq_len": 2048}, "b201891fe1fe2faf"),
    "crop": (WHOLE, [0, 20_000], {"seq_len": 2048, "strategy": "crop"}, "2f746f688125a7a1"),
    "six blocks": (numbers(5_400, 0, 260), SIX, {"seq_len": 100}, "8d1ea40d1c2df851"),
    "six, cropped": (
        numbers(5_400, 0, 260),
        SIX,
        {"seq_len": 100, "strategy": "crop"},
        "0188965e2b3b1434",
    ),
    "six, small": (numbers(5_400, 0, 40), SIX, {"seq_len": 600}, "1e02483247433c62"),
    "six, small, three a row": (
        numbers(5_400, 0, 40),
        SIX,
        {"seq_len": 90, "max_segments": 3},
        "7f3340d850be55da",
    ),
    "six, overlapping": (
        numbers(5_400, 2, 900),
        SIX,
        {"seq_len": 100, "overlap": 30},
        "19db7dd80e2ecb2a",
    ),
    "one a row": (
        numbers(300, 1, 90),
        [0, 300],
        {"seq_len": 64, "max_segments": 1},
        "0f5ac7e5a718d5e6",
    ),
    "two sizes": (
        np.where(numbers(1_200, 0, 2), 27, 50),
        [0, 400, 1_200],
        {"seq_len": 100},
        "cd2577a770124bf2",
    ),
    "two and whole rows": (
        27 + numbers(1_200, 0, 9) // 4 * 37,
        [*SIX[:4], 1_200],
        {"seq_len": 100},
        "82f9bcbc1c52823f",
    ),
    "no two fit well": (
        numbers(6_000, 35, 50),
        [0, 500, 6_000],
        {"seq_len": 100},
        "c0a9e7981c986002",
    ),
    "cropped all": (
        numbers(6_000, 35, 80),
        [0, 500, 6_000],
        {"seq_len": 100, "strategy": "crop"},
        "6bebf6bcc69eaa81",
    ),
    "cropped, alike": (
        np.where(numbers(5_000, 0, 9), 61, 62),
        [0, 5_000],
        {"seq_len": 100, "strategy": "crop"},
        "31b0a9809aedb61f",
    ),
    "many sizes, five a row": (
        numbers(9_000, 2, 700),
        [0, 9_000],
        {"seq_len": 1_000, "max_segments": 5},
        "e96b68d40927c395",
    ),
    "cropped, three a row": (
        numbers(900, 2, 40),
        [0, 90, 900],
        {"seq_len": 100, "strategy": "crop", "max_segments": 3},
        "cec73ce932b2033e",
    ),
    "concat": (
        numbers(900, 0, 260),
        [0, 90, 900],
        {"seq_len": 100, "strategy": "concat"},
        "4e4746d0cfca56a2",
    ),
    "pad": (
        numbers(900, 0, 260),
        [0, 90, 900],
        {"seq_len": 100, "strategy": "pad", "overlap": 9},
        "a585aaabdcf427c2",
    ),
}
"""Documents' lengths, where blocks begin, how they are packed; and what comes of it, for ever"""


@pytest.mark.parametrize("name", PLANS)
def test_plans_stay_the_same(name: str) -> None:
    """States of runs go on with them."""
    lengths, bounds, given_settings, digest = PLANS[name]
    content = hashlib.sha256()
    for packed in pack_blocks(lengths, np.array(bounds), PackSettings.checked(**given_settings)):
        plan, size = packed.plan(), packed.size()
        columns = (plan.row_starts, plan.document, plan.start, plan.slots, plan.context)
        content.update(b"".join(column.astype("<i8").tobytes() for column in columns))
        assert (size.rows, size.filled) == (plan.rows, plan.slots.sum())
    assert content.hexdigest()[:16] == digest


def _texts(folder: Path, corpus: str) -> Iterator[str]:
    if (path := folder / f"{corpus}.parquet").exists():
        yield from pq.read_table(path)["text"].to_pylist()
        return
    for path in sorted(folder.glob(f"{corpus}*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from (json.loads(line)["text"] for line in file)


def lengths_of(folder: Path, corpus: str) -> NDArray[np.int64]:
    """Tokens of its documents, at four bytes each."""
    if corpus == "lognormal":
        drawn = np.random.default_rng(0).lognormal(6, 1, 20_000)
        return np.clip(drawn, 8, 20_000).astype(np.int64)
    return np.array([len(text.encode()) // 4 + 2 for text in _texts(folder, corpus)])


POOLS = {"chunk_bytes": 2**18, "block_bytes": 2**21, "lanes": 1}


@pytest.mark.parametrize(
    ("corpus", "strategy", "pools", "most"),
    [
        ("web", "best_fit", {}, 0.001),
        ("lognormal", "best_fit", {}, 0.001),
        ("lognormal", "best_fit", POOLS, 0.003),
        ("lognormal", "crop", {}, 0),
    ],
)
def test_rows_are_mixed_and_full(
    shared_data: Path, corpus: str, strategy: str, pools: dict[str, int], most: float
) -> None:
    lengths = lengths_of(shared_data, corpus)
    docs = jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])
    rows = jaxdata.pack(docs, seq_len=SEQ_LEN, strategy=strategy, **pools)
    assert (len(rows.table.deal(0).planner.order.spans()) > 2) == bool(pools)
    (quality,) = shuffle_quality(rows, batch_size=16)
    of_lengths = [figure for figure in quality.figures if figure.of == "length" and figure.random]
    assert len(of_lengths) > 5
    assert [figure for figure in of_lengths if not figure.good] == []
    assert rows.plan.padding <= max(most * rows.plan.slots, SEQ_LEN)
