"""The columns of views, and what is said of them: fates and accounts; what cannot be is damage."""

from __future__ import annotations

import hashlib
import json
import pickle
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError
from jaxdata.base.seeds import derive
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.manifest import Amount, Generation, SourceEntry, ViewAccount, ViewEntry
from jaxdata.dataset.views import kept_documents as views
from jaxdata.dataset.views.kept_documents import (
    CONTENT,
    Fate,
    KeptDocuments,
    Span,
    ViewIndex,
    checksum,
)
from jaxdata.dataset.views.selecting import copies_of
from jaxdata.dataset.views.source_view import account_lines, described_fate, fate_lines, stays
from tests.storage.memory_store import MemoryStore


class Ranges(NamedTuple):
    """Ranges of a kind: of which document, from and to which token, why, and where they stay."""

    rows: list[tuple[int, int, int, int]]
    firsts: list[tuple[int, int, int]] | None = None


def view_of(total: int, starts: list[int] | None = None, **columns: Any) -> ViewIndex:
    """A view of so many documents with these columns, ranges among them."""
    store: Any = MemoryStore()
    number = np.uint32
    kinds = {"document": number, "length": np.uint32, "dropped": number, "reason": np.uint8}
    kinds |= {"survivor_source": np.int32, "survivor": np.int64, "start": np.uint32}
    given = {"document": [], "length": [], "dropped": [], "reason": []} | columns
    if starts is not None:
        given["start"] = starts
    for kind in ("mask", "cut"):
        if (ranges := given.pop(kind, None)) is not None:
            names = [f"{kind}_{each}" for each in ("document", "start", "stop", "reason")]
            given |= dict(zip(names, map(list, zip(*ranges.rows, strict=True)), strict=True))
            kinds |= dict(zip(names, [number, np.uint32, np.uint32, np.uint8], strict=True))
            if ranges.firsts is not None:
                given[f"{kind}_first"] = [each for first in ranges.firsts for each in first]
                kinds[f"{kind}_first"] = np.int64
    arrays = {name: np.array(values, kinds[name]) for name, values in given.items()}
    store.arrays = {f"train/web/views/d1/f/{name}": array for name, array in arrays.items()}
    one = Amount(documents=1, tokens=2)
    entry = ViewEntry(
        generation="g", documents=len(given["document"]), tokens=sum(given["length"]),
        fingerprint="v", folder="f", reasons=["near", "where"], survivors=["train/a", "b.jsonl"],
        checksums={name: checksum(array) for name, array in arrays.items()}, parameters={},
        account=ViewAccount(source=one, kept=one, listed=one, dropped={}),
    )  # fmt: skip
    return ViewIndex(store, "train/web", "d1", entry, total)


def test_a_view_says_why_and_where_instead() -> None:
    firsts = [(-1, 0, 0), (1, 2, -1), (0, 3, 4)]
    view = view_of(
        9, document=[1, 4], length=[3, 3], dropped=[0, 2, 8], reason=[1, 0, 1],
        survivor_source=[-1, 1, 0], survivor=[-1, 7, 0],
        mask=Ranges([(1, 0, 2, 0), (4, 1, 3, 1), (4, 5, 6, 0)], firsts),
        cut=Ranges([(4, 7, 9, 1)]),
    )  # fmt: skip
    fates = {number: view.fate(number) for number in range(10)}
    assert {number: fate for number, fate in fates.items() if fate} == {
        0: Fate("where", None), 2: Fate("near", ("b.jsonl", 7)), 8: Fate("where", ("train/a", 0)),
    }  # fmt: skip
    spans = {
        1: [Span(0, 2, "near", None)],
        4: [Span(1, 3, "where", ("b.jsonl", 2, -1)), Span(5, 6, "near", ("train/a", 3, 4))],
    }
    assert [view.ranges_of(number) for number in range(9)] == [spans.get(n, []) for n in range(9)]
    assert view.ranges_of(4, "cut") == [Span(7, 9, "where", None)]
    assert (view.masks, view.cuts) == (True, False)
    store: Any = view.store
    for name, (kind, size) in view.columns.items():
        array = store.arrays[view.file(name)]
        assert array.dtype == kind
        assert size == (len(array) if name in ("document", "length") else None)
    again = pickle.loads(pickle.dumps(view))
    assert [*map(again.fate, range(10))] == [*fates.values()]
    plain = view_of(9, dropped=[3], reason=[0])
    assert (plain.fate(3), plain.ranges_of(1), plain.masks) == (Fate("near", None), [], False)
    assert plain.read("survivor") is None


