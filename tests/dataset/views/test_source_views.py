"""What views make of a source, as arithmetic over small lists, against sets of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.dataset.manifest import Amount
from jaxdata.dataset.views import writing
from jaxdata.dataset.views.source_view import (
    NO_RANGES,
    SourceView,
    TokenRanges,
    account_of,
    of_both_sides,
    settled,
    stacked,
)

LENGTHS = [5, 1, 9, 4, 12]


class Range(NamedTuple):
    document: int
    start: int
    stop: int
    reason: int
    first: tuple[int, int, int]


def of(ranges: list[Range]) -> TokenRanges:
    if not ranges:
        return NO_RANGES
    columns = [np.array(column) for column in zip(*ranges, strict=True)]
    return TokenRanges(*columns)


def listed(ranges: TokenRanges) -> list[Range]:
    columns = [column.tolist() for column in ranges[:4]]
    firsts = [tuple(each) for each in ranges.first.tolist()]
    return [Range(*each, first) for *each, first in zip(*columns, firsts, strict=True)]  # type: ignore[misc]


_ranges = st.tuples(
    st.integers(0, 4), st.integers(0, 13), st.integers(1, 6), st.integers(0, 1), st.integers(-1, 1)
)


def any_ranges() -> st.SearchStrategy[list[Range]]:
    return st.lists(_ranges, max_size=6).map(
        lambda rows: [
            Range(document, start, start + size, reason, (survivor, number, start))
            for number, (document, start, size, reason, survivor) in enumerate(rows)
        ]
    )


def merged_by_definition(ranges: list[Range], kept: list[int], least: int) -> list[Range]:
    """Token by token: runs of those in a range, and what is too short between or beside them."""
    found = []
    for document in kept:
        length = LENGTHS[document]
        own = sorted(
            (each for each in ranges if each.document == document and each.start < length),
            key=lambda each: each.start,
        )
        inside = [any(a.start <= at < a.stop for a in own) for at in range(length)]
        if not any(inside):
            continue
        at = 0
        while at < length:  # runs that are left, of fewer than `least`
            stop = at
            while stop < length and not inside[stop]:
                stop += 1
            if stop - at < least:
                inside[at:stop] = [True] * (stop - at)
            at = stop + 1
        at = 0
        while at < length:
            stop = at
            while stop < length and inside[stop]:
                stop += 1
            if stop > at:
                head = next(each for each in own if at <= each.start < stop)
                found.append(head._replace(start=at, stop=stop))
            at = stop + 1
    return found


def left_by_definition(document: int, cut: list[Range]) -> list[tuple[int, int, int]]:
    """Runs of tokens of a document that no range has."""
    inside = {
        at for each in cut if each.document == document for at in range(each.start, each.stop)
    }
    found, begin = [], None
    for at in range(LENGTHS[document] + 1):
        out = at < LENGTHS[document] and at not in inside
        if out and begin is None:
            begin = at
        if not out and begin is not None:
            found.append((document, begin, at))
            begin = None
    return found


class Plan(NamedTuple):
    """A view in plain lists."""

    dropped: dict[int, tuple[str, str | None, int]]
    """document -> why, and the source and number of the survivor"""
    copies: list[int] | None
    masked: list[Range]
    cut: list[Range]
    reasons: list[str]
    survivors: list[str]

    @property
    def view(self) -> SourceView:
        numbers = sorted(self.dropped)
        rows = [self.dropped[number] for number in numbers]
        names: list[Any] = [*self.survivors, None]
        sources = [names.index(name) if name else -1 for _, name, _ in rows]
        return SourceView(
            documents=5,
            dropped=np.array(numbers, np.int64),
            reason=np.array([self.reasons.index(why) for why, _, _ in rows], np.uint8),
            reasons=self.reasons,
            survivor_source=np.array(sources, np.int32),
            survivor=np.array([number for _, _, number in rows], np.int64),
            survivors=self.survivors,
            copies=None if self.copies is None else np.array(self.copies),
            masked=of(self.masked),
            cut=of(self.cut),
        )

    def named(self, ranges: list[Range]) -> list[Any]:
        return [named(each, self.reasons, self.survivors) for each in ranges]


def named(each: Range, reasons: Any, survivors: Any) -> tuple[Any, ...]:
    source = survivors[each.first[0]] if each.first[0] >= 0 else None
    return (*each[:3], reasons[each.reason], source, *each.first[1:])


def told(view: SourceView) -> dict[int, tuple[str, str | None, int]]:
    """What a view drops, by names."""
    columns = (view.dropped, view.reason, view.survivor_source, view.survivor)
    return {
        number: (view.reasons[why], view.survivors[source] if source >= 0 else None, survivor)
        for number, why, source, survivor in zip(*(c.tolist() for c in columns), strict=True)
    }


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    reasons = draw(st.permutations(["near", "where", "weight"]))[: draw(st.integers(2, 3))]
    survivors = draw(st.permutations(["train/a", "b.jsonl", "train/c"]))[:2]
    dropped = {}
    for number in draw(st.sets(st.integers(0, 4))):
        survivor = draw(st.none() | st.sampled_from(survivors))
        dropped[number] = (draw(st.sampled_from(reasons)), survivor, number + 7 if survivor else -1)
    copies = [draw(st.integers(int(n not in dropped), 3)) for n in range(5)]
    masked, cut = draw(any_ranges()), draw(any_ranges())
    return Plan(dropped, draw(st.sampled_from([None, copies])), masked, cut, reasons, survivors)


@given(plans())
def test_a_view_lists_the_documents_that_it_does_not_drop(plan: Plan) -> None:
    view, times = plan.view, plan.copies or [1] * 5
    expected = [n for n in range(5) if n not in plan.dropped for _ in range(times[n])]
    assert view.listed().tolist() == expected
    assert told(view) == plan.dropped
    plain = SourceView(documents=5, dropped=np.array([1, 3]), reasons=["near"])
    assert told(plain) == {1: ("near", None, -1), 3: ("near", None, -1)}


@given(plans())
def test_columns_and_account_are_counted_token_by_token(plan: Plan) -> None:
    lengths = np.array(LENGTHS, np.uint32)
    view = settled(plan.view, lengths)
    found = writing._columns(lengths, view)
    lists = {name: column.tolist() for name, column in found.items()}
    cut = merged_by_definition(plan.cut, [n for n in range(5) if n not in plan.dropped], 2)
    gone = [each for each in cut if (each.start, each.stop) == (0, LENGTHS[each.document])]
    lost = plan.dropped | {n: (plan.reasons[why], None, -1) for n, _, _, why, _ in gone}
    assert told(view) == lost, "a document of which nothing is left is dropped"
    survives = any(name for _, name, _ in lost.values())
    assert lists.get("survivor", []) == [at for _, _, at in told(view).values()] * survives
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
        assert firsts in ([], [at for each in ranges for at in each.first])
    account = account_of(lengths, view, found, masked=False)
    trained = account.listed.tokens - len(rows)
    assert account.loss_tokens == (None if masked else trained)
    masked_too = account_of(lengths, view, found, masked=True)
    assert masked_too == account.model_copy(update={"loss_tokens": None})
    assert account.source == Amount(documents=5, tokens=sum(LENGTHS))
    assert account.listed == Amount(documents=len(rows), tokens=sum(lists["length"]))
    left = sum(b - a for n in kept for _, a, b in left_by_definition(n, cut))
    assert account.kept == Amount(documents=len(kept), tokens=left)
    dropped = [(why, 1, LENGTHS[n]) for n, (why, _, _) in lost.items()]
    assert account.dropped == amounts(dropped, "documents")
    for found_, ranges in ((account.masked, masked), (account.cut, cut)):
        sizes = [(plan.reasons[each.reason], 1, each.stop - each.start) for each in ranges]
        assert found_ == amounts(sizes, "ranges")


def amounts(rows: list[tuple[str, int, int]], of: str) -> dict[str, Amount]:
    """How many, and their tokens, by reason."""
    return {
        reason: Amount(**{of: len(mine)}, tokens=sum(mine))
        for reason in {reason for reason, _, _ in rows}
        if (mine := [size for why, _, size in rows if why == reason])
    }


@settings(max_examples=50)
@given(plans(), plans())
def test_a_stack_drops_and_masks_what_either_does(lower: Plan, upper: Plan) -> None:
    both = stacked(lower.view, upper.view)
    assert both.documents == 5
    assert told(both) == upper.dropped | lower.dropped
    one, other = (plan.copies or [1] * 5 for plan in (lower, upper))
    copies = None if both.copies is None else both.copies.tolist()
    assert copies == (
        None if lower.copies is upper.copies is None
        else [a * b for a, b in zip(one, other, strict=True)]
    )  # fmt: skip
    for found, mine, theirs in (
        (both.masked, lower.masked, upper.masked), (both.cut, lower.cut, upper.cut),
    ):  # fmt: skip
        expected = lower.named(mine) + upper.named(theirs)
        assert [named(each, both.reasons, both.survivors) for each in listed(found)] == expected
    assert [*both.reasons] == list(dict.fromkeys(lower.reasons + upper.reasons))
    assert [*both.survivors] == list(dict.fromkeys(lower.survivors + upper.survivors))


@settings(max_examples=50)
@given(plans(), plans())
def test_both_sides_of_pairs_list_the_same_documents(one: Plan, other: Plan) -> None:
    sides = of_both_sides(one.view, other.view)
    for side, own, of_other in zip(sides, (one, other), (other, one), strict=True):
        assert told(side) == of_other.dropped | own.dropped
        found = [named(each, side.reasons, side.survivors) for each in listed(side.masked)]
        assert found == own.named(own.masked), "each masks its own tokens"
        copies = None if side.copies is None else side.copies.tolist()
        given_copies = [plan.copies for plan in (one, other) if plan.copies]
        assert copies == ([*map(min, zip(*given_copies, strict=True))] if given_copies else None)


_range = [Range(0, 1, 3, 0, (-1, 0, 0))]


@pytest.mark.parametrize(
    "given",
    [
        {"dropped": np.array([2, 2])},
        {"dropped": np.array([-1])},
        {"dropped": np.array([5])},
        {"reason": np.zeros(2, np.uint8)},
        {"reason": np.array([1], np.uint8)},
        {"survivor": np.zeros(2, int)},
        {"survivor_source": np.array([1]), "survivor": np.array([0])},
        {"masked": of([_range[0]._replace(reason=1)])},
        {"cut": of([_range[0]._replace(reason=1)])},
        {"copies": np.ones(4, int)},
        {"copies": np.array([1, 1, 1, 0, 1])},
        {"copies": np.array([1, 1, -1, -1, 1])},
        {"masked": of([_range[0]._replace(first=(1, 0, 0))])},
        {"reasons": ["a"] * 257, "reason": np.array([256])},
        {"masked": of([_range[0]._replace(start=3)])},
        {"cut": of([_range[0]._replace(start=-1)])},
    ],
)
def test_what_is_no_view_is_refused(given: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "documents": 5, "dropped": np.array([2]), "reasons": ["a"], "survivors": ["s"],
    }  # fmt: skip
    edge = of([Range(0, 0, 1, 0, (0, 0, 0))])
    SourceView(**sound | {"dropped": np.array([0, 4]), "masked": edge, "cut": edge})
    SourceView(**sound | {"copies": np.array([1, 1, 0, 1, 1]), "reasons": ["a"] * 257})
    with pytest.raises(InputError, match="this is no view: expected documents of the source that"):
        SourceView(**sound | given)


def test_ranges_that_are_one_token_apart_stay_apart_in_every_document() -> None:
    """All lie on one line, documents end to end: each keeps its own places there."""
    rows = [(d, start, start + 2) for d in range(7) for start in (0, 3)]
    ranges = TokenRanges.of(*np.array(rows).T)
    for longest in range(9, 20):
        lengths = np.full(7, longest, np.uint32)
        found = ranges.merged(np.arange(7), lengths)
        columns = (found.document.tolist(), found.start.tolist(), found.stop.tolist())
        assert [*zip(*columns, strict=True)] == rows
        nearer = ranges.merged(np.arange(7), lengths, least=2)
        assert (nearer.start.tolist(), nearer.stop.tolist()) == ([0] * 7, [5] * 7)
