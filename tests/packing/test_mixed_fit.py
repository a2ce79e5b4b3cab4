"""Order 2: rows mix lengths, and hardly any padding is left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.errors import StateMismatch
from jaxdata.packing.last_rows import place_online
from jaxdata.packing.planner import pack_block
from jaxdata.packing.pooled_rows import rows_in_order
from jaxdata.packing.strategies.best_fit import assign_best_fit, assign_mixed
from jaxdata.packing.strategies.crop import crop_online
from jaxdata.packing.windows import RowItems

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


GOLDEN = {"best_fit": "b201891fe1fe2faf", "crop": "2f746f688125a7a1"}


@pytest.mark.parametrize("strategy", GOLDEN)
def test_the_plan_of_a_whole_block(strategy: str) -> None:
    number = np.arange(20_000)
    lengths = number * number * 31 % 5_003 // (1 + number % 7)
    plan = pack_block(lengths, seq_len=2048, strategy=strategy, order=2).plan()
    columns = (plan.row_starts, plan.document, plan.start, plan.slots, plan.context)
    content = hashlib.sha256(b"".join(column.astype("<i8").tobytes() for column in columns))
    assert content.hexdigest()[:16] == GOLDEN[strategy]


def _texts(folder: Path, corpus: str) -> Iterator[str]:
    if (path := folder / f"{corpus}.parquet").exists():
        yield from pq.read_table(path)["text"].to_pylist()
        return
    for path in sorted(folder.glob(f"{corpus}*.jsonl.zst")):
        with zstandard.open(path, encoding="utf-8") as file:
            yield from (json.loads(line)["text"] for line in file)


def lengths_of(folder: Path, corpus: str) -> NDArray[np.int64]:
    """Tokens of its documents, at four bytes each."""
    if corpus == "lognormal":
        drawn = np.random.default_rng(0).lognormal(6, 1, 20_000)
        return np.clip(drawn, 8, 20_000).astype(np.int64)
    return np.array([len(text.encode()) // 4 + 2 for text in _texts(folder, corpus)])


POOLS = {"segment_bytes": 2**20, "pool_bytes": 2**23, "lanes": 1}


class Rows:
    """An epoch of rows as slots of segments, to measure how they are mixed."""

    def __init__(
        self, lengths: NDArray[np.int64], strategy: str, seed: int = 0, **dealt: int
    ) -> None:
        docs = jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])
        self.packed = jaxdata.pack(
            docs, seq_len=SEQ_LEN, strategy=strategy, order=2, seed=seed, **dealt
        )
        found = self.packed.table.segments(np.arange(len(self.packed)))
        self.row, self.slots, self.document = found.row, found.slots, lengths[found.document]

    def equal_neighbours(self) -> float:
        """Share of neighbours inside rows that have the same number of slots."""
        return _equal(self.row, self.slots)

    def variance(self) -> float:
        """Of the mean log length, weighted by tokens, over batches of 64 rows."""
        return _variance(self.row, self.slots, self.document)


def _equal(row: NDArray[Any], slots: NDArray[Any]) -> float:
    inside = row[1:] == row[:-1]
    return float(np.mean(slots[1:][inside] == slots[:-1][inside]))


def _variance(row: NDArray[Any], slots: NDArray[Any], document: NDArray[Any]) -> float:
    weighted = np.bincount(row, slots * np.log(document))
    filled, found = np.bincount(row, slots), []
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(filled))
        batches = order[: len(order) // 64 * 64].reshape(-1, 64)
        found.append(np.var(weighted[batches].sum(1) / filled[batches].sum(1)))
    return float(np.mean(found))


def _random_deal(rows: Rows, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The same segments in random order, a new row begun where the next does not fit."""
    order = np.random.default_rng(seed).permutation(len(rows.slots))
    number, filled, row = 0, 0, np.empty(len(order), np.int64)
    for k, slots in enumerate(rows.slots[order].tolist()):
        if filled + slots > SEQ_LEN:
            number, filled = number + 1, 0
        row[k], filled = number, filled + slots
    return row, rows.slots[order], rows.document[order]


def assert_mixed(seeds: list[Rows]) -> None:
    random = [_random_deal(rows, seed) for rows in seeds for seed in range(2)]
    equal = np.mean([rows.equal_neighbours() for rows in seeds])
    assert equal <= 2 * max(np.mean([_equal(r, s) for r, s, _ in random]), 1e-3)
    variance = np.mean([rows.variance() for rows in seeds])
    assert variance <= 1.5 * np.mean([_variance(*deal) for deal in random])


@pytest.mark.parametrize("corpus", ["web", "lognormal"])
def test_rows_are_mixed_and_full(shared_data: Path, corpus: str) -> None:
    lengths = lengths_of(shared_data, corpus)
    for strategy, seeds in (("best_fit", 2), ("crop", 1)):
        rows = [Rows(lengths, strategy, seed) for seed in range(seeds)]
        assert_mixed(rows)
        for plan in (each.packed.plan for each in rows):
            assert plan.padding <= max(0.001 * plan.slots * (strategy == "best_fit"), SEQ_LEN)


def test_rows_of_pools_are_mixed(shared_data: Path) -> None:
    chance, some = np.random.default_rng(0), lengths_of(shared_data, "web")
    lengths = chance.choice(some, int(10e6 / some.mean()))  # two pools and a half
    rows = Rows(lengths, "best_fit", **POOLS)
    assert len(rows.packed.table.planner.order.spans()) == 3
    assert_mixed([rows])
    assert rows.packed.plan.padding <= 0.003 * rows.packed.plan.slots


def test_the_longest_does_not_come_first() -> None:
    lengths = np.random.default_rng(1).integers(2, 300, 4_000)
    rows = Rows(lengths, "best_fit")
    first = np.flatnonzero(np.append(True, np.diff(rows.row) > 0))
    longest = np.maximum.reduceat(rows.slots, first)
    of_row = np.diff(np.append(first, len(rows.row)))
    expected = np.mean(1 / of_row)
    assert abs(np.mean(rows.slots[first] == longest) - expected) < 0.1


def test_a_state_of_the_other_order_is_refused_by_name() -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 3]])
    one, two = (
        jaxdata.Loader(jaxdata.pack(docs, seq_len=4, order=order), batch_size=1) for order in (1, 2)
    )
    with pytest.raises(StateMismatch) as refused:
        two.set_state(one.get_state())
    assert str(refused.value).splitlines()[1:-1] == [
        "  order was 1, is 2: set order: 1 in the config's pack, or order=1 for jaxdata.pack, or "
        "start a new run"
    ]
