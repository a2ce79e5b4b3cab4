"""Groups, runs, orders and ranges of bytes, against lists."""

from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import example, given, settings as examples, strategies as st

from jaxdata.base import ragged
from jaxdata.base.ragged import ByteRanges

counts_lists = st.lists(st.integers(0, 5), max_size=8)
KINDS = ["int32", "int64", "uint32"]
small = examples(max_examples=40)


@small
@given(counts_lists, st.sampled_from(KINDS))
def test_items_have_a_group_and_a_number_in_it(counts: list[int], kind: str) -> None:
    group, number = ragged.expand(np.array(counts, kind))
    items = [(g, n) for g, count in enumerate(counts) for n in range(count)]
    assert [*zip(group.tolist(), number.tolist(), strict=True)] == items
    assert group.dtype == number.dtype == kind


@small
@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 5)), max_size=8))
def test_runs_count_on_from_their_first_number(runs: list[tuple[int, int]]) -> None:
    first, counts = np.array(runs, np.int64).reshape(-1, 2).T
    found = ragged.consecutive(first, counts)
    assert found.tolist() == [start + n for start, count in runs for n in range(count)]
    assert found.dtype == np.int64


@small
@given(st.lists(st.integers(0, 30), max_size=20), st.sampled_from([31, 4_096, 5_000, 10**9]))
@example([], 0)
@example([0, 0, 2], 10**6)
def test_distinct_numbers_ascend_and_each_is_one_of_them(numbers: list[int], count: int) -> None:
    found, which = ragged.distinct(np.array(numbers, np.int64), count)
    assert found.tolist() == sorted({*numbers})
    assert which.tolist() == [found.tolist().index(number) for number in numbers]


TOPS = st.sampled_from([1, 3, 2**16 - 1, 2**16, 2**20, 2**32 - 1, 2**32, 2**48 + 9, 2**62])
KEYS = TOPS.flatmap(lambda top: st.tuples(st.just(top), st.lists(st.integers(0, top), max_size=20)))


@small
@given(KEYS, st.booleans())
@example((2**32, [2**32, 0, 2**16, 1, 2**32, 2**31]), False)
def test_orders_are_stable_whatever_the_largest(given: tuple[int, list[int]], few: bool) -> None:
    top, keys = given
    keys = [keys[0] if few else key for key in keys]
    found = ragged.stable_order(np.array(keys, np.int64), top)
    assert found.tolist() == sorted(range(len(keys)), key=lambda at: keys[at])
    falling = ragged.descending_order(np.array(keys, np.int64))
    assert falling.tolist() == sorted(range(len(keys)), key=lambda at: -keys[at])


@small
@given(st.lists(st.integers(0, 20) | st.integers(2**20 - 2, 2**20 + 2), max_size=20))
@example([2**20 - 1, 2**20 - 1, 0])
def test_classes_of_sizes_fall_and_count_their_items(sizes: list[int]) -> None:
    values, counts = ragged.size_classes(np.array(sizes, np.int64))
    expected = sorted(Counter(sizes).items(), reverse=True)
    assert [*zip(values.tolist(), counts.tolist(), strict=True)] == expected
    assert values.dtype == np.int64


@small
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_runs_of_equal_values_are_those_of_the_list(values: list[int]) -> None:
    edges, at = [], 0
    for _, run in groupby(values):
        edges.append((at, at := at + len([*run])))
    assert ragged.equal_runs(np.array(values)) == edges


pieces_lists = st.lists(st.binary(max_size=6), max_size=5)


def bytes_of(ranges: ByteRanges) -> list[bytes]:
    assert ranges.join() == b"".join(ranges.each())
    return [bytes(each) for each in ranges.each()]


@small
@given(st.lists(pieces_lists, max_size=4), st.data())
def test_chained_ranges_follow_each_other_and_any_are_taken(parts: Any, data: Any) -> None:
    every = [piece for part in parts for piece in part]
    chained = ByteRanges.chain([ByteRanges.of(part) for part in parts])
    assert bytes_of(chained) == every
    assert all(column.dtype == np.int64 for column in chained[1:])
    sizes = np.array([len(piece) for piece in every], np.int64)
    assert bytes_of(ByteRanges.cut(b"".join(every) + b"more", sizes)) == every
    some = st.lists(st.integers(0, len(every) - 1)) if every else st.just(list[int]())
    chosen = data.draw(some)
    assert bytes_of(chained.take(np.array(chosen, np.int64))) == [every[at] for at in chosen]
    assert bytes_of(chained.take(slice(1, 3))) == every[1:3]


@small
@given(pieces_lists, st.data())
def test_ranges_are_inserted_before_others(pieces: list[bytes], data: st.DataObject) -> None:
    places = st.tuples(st.integers(0, len(pieces)), st.integers(0, 3))
    inserted = sorted(data.draw(st.lists(places, max_size=5)), key=lambda each: each[0])
    at, sizes = np.array(inserted, np.int64).reshape(-1, 2).T
    expected = []
    for number in range(len(pieces) + 1):
        expected += [b"xyz"[:size] for place, size in inserted if place == number]
        expected += pieces[number : number + 1]
    assert bytes_of(ByteRanges.of(pieces).inserted(at, sizes, b"xyz")) == expected
