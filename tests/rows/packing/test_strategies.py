"""Strategies: blocks packed side by side, where each item goes, and that it stays there."""

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.base.errors import ConfigError, InputError
from jaxdata.rows.packing.bins import assign_best_fit
from jaxdata.rows.packing.block_plan import BlockPlan, Packed, RowItems, rows_in_order
from jaxdata.rows.packing.mixed_fit import assign_mixed
from jaxdata.rows.packing.planner import pack_blocks
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.packing.strategies import PAD, STRATEGIES, crop_longest, crop_online
from jaxdata.testing import assert_rows_conserve, shuffle_quality
from tests import commands
from tests.builders import run

Lengths = NDArray[np.int64]
Items = tuple[Lengths, int, int]


def pack_block(lengths: Any, **settings: Any) -> Packed:
    """Documents of these lengths as rows of a block."""
    given = np.asarray(lengths)
    (packed,) = pack_blocks(given, np.array([0, len(given)]), PackSettings.checked(**settings))
    return packed


@st.composite
def items(draw: st.DrawFn, most: int = 900) -> Items:
    """Sizes, few or many, the capacity of a row and its most items."""
    capacity = draw(st.integers(1, 300))
    largest = draw(st.integers(1, capacity))
    seed, count = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, most))
    chance = np.random.default_rng(seed)
    some = chance.integers(1, largest + 1, draw(st.sampled_from([1, 2, 40, 10**4])))
    return chance.choice(some, count), capacity, draw(st.sampled_from([1, 2, 5, capacity]))


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
    return found, {"seq_len": seq_len, "max_segments": draw(st.sampled_from([None, None, 1, 3]))}


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


def assert_placed(rows: RowItems, slots: Lengths, capacity: int, limit: int) -> NDArray[Any]:
    """Every item is in one row, and no row holds more than it can; returns what rows hold."""
    assert sorted(rows.items.tolist()) == list(range(len(slots)))
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)
    filled = np.bincount(row, slots[rows.items], len(rows.counts))
    assert (filled <= capacity).all()
    assert not len(rows.counts) or 1 <= rows.counts.min() <= rows.counts.max() <= limit
    return filled


@given(items(60))
def test_best_fit_is_best_fit_decreasing(case: Items) -> None:
    sizes, capacity, limit = case
    made = assign_best_fit(sizes, capacity, limit)
    assert made.slots().tolist() == sizes[made.items()].tolist() == sorted(sizes, reverse=True)
    rows = made.by_row()
    filled = assert_placed(rows, sizes, capacity, limit)
    assert len(rows.counts) == made.rows
    for row in np.split(sizes[rows.items], np.cumsum(rows.counts)[:-1]):
        assert row.tolist() == sorted(row, reverse=True), "in order of placing"
    if limit == capacity:
        rooms = sorted(room for room, _ in slow_best_fit(sizes.tolist(), capacity, limit))
        assert sorted((capacity - filled).tolist()) == rooms


def mixed(sizes: Lengths, capacity: int, limit: int) -> RowItems:
    row, (count,) = assign_mixed(sizes, np.array([0, len(sizes)]), capacity, limit).close()
    rows = rows_in_order(row)
    assert len(rows.counts) == count
    return rows


@given(items())
def test_mixed_rows_have_every_item_and_are_hardly_more_than_best_fit_makes(case: Items) -> None:
    rows = mixed(*case)
    assert_placed(rows, *case)
    assert len(rows.counts) <= 1.05 * assign_best_fit(*case).rows + 2


@pytest.mark.parametrize("sizes", [(26, 49), (26, 49, 100), (33, 35, 33, 35, 100)])
def test_few_sizes_that_do_not_mix_are_packed_by_best_fit_decreasing(sizes: tuple[int]) -> None:
    for count in (900, 5_000):
        drawn = np.random.default_rng(0).choice(sizes, count)
        rows = mixed(drawn, 100, 100)
        assert_placed(rows, drawn, 100, 100)
        assert len(rows.counts) == assign_best_fit(drawn, 100, 100).rows


@given(items(), st.sampled_from([crop_online, crop_longest]))
def test_crop_fills_rows_and_crops_one_item_of_each(case: Items, crop: Any) -> None:
    sizes, capacity, limit = case
    rows, slots = crop(sizes, capacity, limit)
    assert ((slots >= 1) & (slots <= sizes)).all()
    filled = assert_placed(rows, slots, capacity, limit)
    assert ((filled == capacity) | (rows.counts == limit))[:-1].all()
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)
    assert np.bincount(row, (slots < sizes)[rows.items]).max(initial=0) <= 1


