"""What is written of a view, and said of it: columns, accounts, fates and copies, one at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError
from jaxdata.base.seeds import derive
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.manifest import Amount, ViewAccount
from jaxdata.dataset.records import RecordSpec
from jaxdata.dataset.views import writing
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.selecting import copies_of
from jaxdata.dataset.views.source_view import (
    SourceView,
    account_lines,
    account_of,
    described_fate,
    fate_lines,
    settled,
    stays,
)
from tests.dataset.test_indexes import Case, Ranges, view_of, written
from tests.dataset.views.test_source_views import (
    LENGTHS,
    Plan,
    left_by_definition,
    merged_by_definition,
    plans,
    told,
)


def columns_of(plan: Plan) -> tuple[dict[str, Any], SourceView]:
    """The columns that are written of a view of documents of `LENGTHS`."""
    lengths = written(Case(LENGTHS, [5], RecordSpec("uint16"))).lengths
    view = settled(plan.view, lengths)
    return writing._columns(lengths, view), view


@given(plans())
def test_columns_and_account_are_counted_token_by_token(plan: Plan) -> None:
    found, view = columns_of(plan)
    lists = {name: column.tolist() for name, column in found.items()}
    cut = merged_by_definition(plan.cut, [n for n in range(5) if n not in plan.dropped], 2)
    gone = [each for each in cut if (each.start, each.stop) == (0, LENGTHS[each.document])]
    lost = plan.dropped | {n: (plan.reasons[why], None, -1) for n, _, _, why, _ in gone}
    assert told(view) == lost, "a document of which nothing is left is dropped"
    kept, times = [n for n in range(5) if n not in lost], plan.copies or [1] * 5
    cut = [each for each in cut if each not in gone]
    rows = [run for n in kept for run in left_by_definition(n, cut) for _ in range(times[n])]
    assert lists["document"] == [n for n, _, _ in rows]
    assert lists["length"] == [b - a for _, a, b in rows]
    assert lists.get("start", [0] * len(rows)) == [a for _, a, _ in rows]
    assert ("start" in lists) is bool(cut)
    masked = [
        each._replace(start=max(each.start, a), stop=min(each.stop, b))
        for each in merged_by_definition(plan.masked, [n for n in kept if times[n]], 1)
        for _, a, b in left_by_definition(each.document, cut)
        if max(each.start, a) < min(each.stop, b)
    ]
    for kind, ranges in (("mask", masked), ("cut", cut)):
        names = [f"{kind}_{each}" for each in ("document", "start", "stop", "reason")]
        got = [*zip(*(lists.get(name, []) for name in names), strict=True)]
        expected = [(*each[:3], plan.reasons[each.reason]) for each in ranges]
        assert [(*each[:3], view.reasons[each[3]]) for each in got] == expected
        firsts = lists.get(f"{kind}_first", [])
        assert bool(firsts) is any(each.first[0] >= 0 for each in ranges)
        if firsts:
            assert firsts == [at for each in ranges for at in each.first]
    assert lists["dropped"] == sorted(lost)
    account = account_of(np.array(LENGTHS, np.uint32), view, found, masked=False)
    hidden = {(each.document, at) for each in masked for at in range(each.start, each.stop)}
    trained = [(n, at) for n, a, b in rows for at in range(a + 1, b) if (n, at) not in hidden]
    assert account.loss_tokens == len(trained)
    masked_too = account_of(np.array(LENGTHS, np.uint32), view, found, masked=True)
    assert masked_too == account.model_copy(update={"loss_tokens": None})
    assert account.source == Amount(documents=5, tokens=sum(LENGTHS))
    assert account.listed == Amount(documents=len(rows), tokens=sum(lists["length"]))
    left = sum(b - a for n in kept for _, a, b in left_by_definition(n, cut))
    assert account.kept == Amount(documents=len(kept), tokens=left)
    assert account.dropped == {
        reason: Amount(documents=len(of_it), tokens=sum(LENGTHS[n] for n in of_it))
        for reason in view.reasons
        if (of_it := [n for n, (why, _, _) in lost.items() if why == reason])
    }
    for amounts, ranges in ((account.masked, masked), (account.cut, cut)):
        sizes = [(plan.reasons[each.reason], each.stop - each.start) for each in ranges]
        assert amounts == {
            reason: Amount(ranges=len(mine), tokens=sum(mine))
            for reason in {reason for reason, _ in sizes}
            if (mine := [size for why, size in sizes if why == reason])
        }


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
    one = Amount(documents=1, tokens=1)
    least = next(account_lines(account.model_copy(update={"source": one, "kept": one})))
    assert least == "kept 1 of 1 documents, 1 of 1 tokens (100.00 %)"


def test_survivors_are_written_of_the_first_source_too() -> None:
    dropped = np.array([1, 3])
    view = SourceView(
        documents=len(LENGTHS), dropped=dropped, reasons=["near"], survivors=["train/a"],
        survivor_source=np.array([0, -1], np.int32), survivor=np.array([4, -1]),
    )  # fmt: skip
    found, _ = columns_of(SimpleNamespace(view=view))  # type: ignore[arg-type]
    assert (found["survivor_source"].tolist(), found["survivor"].tolist()) == ([0, -1], [4, -1])


def test_a_source_that_changed_while_its_view_was_made_is_refused() -> None:
    entry = SimpleNamespace(fingerprint="now", documents=1_200)
    manifest: Any = SimpleNamespace(sources={"train/web": entry})
    for documents, made_of in ((1_200, "now"), (1_200, None)):
        view = SourceView(documents=documents)
        writing._check(manifest, "train/web", view, made_of, "u")
    for documents, made_of in ((1_200, "then"), (1_100, None), (1_100, "now")):
        view = SourceView(documents=documents)
        with pytest.raises(DatasetError) as caught:
            writing._check(manifest, "train/web", view, made_of, "u")
        assert str(caught.value) == (
            "u: train/web was changed while a view of it was made: it has 1,200 documents now, "
            f"and had {documents:,}; run the same command again"
        )
    with pytest.raises(DatasetError, match=r"u has no source 'train/a', so there can be no view"):
        writing._check(manifest, "train/a", view, None, "u")


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
    assert [*fate_lines(plain | {"pieces": 2})] == ["view d1 makes 2 documents of what is left"]
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