@pytest.mark.parametrize(
    ("columns", "ask", "what"),
    [
        ({"dropped": [1], "reason": [2]}, lambda v: v.fate(1), "name no reason, or no source"),
        ({"dropped": [1], "reason": []}, lambda v: v.fate(1), "name no reason, or no source"),
        ({"dropped": [1], "reason": [1], "survivor_source": [2], "survivor": [0]},
         lambda v: v.fate(1), "name no reason, or no source"),
        ({"dropped": [1], "reason": [1], "survivor_source": [0], "survivor": []},
         lambda v: v.fate(1), "name no reason, or no source"),
        ({"mask": Ranges([(1, 0, 1, 2)])},
         lambda v: v.ranges_of(1), "name no reason, or no source"),
        ({"cut": Ranges([(1, 0, 1, 1)], [(2, 0, 0)])}, lambda v: v.ranges_of(1, "cut"),
         "name no reason, or no source"),
        ({"mask": Ranges([(1, 0, 1, 1)], [(0, 0, 0)] * 2)}, lambda v: v.ranges_of(1),
         "its ranges are not complete"),
        ({"document": [1, 9], "length": [1, 1]}, lambda v: v.placed(*np.array([[1], [0]])),
         "it lists documents that the source does not have"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_damage(columns: Any, ask: Any, what: str) -> None:
    with pytest.raises(DatasetError, match=f"view 'd1' of train/web is damaged: .*{what}; jaxdata"):
        ask(view_of(9, **columns))


@pytest.mark.parametrize("column", [*CONTENT, "start"])
def test_a_view_names_the_column_that_is_not_what_was_written(column: str) -> None:
    masked = Ranges([(1, 0, 2, 0), (4, 1, 3, 1)])
    view = view_of(9, [0, 1], document=[1, 4], length=[3, 3], mask=masked)
    view.check(np.full(9, 5, np.uint32))
    view.store.arrays[view.file(column)][-1] += 1  # type: ignore[attr-defined]
    with pytest.raises(DatasetError, match=f"its column {column} is not what was written"):
        pickle.loads(pickle.dumps(view)).check(np.full(9, 5, np.uint32))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4)), max_size=7),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 0, 1, -1]),
)
def test_a_list_fits_where_each_document_does(
    listed: list[tuple[int, int, int]], in_order: bool, cuts: bool, wrong: int
) -> None:
    lengths = [3, 4, 5, 4, 3, 9]  # a document of number 5 is none of the source's
    listed = sorted(listed) if in_order else listed
    if not cuts:
        listed = [(n, 0, lengths[n] if size > 1 else size) for n, _, size in listed]
    documents, starts, sizes = ([each[k] for each in listed] for k in range(3))
    view = view_of(5, starts if cuts else None, document=documents, length=sizes)
    tokens = max(sum(sizes) + wrong, 0)
    view = replace(view, entry=view.entry.model_copy(update={"tokens": tokens}))
    sound = all(
        n < 5 and (a + size <= lengths[n] if cuts else size == lengths[n]) for n, a, size in listed
    )
    right = sound and documents == sorted(documents) and tokens == sum(sizes)
    for at_once in (2, 3, 100):
        with mock.patch.object(views, "_AT_ONCE", at_once), ExitStack() as refused:
            if not right:
                refused.enter_context(pytest.raises(DatasetError, match="is damaged: its "))
            view.check(np.array(lengths, np.uint32))
    if 5 not in documents:
        numbers = np.arange(len(listed))
        placed = [each.tolist() for each in view.placed(numbers, numbers + 1)]
        first = starts if cuts else [0] * len(listed)
        assert placed == [documents, [n + 1 + at for n, at in enumerate(first)]]


def test_a_view_is_named_by_the_content_of_what_it_reads() -> None:
    sums = {name: name for name in views.CONTENT}
    one = views.view_fingerprint("g", sums)
    content = json.dumps(["g", dict(sorted(sums.items()))], sort_keys=True).encode()
    assert one == hashlib.sha256(content).hexdigest()
    assert views.view_fingerprint("g", sums | {"reason": "r", "dropped": "d"}) == one
    others = [views.view_fingerprint("g", sums | {name: "x"}) for name in (*views.CONTENT, "start")]
    assert len({one, views.view_fingerprint("h", sums), *others}) == 8
    assert [views.number_type(n) for n in (2**32 - 1, 2**32)] == [np.uint32, np.uint64]
    little, big = (np.arange(300, dtype=kind)[::3] for kind in ("<u4", ">u4"))
    assert {views.checksum(each) for each in (little, big)} == {
        hashlib.sha256(little.tobytes()).hexdigest()
    }


def test_views_of_a_dataset_have_the_documents_of_their_generations() -> None:
    facts: dict[str, Any] = {"tokens": 0, "checksums": {}, "parameters": {}, "statistics": {}}
    before = Generation(documents=2, shards=0, inputs=0, fingerprint="was", index="old", **facts)
    made = {"now": "f", "was": "was", "gone": "x"}.items()
    kept = {name: view_of(3).entry.model_copy(update={"generation": of}) for name, of in made}
    own: dict[str, Any] = {"documents": 3, "shards": [], "inputs": [], "fingerprint": "f"}
    entry = SourceEntry(**own, **facts, generations=[before], views=kept)
    manifest: Any = SimpleNamespace(sources={"train/web": entry})
    found = views.views_of(MemoryStore(), manifest)  # type: ignore[arg-type]
    told = [(each.name, each.source, each.total) for each in found]
    assert told == [("now", "train/web", 3), ("was", "train/web", 2), ("gone", "train/web", 3)]


