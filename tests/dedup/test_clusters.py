"""Clusters are the components that brute force finds, of runs that are counted one by one."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.base.hashing import Bands, ngrams, word_pieces
from jaxdata.dedup.job import even_cuts, parts_together
from jaxdata.dedup.minhash import Components, documents_of, exact_pairs, jaccard, near_pairs
from jaxdata.dedup.sorted_runs import PARTS, encode_run, even_fences, read_part
from jaxdata.storage import open_store
from tests.dedup.planted import dropped, find, made, ngram_set, prose

EDGES = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80)
    )
)


def components(nodes: int, edges: list[tuple[int, int]]) -> list[int]:
    """The smallest node of each node's component, the slow way."""
    label = list(range(nodes))
    for _ in range(nodes):
        for one, other in edges:
            label[one] = label[other] = min(label[one], label[other])
    return label


@given(EDGES, st.integers(1, 80))
def test_components(graph: tuple[int, list[tuple[int, int]]], batch: int) -> None:
    nodes, edges = graph
    found = Components(nodes)
    for first in range(0, len(edges), batch):
        one, other = np.array(edges[first : first + batch], np.uint32).T
        found.connect(one, other)
    assert found.labels().tolist() == components(nodes, edges)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=20))
def test_exact_copies_are_paired_with_the_first(values: list[tuple[int, int]]) -> None:
    documents = np.arange(len(values), dtype=np.uint32)[::-1].copy()
    high, low = np.array(values, np.uint64).reshape(-1, 2).T
    pairs = zip(
        *(each.tolist() for each in documents_of(exact_pairs(high, low, documents))), strict=True
    )
    order = values[::-1]
    expected = [(order.index(v), n) for n, v in enumerate(order) if order.index(v) < n]
    assert sorted(pairs) == sorted(expected)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=60))
def test_documents_of_a_band_are_paired_with_the_next_sixteen_by_length(
    given: list[tuple[int, int]],
) -> None:
    documents = np.arange(len(given), dtype=np.uint32)[::-1].copy()
    hashes, lengths = np.array(given, np.int64).reshape(-1, 2).T
    found = near_pairs(hashes.astype(np.uint64), lengths, documents)
    rows = sorted((*one, number) for one, number in zip(given, documents.tolist(), strict=True))
    expected: dict[str, set[tuple[int, int]]] = {"next": set(), "others": set()}
    for at, (value, _, one) in enumerate(rows):
        for step, (other_value, _, other) in enumerate(rows[at + 1 : at + 17]):
            if value == other_value:
                expected["others" if step else "next"].add((min(one, other), max(one, other)))
    for name, pairs in expected.items():
        small, large = (each.tolist() for each in documents_of(found[name]))
        assert len(small) == len(pairs)
        assert {*zip(small, large, strict=True)} == pairs


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 30))
@example([1, 0], 1)
@example([0, 0], 1)
def test_units_begin_after_the_thing_in_which_a_height_is_reached(
    sizes: list[int], most: int
) -> None:
    expected, first, reached = [], 0, 0
    for at in range(len(sizes)):
        height = min(sum(sizes[: at + 1]), sum(sizes) - 1) // most  # that of the end is none
        if height > reached or at == len(sizes) - 1:
            expected.append((first, at + 1, sum(sizes[first : at + 1])))
            first = at + 1
        reached = max(height, reached)
    assert [*even_cuts(np.array(sizes, np.int64), most)] == expected


@given(st.integers(0, 2**20), st.integers(1, 2**20))
def test_as_many_parts_are_merged_together_as_fit(size: int, memory: int) -> None:
    fit = [2**n for n in range(9) if size * 2**n <= 256 * memory]
    assert parts_together(size, memory) == (max(fit, default=1) if size else 256)


def test_jaccard_of_ngrams_is_that_of_sets() -> None:
    one, other = prose(1), " ".join([*prose(1).split()[:100], *prose(2).split()[:40]])
    hashed = [np.unique(ngrams(word_pieces([text]), 5).values) for text in (one, other)]
    sets = ngram_set(one), ngram_set(other)
    assert jaccard(*hashed) == len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    none = np.empty(0, np.uint64)
    assert (jaccard(none, none), jaccard(hashed[0], none)) == (0, 0)


def test_clusters_are_those_of_brute_force(tmp_path: Path) -> None:
    """Edges are all pairs that share a band and are similar enough, compared one with another."""
    chance = random.Random(0)
    texts = [_changed(prose(chance.randrange(6)), chance) for _ in range(50)]
    data = made(tmp_path, {"train/web": texts})
    find(data, prefer="first", threshold=0.7, memory=1_500)
    bands = Bands(14, 8)(ngrams(word_pieces(texts), 5)).T
    sets = [ngram_set(text) for text in texts]
    edges = [
        (a, b)
        for a, b in combinations(range(len(texts)), 2)
        if (bands[a] == bands[b]).any() and len(sets[a] & sets[b]) >= 0.7 * len(sets[a] | sets[b])
    ]
    expected = components(len(texts), edges)
    lost = dropped(data, "train/web")
    assert len(lost) > 10
    assert expected == [lost[n][2] if n in lost else n for n in range(len(texts))]


def _changed(text: str, chance: random.Random) -> str:
    words = text.split()
    for _ in range(chance.choice([0, 1, 3, 8])):
        words[chance.randrange(len(words))] = f"x{chance.random()}"
    return " ".join(words)


KEYS = st.lists(st.integers(0, 600), max_size=12)


@settings(max_examples=60)
@given(st.lists(KEYS, min_size=1, max_size=3), st.integers(600, 2**64 - 1), st.data())
def test_a_part_of_runs_has_the_records_between_two_fences(
    runs: list[list[int]], end: int, data: st.DataObject
) -> None:
    fences = even_fences(end)
    limits = fences.tolist()
    assert limits == [part * end // PARTS for part in range(PARTS)] + [end]
    store, layouts = open_store("memory://parts"), {}
    for number, keys in enumerate(runs):
        places = np.arange(len(keys), dtype=np.uint32)
        columns = [np.array(keys, np.uint64), places, places.astype(np.uint8)]
        content, layout = encode_run({"x": columns[:2], "y": columns}, fences)
        assert layout["x"].records == len(keys)
        layouts[f"{number}"] = layout["y"]
        store.write(f"{number}", content)
    first = data.draw(st.integers(0, PARTS) | st.just(0))
    stop = data.draw(st.integers(first, PARTS) | st.just(PARTS))
    (keys, places, small), counts = read_part(store, layouts, first, stop)
    high = 601 if stop == PARTS else limits[stop]
    low = 601 if first == PARTS else limits[first]
    expected = [
        sorted((key, place) for place, key in enumerate(keys) if low <= key < high) for keys in runs
    ]
    assert counts.tolist() == [*map(len, expected)]
    flat = [one for each in expected for one in each]
    assert [*zip(keys.tolist(), places.tolist(), strict=True)] == flat
    assert small.tolist() == [place for _, place in flat]