@given(blocks(), st.sampled_from([("best_fit", 0), ("best_fit", 3), ("crop", 0), ("pad", 0)]))
def test_a_block_does_not_depend_on_its_company(
    given_blocks: tuple[list[Lengths], dict[str, int]], strategy: tuple[str, int]
) -> None:
    lengths, settings = given_blocks
    more = settings | dict(zip(("strategy", "overlap"), strategy, strict=True))
    bounds = np.append(0, np.cumsum([len(block) for block in lengths]))
    together = pack_blocks(np.concatenate(lengths), bounds, PackSettings.checked(**more))
    for packed, block in zip(together, lengths, strict=True):
        alone = pack_block(block, **more)
        assert packed.size == alone.size
        assert packed.size.rows == packed.plan().rows
        for name, column in vars(packed.plan()).items():
            assert column.tolist() == vars(alone.plan())[name].tolist(), name


def segments_of(plan: BlockPlan) -> list[list[tuple[int, ...]]]:
    """The segments of each row."""
    columns = zip(*(column.tolist() for column in plan.columns), strict=True)
    segments, starts = list(columns), plan.row_starts.tolist()
    return [segments[a:b] for a, b in pairwise(starts)]


LENGTHS = st.lists(st.integers(0, 60), max_size=60)


@given(LENGTHS, st.integers(1, 20), st.sampled_from(sorted(STRATEGIES)), st.booleans())
def test_rows_are_in_document_order(
    lengths: Any, seq_len: int, strategy: str, shuffle: Any
) -> None:
    plan = pack_block(lengths, seq_len=seq_len, strategy=strategy, shuffle=shuffle).plan()
    ordered = segments_of(plan.in_document_order())
    assert Counter(map(tuple, map(sorted, segments_of(plan)))) == Counter(map(tuple, ordered))
    assert ordered == sorted(ordered)
    if strategy == "concat":
        told = [(d, t) for row in segments_of(plan) for d, a, n, _ in row for t in range(a, a + n)]
        assert told == [(d, t) for d, length in enumerate(lengths) for t in range(length)]
        assert all(sum(n for _, _, n, _ in row) == seq_len for row in segments_of(plan)[:-1])


def numbers(count: int, least: int, most: int) -> Lengths:
    """Numbers that no random generator made, from `least` to `most`."""
    number = np.arange(count)
    return least + number * number * 7_919 % 10_007 % (most - least + 1)


WHOLE = np.arange(20_000) ** 2 * 31 % 5_003 // (1 + np.arange(20_000) % 7)
SIX = [0, 1, 10, 200, 900, 2_600, 5_400]
CROP: dict[str, Any] = {"strategy": "crop"}
PAD_9: dict[str, Any] = {"strategy": "pad", "overlap": 9}
TWO = 27 + numbers(1_200, 0, 9) // 4 * 37
PLANS: dict[str, tuple[Lengths, list[int], int, dict[str, Any]]] = {
    "b201891fe1fe2faf": (WHOLE, [0, 20_000], 2048, {}),
    "9e8c73d4ade7a688": (WHOLE, [0, 20_000], 2048, {"overlap": 128}),
    "01ebec493fc247df": (WHOLE, [0, 20_000], 2048, {"max_segments": 4}),
    "04a2bb48d76a2885": (WHOLE, [0, 20_000], 2048, {"strategy": "concat"}),
    "c3372c30e6a1a093": (WHOLE, [0, 20_000], 2048, {"strategy": "pad"}),
    "2f746f688125a7a1": (WHOLE, [0, 20_000], 2048, CROP),
    "8d1ea40d1c2df851": (numbers(5_400, 0, 260), SIX, 100, {}),
    "0188965e2b3b1434": (numbers(5_400, 0, 260), SIX, 100, CROP),
    "1e02483247433c62": (numbers(5_400, 0, 40), SIX, 600, {}),
    "7f3340d850be55da": (numbers(5_400, 0, 40), SIX, 90, {"max_segments": 3}),
    "82f9bcbc1c52823f": (TWO, [*SIX[:4], 1_200], 100, {}),
    "c0a9e7981c986002": (numbers(6_000, 35, 50), [0, 500, 6_000], 100, {}),
    "6bebf6bcc69eaa81": (numbers(6_000, 35, 80), [0, 500, 6_000], 100, CROP),
    "e96b68d40927c395": (numbers(9_000, 2, 700), [0, 9_000], 1_000, {"max_segments": 5}),
    "4e4746d0cfca56a2": (numbers(900, 0, 260), [0, 90, 900], 100, {"strategy": "concat"}),
    "a585aaabdcf427c2": (numbers(900, 0, 260), [0, 90, 900], 100, PAD_9),
}
"""What comes, for ever, of documents' lengths, where blocks begin, `seq_len` and settings."""