def test_an_account_is_said_in_lines() -> None:
    kept = Amount(documents=1_000, tokens=3_000)
    account = ViewAccount(
        source=Amount(documents=2_000, tokens=9_000), kept=kept, listed=kept, dropped={}
    )
    first = "kept 1,000 of 2,000 documents, 3,000 of 9,000 tokens (33.33 %)"
    assert [*account_lines(account)] == [first]
    more = {
        "listed": Amount(documents=1_001, tokens=3_001),
        "dropped": {"near": Amount(documents=1_000, tokens=6_000)},
        "masked": {"where": Amount(ranges=2_000, tokens=4_000)},
        "cut": {"near": Amount(ranges=1, tokens=2)},
    }
    assert [*account_lines(account.model_copy(update=more))] == [
        first,
        "listed as 1,001 documents with 3,001 tokens an epoch",
        "dropped 1,000 documents, 6,000 tokens: near",
        "masked 4,000 tokens in 2,000 ranges: where",
        "cut out 2 tokens in 1 ranges: near",
    ]
    nothing = account.model_copy(update={"source": Amount(tokens=0), "kept": Amount(tokens=0)})
    assert next(account_lines(nothing)) == "kept 0 of 0 documents, 0 of 0 tokens (0.00 %)"


def test_the_fate_of_a_document_is_told() -> None:
    view = view_of(
        6, [0, 0, 2, 4, 1], document=[0, 1, 1, 1, 4], length=[2, 1, 2, 1, 3],
        dropped=[2, 3], reason=[0, 1], survivor_source=[1, -1], survivor=[7, -1],
        mask=Ranges([(1, 1, 2, 1)]), cut=Ranges([(1, 2, 3, 0)], [(0, 5, 1_000)]),
    )  # fmt: skip
    docs = KeptDocuments(ArrayDocuments([]), view)
    plain = {"name": "d1", "copies": 1, "reason": None, "survivor": None, "masked": []}
    of = {number: described_fate(docs, number)["view"] for number in range(6)}
    assert of[0] == plain
    assert of[1] == plain | {
        "masked": [{"start": 1, "stop": 2, "reason": "where"}],
        "cut": [{"start": 2, "stop": 3, "reason": "near", "first": ("train/a", 5, 1_000)}],
        "pieces": 3,
    }
    assert of[2] == plain | {"copies": 0, "reason": "near", "survivor": ("b.jsonl", 7)}
    assert of[3] == plain | {"copies": 0, "reason": "where"}
    assert of[5] == plain | {"copies": 0}
    assert described_fate(SimpleNamespace(), 0) == {}  # type: ignore[arg-type]
    assert [[*fate_lines(of[number])] for number in range(6)] == [
        [],
        [
            "view d1 masks tokens 1 to 1: where",
            "view d1 cuts out tokens 2 to 2: near; train/a:5 has them from token 1,000 on",
            "view d1 makes 3 documents of what is left",
        ],
        ["not trained with view d1: near; b.jsonl:7 survives"],
        ["not trained with view d1: where"],
        [],
        ["not trained with view d1: not listed"],
    ]
    assert [*fate_lines(plain | {"copies": 2_000})] == ["view d1 lists it 2,000 times"]
    assert [stays(each) for each in (None, ("a", 1, 0), ("a", 1, -1))] == [
        "", "; a:1 has them from token 0 on", "; a:1 has them",
    ]  # fmt: skip
    again = view_of(6, [0, 0, 3, 3], document=[1] * 4, length=[2] * 4, cut=Ranges([(1, 2, 3, 0)]))
    docs = KeptDocuments(docs.base, again)
    assert described_fate(docs, 1)["view"]["copies"] == 2, "of its first piece"


def chance(document: int, seed: int, source: str) -> float:
    """splitmix64 of the document, with numbers of any size."""
    mixed = (document + 1) * 0x9E3779B97F4A7C15 + derive(seed, "weight", source)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed %= 2**64
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed % 2**64 >> 11) / 2**53


@given(st.integers(0, 2**40), st.integers(0, 9), st.sampled_from(["a", "train/web"]))
def test_copies_are_the_whole_part_and_one_by_the_chance_of_splitmix(
    document: int, seed: int, source: str
) -> None:
    drawn, other = (chance(number, seed, source) for number in (document, document + 1))
    weights = [drawn, np.nextafter(drawn, 1), 2.5, 3]
    times = [0, 1, 2 + (drawn < 0.5), 3]
    numbers = np.array([document] * 4 + [document + 1])
    found = copies_of(np.array([*weights, 0.5]), numbers, seed=seed, source=source)
    assert found.tolist() == [*times, int(other < 0.5)]
