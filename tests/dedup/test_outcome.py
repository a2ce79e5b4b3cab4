"""Who survives of a cluster and who leaves it, against decisions made one by one."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cmp_to_key
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.dedup.benchmarks import Overlaps
from jaxdata.dedup.members import MOST, Member, Members
from jaxdata.dedup.minhash import Clusters
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
from tests.dedup.planted import dropped, find, made, ngram_set, prose


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


def documents_of(case: Case) -> list[int]:
    """Those in a cluster with others, and those with n-grams of benchmarks."""
    groups = case.together().values()
    return sorted({one for group in groups if len(group) > 1 for one in group} | {*case.tainted})


def chosen(case: Case) -> list[tuple[int, int, int, int]]:
    """Each document that is dropped: what stays instead, why, and how many are alike."""
    found = []
    for group in case.together().values():
        taken = [one for one in group if one in documents_of(case)]

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
    documents = np.array(documents_of(case), np.uint32)
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

    def before(one: Any, other: Any) -> bool:
        kinds = [isinstance(each, int | float) for each in (one, other)]
        if kinds[0] != kinds[1]:
            return kinds[0] != largest
        if not kinds[0]:
            one, other = str(one), str(other)
        return bool(one > other if largest else one < other)

    different: list[Any] = []
    for value in filter(known, values):
        if not any(not before(value, one) and not before(one, value) for one in different):
            different.append(value)
    expected = [
        sum(before(one, value) for one in different) if known(value) else len(different)
        for value in values
    ]
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
    a, b = ngram_set(one), ngram_set(other)
    return len(a & b) >= 0.8 * len(a | b)


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
