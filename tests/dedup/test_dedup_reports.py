"""What people read of a search: sums, examples, and passages that differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.dataset.views.kept_documents import KeptDocuments, Span
from jaxdata.dedup import DedupReport, api
from jaxdata.dedup import examples as side_by_side
from jaxdata.dedup.examples import (
    Example,
    SpanExample,
    _largest,
    brief,
    differing,
    examples_of_spans,
)
from jaxdata.dedup.leaks import leak_notes
from jaxdata.dedup.outcome import clusters_by_size
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.survivors import EXACT_COPY, NEAR_COPY, TAINTED, Dropped

PLAIN = "clusters by number of documents: none; took 1,234.5 s"


def test_a_report_says_what_there_is_to_say() -> None:
    report = DedupReport("d", "d1", {}, {}, 1234.5)
    assert report.summary() == str(report) == PLAIN
    views: Any = {"train/a": None, "train/b": None}
    more = {"compared": 1, "refused": 1_000, "chained": 1, "not_found": ("x", "y")}
    hashed = {"hashed_before": ["train/a", "train/b"], "read": "to look"}
    sizes = {"2": 1_000, "4-7": 1}
    assert DedupReport("d", "d1", views, sizes, 0, **more, **hashed).summary().split("\n") == [  # type: ignore[arg-type]
        "clusters by number of documents: 1,000 of 2, 1 of 4-7; took 0.0 s",
        "nothing of x, y was found in train/a, train/b",
        "compared 1 pair of documents by all their n-grams; 1,000 of them are less alike than the "
        "threshold",
        "near copies in clusters of three and more: 1; each is like another there, and may be less "
        "like the document that stays (--compared-with survivor compares it with that one)",
        "hashed when converted: train/a, train/b; text read only to look",
    ]


@given(st.lists(st.integers(2, 40) | st.integers(0, 20).map(lambda n: 2**n + 1)))
def test_clusters_are_counted_by_powers_of_two(sizes: list[int]) -> None:
    found = clusters_by_size(np.array(sizes, np.int64))
    classes = [(str(n), n, n) for n in (2, 3)]
    classes += [(f"{2**n}-{2 ** (n + 1) - 1}", 2**n, 2 ** (n + 1) - 1) for n in range(2, 22)]
    counts = {name: sum(low <= size <= high for size in sizes) for name, low, high in classes}
    assert [*found.items()] == [(name, count) for name, count in counts.items() if count]


def test_near_copies_that_may_be_less_alike_are_those_of_three_and_more() -> None:
    kind = np.array([NEAR_COPY, NEAR_COPY, NEAR_COPY, EXACT_COPY, TAINTED], np.uint8)
    numbers = np.arange(5, dtype=np.uint32)
    dropped = Dropped(numbers, numbers, kind, np.array([2, 3, 4, 9, 9]))
    found = {
        given: api._chained(DedupSettings(compared_with=given[0], threshold=given[1]), dropped)
        for given in [("cluster", 0.5), ("cluster", 0.0), ("survivor", 0.5)]
    }
    assert [*found.values()] == [2, 0, 0]


@pytest.mark.parametrize(
    ("tokens", "unit"),
    [(0, 2**20), (2**28 + 255, 2**20), (2**28 + 256, 2**20 + 1), (2**34, 2**26), (2**40, 2**26)],
)
def test_a_dataset_is_cut_into_256_units_neither_small_nor_large(tokens: int, unit: int) -> None:
    half = SimpleNamespace(tokens=tokens // 2)
    rest = SimpleNamespace(tokens=tokens - tokens // 2)
    manifest = SimpleNamespace(sources={"train/a": half, "train/b": rest})
    dataset: Any = SimpleNamespace(manifest=manifest)
    assert api._unit_tokens(dataset) == unit


WORDS = st.lists(st.sampled_from("abcd"), max_size=20)


@given(WORDS, WORDS)
def test_passages_are_both_texts_in_turn(one: list[str], other: list[str]) -> None:
    with mock.patch("jaxdata.dedup.examples._CONTEXT", 30):
        found = [*differing(one, other)]
    assert all(kind in ("same", "other") for kind, _, _ in found)
    assert " ".join(first for _, first, _ in found if first).split() == one
    both = [first if kind == "same" else text for kind, first, text in found]
    assert " ".join(both).split() == other
    assert all(text == "" for kind, _, text in found if kind == "same")


def test_long_passages_are_shortened() -> None:
    words = [f"w{n}" for n in range(30)]
    for count in (12, 13, 30):
        (found,) = differing(words[:count], words[:count])
        shown = words[:count] if count == 12 else [*words[:6], "…", *words[count - 6 : count]]
        assert found == ("same", " ".join(shown), "")
    assert brief(" ".join(words[:24])) == " ".join(words[:24])
    assert brief(" ".join(words[:25])) == " ".join([*words[:24], "…"])


def test_an_example_shows_words_of_either_side() -> None:
    passages = [("same", "a b", ""), ("other", "c", ""), ("other", "", "d"), ("other", "e", "f")]
    example = Example(("train/web", 3), ("val/web", 0), "near copy", 2, passages)
    head = "train/web:3 (near copy): val/web:0 stays"
    shown = ["    a b", "  - c", "  + d", "  - e", "  + f"]
    assert [*example.lines()] == [f"{head}, as it does for 1 more", *shown]
    many = Example(("train/web", 3), ("val/web", 0), "near copy", 1_001, None)
    assert [*many.lines()] == [f"{head}, as it does for 1,000 more"]
    alone = Example(("train/web", 3), ("val/web", 0), "near copy", 1, None)
    assert [*alone.lines()] == [head]


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 5))
def test_the_largest_are_shown_in_order(sizes: list[int], most: int) -> None:
    places = [7 * n for n in range(len(sizes))]
    found = _largest(np.array(places, np.int64), np.array(sizes, np.int64), most).tolist()
    first = sorted(zip((-size for size in sizes), places, strict=True))[:most]
    assert found == sorted(place for _, place in first)


@pytest.mark.parametrize("documents", [[4], [4, 9], [1, 2, 3, 4, 5]])
def test_a_span_is_shown_with_its_documents(documents: list[int]) -> None:
    span = Span(1_000, 2_000, "repeated span", None)
    times = 1_000 * (len(documents) > 1) + 1
    example = SpanExample("train/web", documents, span, "mask", times, "its text")
    first, *more, last = example.lines()
    assert first == (f"train/web:{documents[0]} (repeated span): view masks tokens 1,000 to 1,999")
    assert last == "  = its text"
    named = ", ".join(map(str, documents)) + ", …" * (len(documents) == 5)
    assert more == ([f"  1,001 times in train/web, in documents {named}"] if times > 1 else [])


def below(names: dict[str, dict[str, Any]], top: str) -> Any:
    """Documents of a view among others; parameters by name."""
    entry = SimpleNamespace(
        views={name: SimpleNamespace(parameters=made) for name, made in names.items()}
    )
    docs = mock.Mock(spec=KeptDocuments)
    docs.base = SimpleNamespace(entry=entry)
    docs.view = SimpleNamespace(name=top)
    return docs


def test_views_made_of_each_other_are_followed_once() -> None:
    """A view that was made again of one above it; one that was removed."""
    search = {"command": "dedup", "against": ["val/a"], "sides": {"val/a": ["1"], "val/b": ["2"]}}
    names = {"top": {"documents": "d1"}, "d1": search | {"documents": "d2"}}
    names |= {"d2": {"command": "select", "documents": "d1"} | {"against": ["x"], "sides": {}}}
    names |= {"lost": {"documents": "removed"}}
    held = {"val/a": SimpleNamespace(fingerprint="1"), "val/b": SimpleNamespace(fingerprint="2")}
    dataset: Any = held | {f"train/{name}": below(names, name) for name in names}
    dataset["train/plain"] = SimpleNamespace()
    for name in ("top", "d1", "d2"):
        (note,) = leak_notes(dataset, [f"train/{name}"], ["val/a"])
        assert note == f"train/{name}: copies of val/a are left out, by its view"
        (note,) = leak_notes(dataset, [f"train/{name}"], ["val/a", "val/b"])
        assert note.startswith(f"train/{name}: never compared with val/b, so copies of it may be")
    for name in ("lost", "plain"):
        (note,) = leak_notes(dataset, [f"train/{name}"], ["val/b", "val/a"])
        assert note.startswith(f"train/{name}: never compared with val/a, val/b, so copies")
    notes = leak_notes(dataset, ["train/top", "train/lost", "train/plain"], ["val/a"])
    assert [note.partition(":")[0] for note in notes] == ["train/top", "train/lost, train/plain"]


def test_spans_that_are_long_are_shown_in_part() -> None:
    """Of 400 tokens, ten to a word here or one; of documents five, the most frequent first."""
    spans = [(10, 410), (10, 411), (0, 60), (0, 61)]
    rows = [(0, 0, 5)] * 7 + [(0, 1, 5)] * 6 + [(0, 2, 5), (0, 3, 5), (-1, 0, 0)]
    which = [row[1] for row in rows]
    view = SimpleNamespace(
        firsts=lambda kind: np.array(rows) if kind == "mask" else None,
        read={"mask_reason": np.array([0] * 13 + [1, 2, 2])}.__getitem__,
        ranges=lambda _: (np.arange(len(rows)) // 2, None, None),
        span=lambda _, at: Span(*spans[which[at]], "why", None),
    )
    docs: Any = SimpleNamespace(
        name="train/web", view=view, base=SimpleNamespace(read=lambda _, a, b: range(a, b))
    )

    def shown(most: int, step: int) -> list[tuple[Any, ...]]:
        words = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens[::step])))
        found = examples_of_spans(words, docs, most)  # type: ignore[arg-type]
        return [(each.documents, each.times, each.text) for each in found]

    def text(numbers: range, more: str = "") -> str:
        return " ".join(map(str, numbers)) + more

    first = [0, 1, 2, 3], 7, text(range(10, 410, 10))
    second = [3, 4, 5, 6], 6, text(range(10, 410, 10), " …")
    third, fourth = ([6], 1, text(range(0, 60, 10))), ([7], 1, text(range(0, 61, 10)))
    assert shown(2, 10) == [first, second, third, fourth]
    assert shown(1, 10) == [first, third, fourth]
    assert [each[2] for each in shown(1, 1)] == [
        text(range(10, 70), " …"),
        text(range(60)),
        text(range(60), " …"),
    ]
    view.ranges = lambda _: (np.arange(len(rows)), None, None)
    assert shown(2, 10)[0][0] == [0, 1, 2, 3, 4], "five of seven documents"
    view.firsts = lambda _: np.array([(0, 0, 5)] * 500 + [(0, 1, 5)])
    view.read = {f"{kind}_reason": np.zeros(501, int) for kind in ("mask", "cut")}.__getitem__
    which[:] = [0] * 500 + [1]
    view.ranges = lambda _: (np.array([7] * 499 + [8, 9]), None, None)
    assert [each[:2] for each in shown(1, 10)] == [([7, 8], 500)] * 2


@given(
    st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2), st.integers(0, 2)), max_size=12),
    st.integers(0, 3),
)
def test_examples_are_of_the_largest_clusters_of_each_reason(
    rows: list[tuple[int, int, int]], most: int
) -> None:
    source, survivor, reason = np.array(rows, np.int64).reshape(-1, 3).T
    known = {"survivor_source": source, "survivor": survivor, "reason": reason}
    dropped = np.arange(len(rows)) * 3
    docs: Any = SimpleNamespace(view=SimpleNamespace(read=known.get, dropped=dropped))
    sizes = [sum(row[:2] == other[:2] for other in rows) for row in rows]
    expected = []
    for number in range(3):
        mine = [at for at, row in enumerate(rows) if row[2] == number and row[0] >= 0]
        first = sorted(mine, key=lambda at: (-sizes[at], at))[:most]
        expected += [(3 * at, sizes[at]) for at in sorted(first)]
    with mock.patch.object(side_by_side, "_example", lambda _, __, *given: given):
        assert [*side_by_side._of_source(None, docs, most)] == expected  # type: ignore[arg-type]
        known["survivor"] = None  # type: ignore[assignment]
        assert [*side_by_side._of_source(None, docs, most)] == []  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 4, 5])
def test_the_beginning_of_a_document_is_compared(step: int) -> None:
    dataset: Any = SimpleNamespace(decode=lambda tokens: " ".join(map(str, tokens[::step])))
    docs: Any = [{"tokens": range(9_000)}]
    expected = [str(token) for token in range(0, 8_000, step)][:2_000]
    assert side_by_side._words(dataset, docs, 0) == expected
