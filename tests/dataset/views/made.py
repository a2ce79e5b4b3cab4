"""Datasets with views, and what a view is by its definition: token by token, in plain lists."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import jaxdata
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.views.kept_documents import Fate, KeptDocuments
from jaxdata.dataset.views.source_view import SourceView, TokenRanges
from jaxdata.dataset.views.writing import write_views
from tests.converter.here import objects, run_here, write_lines

REASONS = ["near", "benchmark"]


def kept(folder: Path, name: str = "d1", source: str = "web") -> KeptDocuments:
    found = jaxdata.open_dataset(folder).source("train", source, documents=name)
    assert isinstance(found, KeptDocuments)
    return found


def write(
    folder: str | Path, view: SourceView, name: str = "d1", source: str = "train/web", **given: Any
) -> ViewEntry:
    """Publish a view of one source as it is now."""
    made_of = jaxdata.open_dataset(folder)[source].fingerprint
    facts = {"parameters": {}, "made_of": {source: made_of}}
    return write_views(folder, name, {source: view}, **facts, **given)[source]


def dropping(documents: int, *dropped: int, **given: Any) -> SourceView:
    numbers = np.array(dropped, np.int64)
    return SourceView(documents=documents, dropped=numbers, reasons=REASONS, **given)


def masking(*ranges: tuple[int, int, int]) -> TokenRanges:
    return TokenRanges.of(*np.array(ranges, np.int64).reshape(-1, 3).T, reason=1)


class Range(NamedTuple):
    """Tokens of a document that are masked or cut out, and why."""

    document: int
    start: int
    stop: int
    reason: str


class Plan(NamedTuple):
    """A view in plain lists."""

    documents: int
    dropped: Mapping[int, Fate]
    copies: list[int] | None = None
    masked: Sequence[Range] = ()
    cut: Sequence[Range] = ()
    reasons: Sequence[str] = REASONS
    survivors: Sequence[str] = ("train/a", "b.jsonl")

    @property
    def view(self) -> SourceView:
        numbers = sorted(self.dropped)
        fates = [self.dropped[number] for number in numbers]
        survivors = [fate.survivor for fate in fates]
        places = [[self.survivors.index(s[0]), s[1]] if s else [-1, -1] for s in survivors]
        return SourceView(
            documents=self.documents,
            dropped=np.array(numbers, np.int64),
            reason=np.array([self.reasons.index(fate.reason) for fate in fates], np.uint8),
            reasons=self.reasons,
            survivor_source=np.array([source for source, _ in places], np.int32),
            survivor=np.array([number for _, number in places], np.int64),
            survivors=self.survivors,
            copies=None if self.copies is None else np.array(self.copies),
            masked=self._ranges(self.masked),
            cut=self._ranges(self.cut),
        )

    def _ranges(self, ranges: Sequence[Range]) -> TokenRanges:
        rows = [(*each[:3], self.reasons.index(each.reason)) for each in ranges]
        return TokenRanges(*np.array(rows, np.int64).reshape(-1, 4).T)


@st.composite
def plans(draw: st.DrawFn, lengths: Sequence[int]) -> Plan:
    """Any view: copies, ranges masked and cut in any order and beyond ends, nothing kept."""
    reasons = draw(st.permutations(["near", "where", "weight"]))[: draw(st.integers(2, 3))]
    survivors = draw(st.permutations(["train/a", "b.jsonl", "train/c"]))[:2]
    numbers, known = st.integers(0, len(lengths) - 1), draw(st.sampled_from([0, 4, 9]))

    def fate(number: int) -> Fate:
        survivor = (draw(st.sampled_from(survivors)), number + 7) if number % 10 < known else None
        return Fate(draw(st.sampled_from(reasons)), survivor)

    def ranges() -> list[Range]:
        rows = draw(st.lists(st.tuples(numbers, st.integers(0, 13), st.integers(1, 6)), max_size=8))
        pairs = zip(rows, [draw(st.sampled_from(reasons)) for _ in rows], strict=True)
        return [Range(d, start, start + size, why) for (d, start, size), why in pairs]

    fates = {number: fate(number) for number in draw(st.sets(numbers))}
    copies = [draw(st.integers(int(n not in fates), 3)) for n in range(len(lengths))]
    given = draw(st.sampled_from([None, copies]))
    cut = ranges() if draw(st.booleans()) else []
    return Plan(len(lengths), fates, given, ranges(), cut, reasons, survivors)


class Defined(NamedTuple):
    """What a plan makes of documents of some lengths."""

    fates: dict[int, Fate]
    rows: list[tuple[int, int, int]]
    """what is listed: a document, and its first and last token, exclusive"""
    masked: list[Range]
    cut: list[Range]


def defined(plan: Plan, lengths: Sequence[int]) -> Defined:
    """Go through a plan document by document."""
    fates, rows, masked, cut = dict(plan.dropped), [], list[Range](), list[Range]()
    for n, length in enumerate(lengths):
        if n in plan.dropped:
            continue
        gone = _merged([each for each in plan.cut if each.document == n], length, least=2)
        if [(each.start, each.stop) for each in gone] == [(0, length)]:
            fates[n] = Fate(gone[0].reason, None)  # nothing is left
            continue
        inside = [any(each.start <= at < each.stop for each in gone) for at in range(length)]
        left = _runs(inside, False)
        times = 1 if plan.copies is None else plan.copies[n]
        rows += [(n, *piece) for piece in left for _ in range(times)]
        hidden = _merged([each for each in plan.masked if each.document == n], length, least=1)
        parts = [(each, max(each.start, a), min(each.stop, b)) for each in hidden for a, b in left]
        masked += [each._replace(start=a, stop=b) for each, a, b in parts if a < b]
        cut += gone
    return Defined(fates, rows, masked, cut)


def _merged(ranges: list[Range], length: int, least: int) -> list[Range]:
    """Runs of the tokens that are in a range, or in too short a run of others."""
    inside = [any(each.start <= at < each.stop for each in ranges) for at in range(length)]
    for a, b in _runs(inside, False) if any(inside) else ():
        if b - a < least:
            inside[a:b] = [True] * (b - a)
    ranges = sorted(ranges, key=lambda each: each.start)
    return [
        next(each for each in ranges if a <= each.start < b)._replace(start=a, stop=b)
        for a, b in _runs(inside, True)
    ]


def _runs(flags: list[bool], which: bool) -> list[tuple[int, int]]:
    text = "".join("x" if each is which else " " for each in flags)
    return [match.span() for match in re.finditer("x+", text)]


def convert_records(folder: Path, records: list[dict[str, Any]], **options: Any) -> Path:
    """A converted dataset of records, with what they keep; the text is of their fields."""
    lines = objects(*({"text": f"document {n}"} | each for n, each in enumerate(records)))
    run_here(write_lines(folder / "records.jsonl", lines), folder / "d", **options)
    return folder / "d"
