"""Clusters are the components that brute force finds; who stays of each is decided one by one."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from functools import cmp_to_key
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.base.hashing import Bands, ngrams, word_pieces
from jaxdata.dedup.benchmarks import Overlaps
from jaxdata.dedup.job import even_cuts, parts_together
from jaxdata.dedup.members import MOST, Member, Members
from jaxdata.dedup.minhash import (
    Clusters,
    Components,
    documents_of,
    exact_pairs,
    near_pairs,
)
from jaxdata.dedup.outcome import (
    EXACT_COPY,
    NEAR_COPY,
    TAINTED,
    Dropped,
    choose,
    cluster_sizes,
    clustered,
    clusters_by_size,
    leave,
    statistics_of,
    value_ranks,
)
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


def test_clusters_are_those_of_brute_force(tmp_path: Path) -> None:
    """Edges are all pairs that share a band and are similar enough, but for those held out."""
    chance = random.Random(0)
    texts = [_changed(prose(chance.randrange(24)), chance) for _ in range(80)]
    ours = 66
    data = made(tmp_path, {"train/web": texts[:ours], "val/web": texts[ours:]})
    find(data, prefer="first", threshold=0.7, memory=1_500, against=["val"])
    bands = Bands(14, 8).of_all(ngrams(word_pieces(texts), 5)).T
    sets = [ngram_set(text) for text in texts]
    edges = [
        (a, b)
        for a, b in combinations(range(len(texts)), 2)
        if a < ours and (bands[a] == bands[b]).any() and similar(sets[a], sets[b], 0.7)
    ]
    labels = components(len(texts), edges)
    expected = {}
    for number in range(ours):
        group = [other for other, label in enumerate(labels) if label == labels[number]]
        stays = min([other for other in group if other >= ours] or group)
        if stays != number:
            expected[number] = ("val/web", stays - ours) if stays >= ours else ("train/web", stays)
    lost = dropped(data, "train/web")
    assert {number: fate[1:] for number, fate in lost.items()} == expected
    assert len({fate[1] for fate in lost.values()}) == 2


def similar(one: set[Any], other: set[Any], share: float) -> bool:
    return len(one & other) >= share * len(one | other)


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


class Case(NamedTuple):
    sizes: list[int]
    against: list[bool]
    near: list[int]
    exact: list[int]
    tainted: dict[int, int]
    ranks: list[int]

    @property
    def members(self) -> Members:
        pairs = zip(self.sizes, self.against, strict=True)
        sides = [(), ("train/a",), ("train/b/x", "train/b/y"), ("train/c",)]
        return Members(
            [Member(f"{n}", s, "", sides[n], against=a) for n, (s, a) in enumerate(pairs)]
        )

    @property
    def clusters(self) -> Clusters:
        return Clusters(np.array(self.exact, np.uint32), np.array(self.near, np.uint32))

    @property
    def overlaps(self) -> Overlaps:
        tainted = sorted(self.tainted)
        by = np.array([self.tainted[one] for one in tainted], np.uint32)
        return Overlaps(np.array(tainted, np.uint32), by, np.empty(0, np.uint64))

    def owner(self, document: int) -> int:
        """The member of a document."""
        places = [member for member, size in enumerate(self.sizes) for _ in range(size)]
        return places[document]

    def stays(self, document: int) -> bool:
        return self.against[self.owner(document)]

    def together(self) -> dict[int, list[int]]:
        """The documents of each cluster, those alone too."""
        found: dict[int, list[int]] = defaultdict(list)
        for document, label in enumerate(self.near):
            found[label].append(document)
        return found


def smallest(labels: list[Any]) -> list[int]:
    """Labels as their smallest document."""
    return [labels.index(label) for label in labels]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    total = sum(sizes)

    def numbers(most: int) -> list[int]:
        return draw(st.lists(st.integers(0, most), min_size=total, max_size=total))

    near, within = numbers(4), numbers(1)
    return Case(
        sizes,
        draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))),
        smallest(near),
        smallest([*zip(near, within, strict=True)]),
        draw(st.dictionaries(st.integers(0, total - 1), st.integers(100, 109))) if total else {},
        numbers(2),
    )


def taken_of(case: Case) -> list[int]:
    """Those in a cluster with others, and those with n-grams of benchmarks."""
    groups = case.together().values()
    return sorted({one for group in groups if len(group) > 1 for one in group} | {*case.tainted})


def chosen(case: Case) -> list[tuple[int, int, int, int]]:
    """Each document that is dropped: what stays instead, why, and how many are alike."""
    found = []
    for group in case.together().values():
        taken = [one for one in group if one in taken_of(case)]

        def before(one: int, other: int) -> int:
            facts = [
                (not case.stays(d), d in case.tainted, case.owner(d), case.ranks[d], d)
                for d in (one, other)
            ]
            return -1 if facts[0] < facts[1] else 1

        taken.sort(key=cmp_to_key(before))
        for number, one in enumerate(taken):
            tainted = one in case.tainted
            if case.stays(one) or (number == 0 and not tainted):
                continue
            survivor = taken[0]
            kind = EXACT_COPY if case.exact[one] == case.exact[survivor] else NEAR_COPY
            if tainted and not case.stays(survivor):
                survivor, kind = case.tainted[one], TAINTED
            found.append((one, survivor, kind, len(taken)))
    return sorted(found)


def drop(case: Case) -> Dropped:
    groups = [group for group in case.together().values() if len(group) > 1]
    found = clustered(np.array(case.near, np.uint32))
    assert found.tolist() == sorted(one for group in groups for one in group)
    documents = np.array(taken_of(case), np.uint32)
    ranks = np.array([case.ranks[one] for one in documents], np.int64)
    return choose(case.members, case.clusters, case.overlaps, documents, ranks)


@settings(max_examples=60)
@given(cases())
def test_the_first_of_a_cluster_stays_and_the_others_say_why_not(case: Case) -> None:
    found = drop(case)
    columns = found.documents, found.survivors, found.kind, found.sizes
    rows = [*zip(*(column.tolist() for column in columns), strict=True)]
    assert rows == chosen(case)
    assert [column.dtype for column in columns] == [np.uint32, np.uint32, np.uint8, np.int64]


@settings(max_examples=60)
@given(cases())
def test_clusters_that_lose_documents_are_counted_by_source(case: Case) -> None:
    rows = [row for row in chosen(case) if row[2] != TAINTED]
    sizes = {survivor: size for _, survivor, _, size in rows}

    def counted(survivors: set[int]) -> dict[str, int]:
        return clusters_by_size(np.array([sizes[n] for n in survivors], np.int64))

    assert cluster_sizes(drop(case)) == counted({*sizes})
    expected = {}
    for number, member in enumerate(case.members.each):
        lost = {survivor for one, survivor, *_ in rows if case.owner(one) == number}
        for side in member.sides if not member.against else ():
            expected[side] = {"clusters": counted(lost)}
    assert statistics_of(case.members, drop(case)) == expected


@given(st.lists(st.integers(2, 40) | st.integers(0, 20).map(lambda n: 2**n + 1)))
def test_clusters_are_counted_by_powers_of_two(sizes: list[int]) -> None:
    found = clusters_by_size(np.array(sizes, np.int64))
    classes = [(str(n), n, n) for n in (2, 3)]
    classes += [(f"{2**n}-{2 ** (n + 1) - 1}", 2**n, 2 ** (n + 1) - 1) for n in range(2, 22)]
    counts = {name: sum(low <= size <= high for size in sizes) for name, low, high in classes}
    assert [*found.items()] == [(name, count) for name, count in counts.items() if count]


@settings(max_examples=60)
@given(cases(), st.data())
def test_documents_unlike_what_stays_leave_their_cluster_together(
    case: Case, data: st.DataObject
) -> None:
    dropped = drop(case)
    count = len(dropped.documents)
    unlike = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    labels = np.array(case.near, np.uint32)
    documents = clustered(labels)
    found = leave(case.members, labels, documents, dropped, np.array(unlike, bool))
    rows = zip(dropped.documents.tolist(), dropped.survivors.tolist(), unlike, strict=True)
    gone = [(document, survivor) for document, survivor, leaves in rows if leaves]
    leaving, survivors = {one for one, _ in gone}, {one for _, one in gone}
    expected = list(case.near)
    for group in case.together().values():
        if len(group) > 1 and leaving & {*group}:
            moved = {d for d in group if d in leaving or (case.stays(d) and d not in survivors)}
            for part in ({*group} & moved, {*group} - moved):
                for one in part:
                    expected[one] = min(part)
    assert found.tolist() == expected
    assert labels.tolist() == case.near, "what was given stays"


@settings(max_examples=60)
@given(cases())
def test_documents_are_numbered_member_after_member(case: Case) -> None:
    members = case.members
    every = [(member, n) for member, size in enumerate(case.sizes) for n in range(size)]
    member, number = members.places(np.arange(len(every), dtype=np.uint32))
    assert [*zip(member.tolist(), number.tolist(), strict=True)] == every
    assert members.total == len(every)
    firsts = [members.first(n) for n in range(len(case.sizes))]
    assert firsts == [sum(case.sizes[:n]) for n in range(len(case.sizes))]
    assert Members([Member("a", MOST - 1, ""), Member("b", 1, "")]).total == 2**32 - 1
    with pytest.raises(InputError, match=r"^4,294,967,296 documents are more than 4,294,967,295"):
        Members([Member("a", MOST, ""), Member("b", 1, "")])


VALUES = st.none() | st.integers(-3, 3) | st.floats() | st.sampled_from(["a", "B", "1", ""])
VALUES |= st.lists(st.integers(0, 2), max_size=1)


@given(st.lists(VALUES, max_size=9), st.booleans())
def test_values_are_ranked_numbers_before_texts_and_none_last(
    values: list[Any], largest: bool
) -> None:
    def known(value: Any) -> bool:
        return value is not None and not (isinstance(value, float) and math.isnan(value))

    def key(value: Any) -> tuple[bool, Any]:
        number = isinstance(value, int | float)
        return not number, value if number else str(value)

    order = sorted({key(value) for value in values if known(value)}, reverse=largest)
    expected = [order.index(key(each)) if known(each) else len(order) for each in values]
    found = value_ranks(values, largest=largest)
    assert found.tolist() == expected
    assert found.dtype == np.int64


LINKS = 14


def chain(seed: int = 1) -> list[str]:
    """Texts of which each is like the next one, and the first unlike the last."""
    words = prose(seed, sentences=20).split()
    texts = []
    for link in range(LINKS):
        words[link * 12 : link * 12 + 3] = [f"changed{link}{place}" for place in "abc"]
        texts.append(" ".join(words))
    return texts


def alike(one: str, other: str) -> bool:
    return similar(ngram_set(one), ngram_set(other), 0.8)


def greedy(texts: list[str]) -> dict[int, int]:
    """By hand: the first of those left stays for all that are like it, and so on."""
    found: dict[int, int] = {}
    for first, text in enumerate(texts):
        if first not in found:
            later = range(first + 1, len(texts))
            mine = [n for n in later if n not in found and alike(text, texts[n])]
            found |= dict.fromkeys(mine, first)
    return found


def test_compared_with_what_stays_all_are_like_it(tmp_path: Path) -> None:
    """In a cluster, a survivor may be unlike what it stands for; held-out texts come first."""
    texts = chain()
    data = made(tmp_path, {"train/web": texts, "val/web": [texts[0], texts[-1]]})
    options: Any = {"prefer": "first", "bands": 60, "rows": 2, "overlap": 0}
    find(data, **options)
    assert {n: fate[2] for n, fate in dropped(data, "train/web").items()} == dict.fromkeys(
        range(1, LINKS), 0
    )
    assert not alike(texts[0], texts[-1])
    options["compared_with"] = "survivor"
    find(data, **options)
    assert {n: fate[2] for n, fate in dropped(data, "train/web").items()} == greedy(texts)
    find(data, **options, against=["val"])
    lost = dropped(data, "train/web")
    for number, text in enumerate(texts):
        if like := [n for n, held in enumerate((texts[0], texts[-1])) if alike(text, held)]:
            copy = "exact" if number in (0, LINKS - 1) else "near"
            assert lost[number] == (f"{copy} copy in val", "val/web", like[0])
    assert {fate[2] for fate in lost.values() if fate[1] == "val/web"} == {0, 1}


ORIGINAL = prose(1)
SENTENCES = ORIGINAL.split(". ")
COPIES = {
    "exact": ORIGINAL,
    "spaces": ORIGINAL.replace(". ", ".\n\n").replace(" of ", "  of "),
    "letters": ORIGINAL.upper().replace(".", "!"),
    "sentence": ". ".join(
        [*SENTENCES[:5], "A wholly new sentence stands here now", *SENTENCES[6:]]
    ),
    "half": ". ".join(SENTENCES[:6] + prose(2).split(". ")[:6]),
}
OTHERS = [prose(seed) for seed in range(100, 140)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies follow the original, others lie between them."""
    texts = [ORIGINAL, *OTHERS[:20], *COPIES.values(), *OTHERS[20:]]
    return made(tmp_path_factory.mktemp("planted"), {"train/web": texts})


