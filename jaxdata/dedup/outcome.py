"""What was found, as views of the sources: who is dropped, why, and who stays instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from jaxdata.dedup.benchmarks.benchmark_spans import benchmark_spans
from jaxdata.dedup.member_texts import open_side
from jaxdata.dedup.members import Member, Members
from jaxdata.dedup.search_stages import Clusters, Search
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.survivors import (
    FIRST,
    LONGEST,
    NEAR_COPY,
    Dropped,
    choose,
    clustered,
    leave,
    value_ranks,
)
from jaxdata.dedup.units.candidate_units import pairs_of
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.ragged import AnyInts, Ints
from jaxdata.views.cut_ranges import TokenRanges
from jaxdata.views.source_view import SourceView, content_of, stacked

REPEATED_SPAN = "repeated span"


def drop_copies(search: Search, clusters: Clusters, dataset: Dataset) -> Dropped:
    """Choose the survivors of all clusters; documents of which a part goes are not dropped.

    Compared with their survivor, near copies that are less like it are a cluster by themselves, and
    so on, until all that is dropped is like what stays instead.
    """
    bench, settings = search.bench, search.job.settings
    if settings.overlap_action != "drop":
        none = clusters.tainted[:0]
        clusters = clusters._replace(tainted=none, tainted_by=none)
    documents = np.union1d(clustered(clusters.near), clusters.tainted)
    ranks = _ranks(bench, dataset, documents)
    dropped = choose(bench.members, clusters, documents, ranks)
    alike = np.empty(0, np.uint64)
    for round_ in count() if settings.compared_with == "survivor" else ():
        near = dropped.kind == NEAR_COPY
        pairs = pairs_of(dropped.documents[near], dropped.survivors[near])
        units = [*search.pair_units(f"survivors-{round_:06d}", np.setdiff1d(pairs, alike))]
        search.do("comparing with what stays", units)
        alike = np.union1d(alike, search.similar(units))
        near[near] = ~np.isin(pairs, alike)
        if not near.any():
            break
        labels = leave(bench.members, clusters.near, documents, dropped, near)
        clusters = clusters._replace(near=labels)
        dropped = choose(bench.members, clusters, documents, ranks)
    return dropped


def _ranks(bench: Workbench, dataset: Dataset, documents: AnyInts) -> Ints:
    """The preference among documents of one member."""
    rule = bench.settings.prefer
    if rule == FIRST:
        return np.zeros(len(documents), np.int64)
    if rule == LONGEST:
        return -bench.lengths(documents)
    field = rule.removeprefix("-")
    values = list(_values(bench.members, dataset, documents, field))
    if all(value is None for value in values) and len(values):
        raise InputError(
            f"prefer={rule!r}: no document of a cluster has a kept field {field!r}; expected "
            f"{LONGEST!r}, {FIRST!r} or a field of jaxdata convert --keep"
        )
    return value_ranks(values, largest=rule.startswith("-"))


def _values(members: Members, dataset: Dataset, documents: AnyInts, field: str) -> list[Any]:
    member, number = members.places(documents)
    found: list[Any] = [None] * len(documents)
    for which, each in enumerate(members.each):
        if each.sides and not each.against:
            side = open_side(dataset, each.sides[0], each.view)
            source: Any = side.documents
            for at in np.flatnonzero(member == which).tolist():
                own = number[at] if side.numbers is None else side.numbers[number[at]]
                found[at] = source.kept(int(own)).get(field)
    return found


def views_of_sources(
    bench: Workbench,
    clusters: Clusters,
    dropped: Dropped,
    spans: TokenRanges,
    dataset: Dataset,
    places: Mapping[str, list[int]],
) -> dict[str, SourceView]:
    """A view of each source that may lose documents; `places` are those of benchmarks' texts.

    `spans` occur before; their documents are numbered across members.
    """
    members, settings = bench.members, bench.settings
    kinds = ["exact copy", "near copy"]
    if bench.job.overlaps and settings.overlap_action == "drop":
        kinds.append(overlap_reason(settings))
    lost, _ = members.places(dropped.documents)
    found = {}
    for which, member in enumerate(members.each):
        if not member.against:
            taken = _taken(dropped, lost == which)
            mine = _of_member(members, taken, which, dataset, places, kinds)
            if bench.job.overlaps and settings.overlap_action != "drop":
                ranges = _of_benchmarks(bench, clusters, which, dataset)
                reason, action = overlap_reason(settings), settings.overlap_action
                mine = _without(members, which, mine, ranges, action, reason, dataset, places)
            if settings.repeats:
                owner, number = members.places(spans.document)
                ranges = spans._replace(document=number).take(owner == which)
                reason, action = REPEATED_SPAN, settings.repeats_action
                mine = _without(members, which, mine, ranges, action, reason, dataset, places)
            for side in member.sides:
                found[side] = _over(dataset, side, member, mine)
    return found


def overlap_reason(settings: DedupSettings) -> str:
    """What the account calls words of benchmarks in a document."""
    if settings.decontaminate:
        return f"overlap ({settings.decontaminate})"
    return f"{settings.overlap} {settings.of} in a row"


def _of_benchmarks(
    bench: Workbench, clusters: Clusters, which: int, dataset: Dataset
) -> TokenRanges:
    """The n-grams of benchmarks in a member's documents."""
    member, number = bench.members.places(clusters.tainted)
    return benchmark_spans(bench, which, number[member == which], clusters.shared, dataset)


