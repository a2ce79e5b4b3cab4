"""Blocks that are packed side by side: each comes out as it does alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.packing import planner
from jaxdata.rows.packing.block_plan import BlockPlan, rows_in_order
from jaxdata.rows.packing.planner import Planner, pack_blocks
from jaxdata.rows.packing.pooled_rows import PooledRows, SizeStock, scattered
from jaxdata.rows.packing.settings import PackSettings
from tests.builders import dataset
from tests.rows.packing.blocks import pack_block

Lengths = NDArray[np.int64]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[Lengths], dict[str, int]]:
    """Blocks of all kinds: short documents or long ones, of few lengths or many, few or many."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    seq_len, found = draw(st.integers(8, 200)), []
    for _ in range(draw(st.integers(1, 5))):
        longest = draw(st.sampled_from([4, seq_len // 3 + 2, seq_len + 2, 4 * seq_len]))
        count = draw(st.sampled_from([1, 9, 300, 700, 2_500]))
        few = chance.integers(0, longest, draw(st.sampled_from([2, 60, 1_000])))
        found.append(chance.choice(few, count))
    limit = draw(st.sampled_from([None, None, 1, 3]))
    return found, {"seq_len": seq_len, "max_segments": limit}


@given(blocks(), st.sampled_from([("best_fit", 0), ("best_fit", 3), ("crop", 0), ("pad", 0)]))
def test_a_block_does_not_depend_on_its_company(
    given_blocks: tuple[list[Lengths], dict[str, int]], strategy: tuple[str, int]
) -> None:
    lengths, settings = given_blocks
    name, overlap = strategy
    more = settings | {"strategy": name, "overlap": overlap}
    bounds = np.append(0, np.cumsum([len(block) for block in lengths]))
    together = pack_blocks(np.concatenate(lengths), bounds, PackSettings.checked(**more))
    for packed, block in zip(together, lengths, strict=True):
        alone = pack_block(block, **more)
        assert packed.size() == alone.size()
        assert packed.size().rows == packed.plan().rows
        assert_same_plans(packed.plan(), alone.plan())


def assert_same_plans(one: BlockPlan, other: BlockPlan) -> None:
    for name, column in vars(one).items():
        assert column.tolist() == vars(other)[name].tolist(), name


def lines(docs: jaxdata.ArrayDocuments, settings: PackSettings) -> list[list[int]]:
    return Planner(docs, settings).table().tolist()


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop"])
def test_the_table_does_not_depend_on_what_is_planned_together(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 900)
    docs = jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])
    settings = PackSettings.checked(
        seq_len=64, strategy=strategy, chunk_bytes=512, block_bytes=4096, lanes=2
    )
    expected = lines(docs, settings)
    assert len(expected) > 15
    packed: list[int] = []
    pack = planner.pack_blocks
    monkeypatch.setattr(
        planner, "pack_blocks", lambda *args: packed.append(len(args[0])) or pack(*args)
    )
    for together in (1, 120, 400):
        monkeypatch.setattr(planner, "_TOGETHER", together)
        packed.clear()
        assert lines(docs, settings) == expected
        assert max(packed) <= max(together, *(line[1] for line in expected))
        assert strategy == "concat" or sum(packed) == len(lengths)
    largest = max(line[1] + 90 * line[1] // 64 for line in expected)
    monkeypatch.setattr(planner, "MAX_WINDOWS", 2 * largest)  # of all that are packed together
    assert lines(docs, settings) == expected
    made = Planner(docs, settings)
    for first, count, _, rows, *_ in expected:
        assert made.plan((first, first + count))[1].rows == rows


def test_all_cores_plan_the_same_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 400)
    dataset(tmp_path / "d", {"a": lengths})
    settings = PackSettings.checked(seq_len=64, chunk_bytes=256, block_bytes=1024, lanes=2)
    docs = jaxdata.open_dataset(tmp_path / "d").source("train", "a")
    alone = Planner(docs, settings).table()
    monkeypatch.setattr(planner, "_WORTH_WORKERS", 2)
    monkeypatch.setattr(planner, "_A_TASK", 40)
    seen: list[tuple[int, int]] = []
    table = Planner(docs, settings).table(lambda done, total: seen.append((done, total)))
    assert table.tolist() == alone.tolist()
    assert seen == [(done, len(alone)) for done in range(len(alone) + 1)], "first the total"


@st.composite
def wishes(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    numbers = st.lists(st.integers(1, 60), max_size=40)
    return draw(numbers), draw(numbers), draw(st.integers(0, 30))


@given(wishes())
def test_a_stock_gives_each_wish_an_item_of_its_own_that_fits(
    drawn: tuple[list[int], list[int], int],
) -> None:
    sizes, wanted, slack = drawn
    stock = SizeStock(np.array(sizes, np.int32), np.arange(len(sizes)), 60)
    left = set(range(len(sizes)))
    asking = np.array(wanted, np.int32)
    for _ in range(60):
        able, met, items = stock.take(asking, slack)
        fits = [any(w - slack <= sizes[item] <= w for item in left) for w in asking.tolist()]
        assert sorted(able.tolist()) == np.flatnonzero(fits).tolist()
        assert len(met) >= min(len(able), 1), "the first of those that can be met is"
        for wish, item in zip(asking[met].tolist(), items.tolist(), strict=True):
            assert wish - slack <= sizes[item] <= wish
            left.remove(item)
        asking = np.delete(asking, met)
    assert not len(able)


def test_wishes_with_the_same_nearest_item_get_the_next_ones_below() -> None:
    stock = SizeStock(np.array([7, 3, 5, 9], np.int32), np.arange(4), 20)
    able, met, items = stock.take(np.array([8, 8, 8, 8, 4], np.int32), 6)
    assert able.tolist() == [4, 0, 1, 2, 3]
    assert (met.tolist(), items.tolist()) == ([4, 0, 1], [1, 0, 2])  # 3 is the nearest to 4


@given(st.lists(st.integers(0, 200), max_size=6))
def test_each_group_is_scattered_by_itself(counts: list[int]) -> None:
    found = np.split(scattered(np.array(counts, np.int64)), np.cumsum(counts)[:-1])
    first = 0
    for count, part in zip(counts, found, strict=False):
        assert sorted(part.tolist()) == list(range(first, first + count))
        assert (part - first).tolist() == scattered(np.array([count])).tolist()
        if count > 20:
            assert np.abs(np.diff(part)).min() > count / 4
        first += count


def rows_of(pooled: PooledRows) -> Iterator[list[int]]:
    rows = rows_in_order(np.where(pooled.row < 0, -1, pooled.row))
    for part in np.split(rows.items, np.cumsum(rows.counts)[:-1]):
        yield part.tolist()


def test_dissolved_rows_give_their_items_back() -> None:
    rows = PooledRows(np.array([4, 3, 4, 2, 4, 1]), np.array([0, 3, 6]), 4, 9, 0)
    assert rows.unplaced().tolist() == [1, 3, 5], "items as large as a row have one of their own"
    rows.begin_with(np.array([1, 3]))
    assert rows.fill(rows.open_rows(), np.array([5]), 4, closely=False).tolist() == []
    assert list(rows_of(rows)) == [[1], [3, 5]], "an item of its own block"
    rows.dissolve(np.array([1]))
    assert rows.unplaced().tolist() == [3, 5]
    row, counts = rows.close()
    assert counts.tolist() == [3, 1]
    assert len(set(row[[0, 1, 2, 4]].tolist())) == 4


def test_a_close_fit_fills_more_than_half_of_the_room() -> None:
    for size, left in ((5, []), (4, [1])):
        rows = PooledRows(np.array([8, size]), np.array([0, 2]), 16, 9, 0)
        rows.begin_with(np.array([0]))
        assert rows.fill(rows.open_rows(), np.array([1]), 4, closely=True).tolist() == left