def found(dataset: Path, **options: Any) -> dict[str, str]:
    """The reason for which each planted copy is dropped; nothing else may be."""
    find(dataset, prefer="first", **options)
    lost = dropped(dataset, "train/web")
    names = dict(enumerate(COPIES, start=21))
    assert {fate[1:] for fate in lost.values()} <= {("train/web", 0)}
    return {names[number]: fate[0] for number, fate in lost.items()}


ALL = {*COPIES}


@pytest.mark.parametrize(
    ("options", "exact", "near"),
    [
        ({"near": False, "exact": "none"}, {"exact"}, set()),
        ({"near": False}, {"exact", "spaces"}, set()),
        ({"near": False, "exact": "letters"}, {"exact", "spaces", "letters"}, set()),
        ({}, {"exact", "spaces"}, {"letters", "sentence"}),
        ({"threshold": 0.95}, {"exact", "spaces"}, {"letters"}),
        ({"threshold": 0.25, "bands": 64, "rows": 2}, {"exact", "spaces"}, ALL),
        ({"threshold": 0}, {"exact", "spaces"}, {"letters", "sentence"}),
        ({"of": "bytes", "ngram": 20}, {"exact", "spaces"}, {"sentence"}),
        ({"of": "ids", "ngram": 20}, {"exact"}, {"sentence"}),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else " ".join(sorted(given)),
)
def test_each_way_of_looking_finds_its_copies(
    dataset: Path, options: dict[str, Any], exact: set[str], near: set[str]
) -> None:
    expected = dict.fromkeys(near, "near copy") | dict.fromkeys(exact, "exact copy")
    assert found(dataset, **options) == expected


def test_texts_without_words(tmp_path: Path) -> None:
    texts = ["", "...", "", "?!", "日本語の文章です。", "日本語の文章です!", "a", "a b"]
    data = made(tmp_path, {"train/web": texts})
    find(data, exact="letters", prefer="first")
    lost = dropped(data, "train/web")
    assert {number: fate[2] for number, fate in lost.items()} == {2: 0, 5: 4}