def _without(
    members: Members,
    which: int,
    view: SourceView,
    ranges: TokenRanges,
    action: str,
    reason: str,
    dataset: Dataset,
    places: Mapping[str, list[int]],
) -> SourceView:
    """The view with more ranges masked or cut, in documents by their numbers in the member."""
    source, number = _in_sources(members, ranges.first[:, 1], dataset, places)
    ranges = ranges._replace(
        document=_in_source(members.each[which], ranges.document, dataset, places),
        reason=ranges.reason + len(view.reasons),
        first=np.column_stack([source, number, ranges.first[:, 2]]),
    )
    reasons = [*view.reasons, reason]
    if action == "cut":
        return replace(view, reasons=reasons, cut=TokenRanges.join([view.cut, ranges]))
    return replace(view, reasons=reasons, masked=TokenRanges.join([view.masked, ranges]))


def _taken(dropped: Dropped, chosen: Any) -> Dropped:
    return Dropped(*(getattr(dropped, name)[chosen] for name in Dropped.__dataclass_fields__))


def _of_member(
    members: Members,
    dropped: Dropped,
    which: int,
    dataset: Dataset,
    places: Mapping[str, list[int]],
    kinds: Sequence[str],
) -> SourceView:
    """The view of one member, in numbers of its source."""
    _, documents = members.places(dropped.documents)
    member, number = _in_sources(members, dropped.survivors, dataset, places)
    survivors, reasons, reason_of = _names(members.each, kinds)
    own = members.each[which]
    total = len(dataset[own.sides[0]])
    return SourceView(
        documents=total,
        dropped=_in_source(own, documents, dataset, places),
        reason=(reason_of[member] * len(kinds) + dropped.kind).astype(np.uint8),
        reasons=reasons,
        survivor_source=member.astype(np.int32),
        survivor=number,
        survivors=survivors,
    )


def _names(members: Sequence[Member], kinds: Sequence[str]) -> tuple[list[str], list[str], Ints]:
    """Names of the members as survivors; all reasons; and which of these each member makes."""
    where = ["" if not m.against else _where(m) for m in members]
    known = list(dict.fromkeys(where))
    reasons = [f"{kind}{place}" for place in known for kind in kinds]
    survivors = [member.sides[0] if member.sides else member.name for member in members]
    return survivors, reasons, np.array([known.index(place) for place in where])


def _where(member: Member) -> str:
    """Where the copy is that stays, for a reason: in a split, or in a benchmark."""
    return f" in {member.name.partition('/')[0]}" if member.sides else " in a benchmark"


def _in_sources(
    members: Members, numbers: AnyInts, dataset: Dataset, places: Mapping[str, list[int]]
) -> tuple[Ints, Ints]:
    """The member of each document, and its number in the source, or its place in the file."""
    member, number = members.places(numbers)
    for each in np.unique(member).tolist():
        of = member == each
        number[of] = _in_source(members.each[each], number[of], dataset, places)
    return member, number


def _in_source(
    member: Member, numbers: Ints, dataset: Dataset, places: Mapping[str, list[int]]
) -> Ints:
    """Documents by their numbers in the source, or by their places in the file."""
    if not member.sides:
        return np.array(places[member.name], np.int64)[numbers]
    listed = open_side(dataset, member.sides[0], member.view).numbers
    return numbers if listed is None else listed[numbers].astype(np.int64)


def _over(dataset: Dataset, side: str, member: Member, view: SourceView) -> SourceView:
    """The view on top of the one that the source was read through."""
    if member.view is None:
        return view
    split, _, source = side.partition("/")
    below: Any = dataset.source(split, source, documents=member.view)
    return stacked(content_of(below), view)
