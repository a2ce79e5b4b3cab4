"""Clusters are the components that brute force finds; who stays of each is decided one by one.

The view is the same whoever makes it: more workers, smaller units, less memory, kills.
"""

import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.hashing import RULES, Bands, byte_pieces, id_pieces, ngrams, word_pieces
from jaxdata.base.ragged import even_cuts
from jaxdata.dataset.verify import verify
from jaxdata.dedup.job import PARTS, encode_run, even_fences, read_part
from jaxdata.dedup.members import MOST, Member, Members
from jaxdata.dedup.minhash import Components, documents_of, near_pairs
from jaxdata.storage import open_store
from tests.converter.here import records, tree, write_lines
from tests.dedup.planted import QUESTION, changed, dropped, find, made, prose

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


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=60))
def test_documents_of_a_band_are_paired_with_the_next_sixteen_by_length(given: Any) -> None:
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
def test_units_begin_after_the_thing_in_which_a_height_is_met(sizes: list[int], most: int) -> None:
    expected, first, reached = [], 0, 0
    for at in range(len(sizes)):
        height = min(sum(sizes[: at + 1]), sum(sizes) - 1) // most  # that of the end is none
        if height > reached or at == len(sizes) - 1:
            expected.append((first, at + 1, sum(sizes[first : at + 1])))
            first = at + 1
        reached = max(height, reached)
    assert [*even_cuts(np.array(sizes, np.int64), most)] == expected


PIECES = {
    "words": word_pieces,
    "bytes": byte_pieces,
    "ids": lambda texts: id_pieces([np.frombuffer(text.encode(), np.uint8) for text in texts]),
}


SEARCHES: list[Any] = [
    *[("first", "words", "whitespace", 5), ("longest", "words", "letters", 5)],
    *[("first", "bytes", "none", 20), ("longest", "ids", "none", 20)],
]


@pytest.mark.parametrize(("prefer", "of", "exact", "ngram"), SEARCHES)
def test_clusters_and_who_stays_are_those_of_brute_force(
    tmp_path: Path, prefer: str, of: str, exact: Any, ngram: int
) -> None:
    """All pairs that share a band are compared, and decisions made one by one.

    Texts with words of a benchmark are looked for where n-grams are of words.
    """
    chance = random.Random(0)
    words = [chance.choice([0, 0, 0, 1, 3, 8]) for _ in range(90)]
    texts = [changed(prose(chance.randrange(24)), count, chance) for count in words]
    texts[1::8] = [text.upper().replace(" ", "  ") for text in texts[1::8]]
    tainted = {number for number in range(len(texts)) if number % 9 == 3 and of == "words"}
    texts = [text + f" {QUESTION}" * (n in tainted) for n, text in enumerate(texts)]
    names, ends = ["train/wiki", "train/web", "val/web"], [44, 85, 90]
    sizes = zip(names, [0, *ends], ends, strict=False)
    data = made(tmp_path, {name: texts[first:stop] for name, first, stop in sizes})
    report = find(
        data,
        **{"prefer": prefer, "threshold": 0.7, "memory": 6_000, "of": of, "exact": exact},
        **{"ngram": ngram, "overlap": 13 * (of == "words")},
        sources=["wiki", "web"],
        against=["val", str(write_lines(tmp_path / "b.jsonl", records("Short", QUESTION)))],
    )
    grams = ngrams(PIECES[of](texts), ngram)
    bands = Bands(14, 8).of_all(grams).T
    sets = [{*own.tolist()} for own in np.split(grams.values, np.cumsum(grams.counts)[:-1])]
    same = [*map(RULES[exact], texts)]
    edges = [
        (a, b)
        for a, b in combinations(range(len(texts)), 2)
        if a < ends[1] and (bands[a] == bands[b]).any()
        if len(sets[a] & sets[b]) >= 0.7 * len(sets[a] | sets[b])
    ]
    labels = components(len(texts), edges)

    def owner(number: int) -> int:
        return sum(number >= end for end in ends)

    def preference(number: int) -> tuple[Any, ...]:
        rank = -len(texts[number].encode()) if prefer == "longest" else 0
        held = owner(number) == 2
        return not held, not held and number in tainted, owner(number), rank, number

    expected: list[dict[int, tuple[Any, ...]]] = [{}, {}]
    for number in range(ends[1]):
        group = [other for other, label in enumerate(labels) if label == labels[number]]
        stays, first = min(group, key=preference), [0, *ends][owner(number)]
        if number in tainted and owner(stays) < 2:
            fate: tuple[Any, ...] = ("13 words in a row in a benchmark", "b.jsonl", 2)
        elif stays != number:
            kind = "exact" if same[stays] == same[number] else "near"
            where = f"{kind} copy" + " in val" * (owner(stays) == 2)
            fate = (where, names[owner(stays)], stays - [0, *ends][owner(stays)])
        else:
            continue
        expected[owner(number)][number - first] = fate
    assert [dropped(data, name) for name in report.views] == expected
    assert len({fate[0] for lost in expected for fate in lost.values()}) == 4 + bool(tainted)