@pytest.mark.parametrize("digest", PLANS)
def test_plans_stay_the_same(digest: str) -> None:
    """States of runs go on with them."""
    lengths, bounds, seq_len, more = PLANS[digest]
    content, settings = hashlib.sha256(), PackSettings.checked(seq_len=seq_len, **more)
    for packed in pack_blocks(lengths, np.array(bounds), settings):
        plan = packed.plan()
        columns = (plan.row_starts, *plan.columns)
        content.update(b"".join(column.astype("<i8").tobytes() for column in columns))
        assert packed.size[:2] == (plan.rows, plan.slots.sum())
    assert content.hexdigest()[:16] == digest


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_beyond_32_bits_are_planned_like_smaller_ones(strategy: str) -> None:
    lengths, seq_len = np.array([2**31 + 5, 0, 3, 2**26, 2**33 - 1]), 2**26
    settings = PackSettings.checked(seq_len=seq_len, strategy=strategy)
    (packed,) = pack_blocks(lengths, np.array([0, len(lengths)]), settings)
    plan = packed.plan()
    rows = np.repeat(np.arange(plan.rows), np.diff(plan.row_starts))
    assert plan.slots.min() > 0
    assert np.bincount(rows, plan.slots).max() <= seq_len
    assert (plan.start + plan.slots <= lengths[plan.document]).all()
    targets = np.minimum(plan.start + plan.slots, lengths[plan.document] - 1) - plan.start
    assert packed.size.trained == targets.sum()
    if STRATEGIES[strategy].keeps_all:
        assert targets.sum() == np.maximum(lengths - 1, 0).sum()


@pytest.mark.parametrize("strategy", ["best_fit", "crop"])
def test_rows_are_mixed_and_full(strategy: str) -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, 8_000), 8, 20_000).astype(np.int64)
    docs = jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])
    pools = {"chunk_bytes": 2**18, "block_bytes": 2**21, "lanes": 1}
    rows = jaxdata.pack(docs, seq_len=2048, strategy=strategy, **pools)
    assert rows.table.blocks > 2
    (quality,) = shuffle_quality(rows, batch_size=16)
    of_lengths = [figure for figure in quality.figures if figure.of == "length"]
    assert len(of_lengths) > 3
    assert [figure for figure in of_lengths if not figure.good] == []
    assert rows.plan.padding <= 0.003 * rows.plan.slots


def test_a_toy_strategy_packs_and_is_known_to_commands(tmp_path: Path, monkeypatch: Any) -> None:
    sources = {name: [5, 40, 17, 1, 9] * 8 for name in ("web", "val/web")}
    config = run(tmp_path, sources, pack={"strategy": "toy", "seq_len": 16})
    with pytest.raises(ConfigError, match="'toy': expected 'best_fit', 'concat', 'crop' or 'pad' "):
        jaxdata.load(config)
    toy = replace(PAD, name="toy", description="one toy a row", takes_overlap=False)
    monkeypatch.setitem(STRATEGIES, "toy", toy)
    docs = jaxdata.open_dataset(config.parent / "d").source("train", "web")
    rows = jaxdata.pack(docs, seq_len=16, strategy="toy")
    assert assert_rows_conserve(rows) > 0
    assert rows.plan.rows == jaxdata.pack(docs, seq_len=16, strategy="pad").plan.rows
    with pytest.raises(InputError, match=r"toy cuts no windows .* strategy 'best_fit' or 'pad'"):
        jaxdata.pack(docs, seq_len=16, strategy="toy", overlap=2)
    assert jaxdata.load(config).rows.sources["web"].table.settings.strategy == "toy"
    told = commands.described("inspect", "--config", config)["packing"]
    costs = {cost["strategy"]: cost["rows"] for cost in told}
    assert list(costs) == ["pad", "concat", "crop", "best_fit", "toy"]
    assert costs["toy"] == costs["pad"]