def test_more_documents_than_numbers_are_refused() -> None:
    assert Members([Member("a", MOST - 1, ""), Member("b", 1, "")]).total == 2**32 - 1
    with pytest.raises(InputError, match=r"^4,294,967,296 documents are more than 4,294,967,295"):
        Members([Member("a", MOST, ""), Member("b", 1, "")])


KEYS = st.lists(st.integers(0, 600), max_size=12)


@settings(max_examples=60)
@given(st.lists(KEYS, min_size=1, max_size=3), st.integers(600, 2**64 - 1), st.data())
def test_a_part_of_runs_has_the_records_between_two_fences(runs: Any, end: int, data: Any) -> None:
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
    keys, places, small = read_part(store, layouts, first, stop)
    high = 601 if stop == PARTS else limits[stop]
    low = 601 if first == PARTS else limits[first]
    expected = (sorted((key, place) for place, key in enumerate(keys)) for keys in runs)
    flat = [one for each in expected for one in each if low <= one[0] < high]
    assert [*zip(keys.tolist(), places.tolist(), strict=True)] == flat
    assert small.tolist() == [place for _, place in flat]


CHOSEN: dict[str, Any] = {"repeats": 200, "repeats_action": "cut", "overlap_action": "cut"}
SMALL: dict[str, Any] = {"unit_tokens": 8_000, "memory": 12_000}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies, also of validation, and texts with words of the benchmark `bench.jsonl`."""
    folder = tmp_path_factory.mktemp("engines")
    words = [" ".join(prose(seed, 6).split()[30:50]) for seed in (3, 44)]
    write_lines(folder / "bench.jsonl", records(*words))
    sources = {
        "train/web": [changed(prose(n % 40, 6), n % 3, random.Random(n)) for n in range(100)],
        "train/wiki": [prose(seed, 6) for seed in range(30, 50)],
        "val/web": [prose(seed, 6) for seed in (1, 35)],
    }
    return made(folder, sources)


@pytest.fixture(scope="module")
def against(dataset: Path) -> list[str]:
    return ["val", str(dataset.parent / "bench.jsonl")]


@pytest.fixture(scope="module")
def expected(dataset: Path, against: list[str]) -> dict[str, str]:
    """What a search that nobody disturbs writes."""
    data = shutil.copytree(dataset, dataset.parent / "expected")
    cut = find(data, against=against, **CHOSEN, unit_tokens=10**9).views["train/web"].account.cut
    assert {*cut} == {"13 words in a row", "repeated span"}
    return tree(data)


def test_units_and_memory_change_nothing(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data = shutil.copytree(dataset, tmp_path / "d")
    find(data, against=against, **CHOSEN, **SMALL)
    assert tree(data) == expected
    assert verify(data).whole


def receipts(data: Path) -> int:
    return len(list(data.glob("dedup-d1/work/*.receipt")))


@pytest.mark.exhaustive
def test_searches_that_are_killed_with_their_workers_end_as_one_that_was_not(
    dataset: Path, against: list[str], tmp_path: Path, expected: dict[str, str]
) -> None:
    data, chance, kills = shutil.copytree(dataset, tmp_path / "d"), random.Random(0), 0
    given = {"against": against, "workers": 2} | CHOSEN | SMALL
    call = f"import jaxdata; jaxdata.deduplicate({str(data)!r}, 'd1', **{given!r})"
    while kills < 6:
        wanted = receipts(data) + chance.randrange(4)
        process = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL)
        while receipts(data) < wanted and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        if process.wait() == 0:
            assert tree(data) == expected
            shutil.rmtree(data)
            shutil.copytree(dataset, data)
        kills += process.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", call], check=True, capture_output=True)
    assert tree(data) == expected


def test_a_search_resumes_by_its_settings_and_receipts(dataset: Path, tmp_path: Path) -> None:
    data = shutil.copytree(dataset, tmp_path / "d")
    with pytest.MonkeyPatch.context() as patch:
        stop = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr("jaxdata.dedup.minhash._connect_near", stop)
        with pytest.raises(KeyboardInterrupt):
            find(data)
    assert receipts(data)
    assert verify(data).unfinished == ()  # it is no conversion
    says = r"unfinished search for duplicates with .*ngram was 5, is 6.*start over"
    with pytest.raises(InputError, match=says):
        find(data, ngram=6)
    receipt = next(data.glob("dedup-d1/work/exact-*.receipt"))
    receipt.write_bytes(receipt.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"exact-.*receipt is damaged.*delete it and run"):
        find(data)
    receipt.unlink()
    find(data)
    assert not (data / "dedup-d1").exists()
