"""What was found, as views of the sources: who is dropped, why, and the account of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.views.source_view import (
    SourceView,
    TokenRanges,
    account_lines,
    content_of,
    stacked,
)
from jaxdata.dedup.benchmarks import benchmark_spans
from jaxdata.dedup.job import Workbench
from jaxdata.dedup.members import Member, Members, open_side
from jaxdata.dedup.minhash import pairs_of
from jaxdata.dedup.search import Clusters, Search
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.survivors import (
    FIRST,
    LONGEST,
    NEAR_COPY,
    TAINTED,
    Dropped,
    choose,
    clustered,
    leave,
    value_ranks,
)


@dataclass(frozen=True)
class DedupReport:
    """What a search found, and the view that it made.

    Attributes:
        dataset: the dataset.
        name: the view.
        views: `"<split>/<source>"` -> its entry in the manifest; with its account.
        clusters: by the number of documents, how many clusters there are.
        seconds: that it took.
        hashed_before: sources whose documents the conversion hashed.
        not_found: what was compared with, and has nothing in common with any source.
        read: what text of these was read for, nevertheless; "" where none was.
        compared: pairs of documents of which all n-grams were compared.
        refused: those of them that are less alike than the threshold.
        chained: near copies in clusters of three and more, which others connect: each is like one
            of them, and may be less like the document that stays.
    """

    dataset: str
    name: str
    views: Mapping[str, ViewEntry]
    clusters: Mapping[str, int]
    seconds: float
    hashed_before: Sequence[str] = ()
    read: str = ""
    compared: int = 0
    refused: int = 0
    chained: int = 0
    not_found: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for source, view in self.views.items():
            yield f"{source}:"
            yield from (f"  {line}" for line in account_lines(view.account))
        yield self.summary()

    def summary(self) -> str:
        """The clusters, the time, what was compared, and which text was not read."""
        sizes = ", ".join(f"{count:,} of {size}" for size, count in self.clusters.items())
        found = f"clusters by number of documents: {sizes or 'none'}; took {self.seconds:,.1f} s"
        lines = [found]
        if self.not_found:
            sources = ", ".join(self.views)
            lines.append(f"nothing of {', '.join(self.not_found)} was found in {sources}")
        if self.compared:
            lines.append(
                f"compared {counted(self.compared, 'pair')} of documents by all their n-grams; "
                f"{self.refused:,} of them are less alike than the threshold"
            )
        if self.chained:
            lines.append(
                f"near copies in clusters of three and more: {self.chained:,}; each is like "
                "another there, and may be less like the document that stays (--compared-with "
                "survivor compares it with that one)"
            )
        if self.hashed_before:
            read = f"only {self.read}" if self.read else "not at all"
            names = ", ".join(self.hashed_before)
            lines.append(f"hashed when converted: {names}; text read {read}")
        return "\n".join(lines)


def not_found(members: Members, clusters: Clusters) -> list[str]:
    """Names of what was compared with, and has no document or n-gram that a source has, too.

    Of several benchmarks that taint a document only one is known: then none of them is named.
    """
    documents = clustered(clusters.near)
    member, _ = members.places(documents)
    whole = np.array([each.against for each in members.each])[member]
    labels = clusters.near[documents]
    found = np.unique(member[whole & np.isin(labels, labels[~whole])])
    unknown = len(clusters.tainted) > 0
    return [
        each.name
        for number, each in enumerate(members.each)
        if each.against and number not in found and not (unknown and not each.sides)
    ]


def clusters_by_size(sizes: Ints) -> dict[str, int]:
    """How many clusters there are of each class of sizes, from the size of each.

    >>> clusters_by_size(np.array([2, 2, 3, 5, 130]))
    {'2': 2, '3': 1, '4-7': 1, '128-255': 1}
    """
    classes = np.where(sizes < 4, sizes, 1 << np.log2(np.maximum(sizes, 1)).astype(np.int64))
    found, counts = np.unique(classes, return_counts=True)
    return {
        str(size) if size < 4 else f"{size}-{2 * size - 1}": count
        for size, count in zip(found.tolist(), counts.tolist(), strict=True)
    }


def sizes_of_clusters(dropped: Dropped) -> Ints:
    """The number of documents of each cluster that loses some."""
    copies = np.flatnonzero(dropped.kind != TAINTED)
    _, first = np.unique(dropped.survivors[copies], return_index=True)
    return dropped.sizes[copies[first]]


def statistics_of(members: Members, dropped: Dropped) -> dict[str, dict[str, Any]]:
    """By source, the clusters in which it loses documents, by size."""
    lost, _ = members.places(dropped.documents)
    found = {}
    for which, member in enumerate(members.each):
        for side in member.sides * (not member.against):
            mine = (lost == which) & (dropped.kind != TAINTED)
            _, first = np.unique(dropped.survivors[mine], return_index=True)
            found[side] = {"clusters": clusters_by_size(dropped.sizes[mine][first])}
    return found


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
    made = _Views(bench, clusters, dropped, spans, dataset, places)
    found = {}
    for which, member in enumerate(bench.members.each):
        if not member.against:
            view = made.of_member(which)
            for side in member.sides:
                found[side] = _over(dataset, side, member, view)
    return found


def overlap_reason(settings: DedupSettings) -> str:
    """What the account calls words of benchmarks in a document."""
    if settings.decontaminate:
        return f"overlap ({settings.decontaminate})"
    return f"{settings.overlap} {settings.of} in a row"


@dataclass(frozen=True)
class _Views:
    """Makes the views of members; see :func:`views_of_sources`."""

    bench: Workbench
    clusters: Clusters
    dropped: Dropped
    spans: TokenRanges
    dataset: Dataset
    places: Mapping[str, list[int]]

    def of_member(self, which: int) -> SourceView:
        """The view of one member, in numbers of its source."""
        settings, members = self.bench.settings, self.bench.members
        view = self._without_copies(which)
        if self.bench.job.overlaps and settings.overlap_action != "drop":
            member, number = members.places(self.clusters.tainted)
            mine, shared = number[member == which], self.clusters.shared
            ranges = benchmark_spans(self.bench, which, mine, shared, self.dataset)
            reason = overlap_reason(settings)
            view = self._without(which, view, ranges, settings.overlap_action, reason)
        if settings.repeats:
            owner, number = members.places(self.spans.document)
            ranges = self.spans._replace(document=number).take(owner == which)
            view = self._without(which, view, ranges, settings.repeats_action, REPEATED_SPAN)
        return view

    def _without_copies(self, which: int) -> SourceView:
        members, settings = self.bench.members, self.bench.settings
        kinds = ["exact copy", "near copy"]
        if self.bench.job.overlaps and settings.overlap_action == "drop":
            kinds.append(overlap_reason(settings))
        lost, documents = members.places(self.dropped.documents)
        mine, own = lost == which, members.each[which]
        member, number = self._in_sources(self.dropped.survivors[mine])
        survivors, reasons, reason_of = _names(members.each, kinds)
        return SourceView(
            documents=len(self.dataset[own.sides[0]]),
            dropped=self._in_source(which, documents[mine]),
            reason=(reason_of[member] * len(kinds) + self.dropped.kind[mine]).astype(np.uint8),
            reasons=reasons,
            survivor_source=member.astype(np.int32),
            survivor=number,
            survivors=survivors,
        )

    def _without(
        self, which: int, view: SourceView, ranges: TokenRanges, action: str, reason: str
    ) -> SourceView:
        """The view with more ranges masked or cut, in documents by their numbers in the member."""
        source, number = self._in_sources(ranges.first[:, 1])
        ranges = ranges._replace(
            document=self._in_source(which, ranges.document),
            reason=ranges.reason + len(view.reasons),
            first=np.column_stack([source, number, ranges.first[:, 2]]),
        )
        reasons = [*view.reasons, reason]
        if action == "cut":
            return replace(view, reasons=reasons, cut=TokenRanges.join([view.cut, ranges]))
        return replace(view, reasons=reasons, masked=TokenRanges.join([view.masked, ranges]))

    def _in_sources(self, numbers: AnyInts) -> tuple[Ints, Ints]:
        """The member of each document, and its number in the source, or its place in the file."""
        member, number = self.bench.members.places(numbers)
        for each in np.unique(member).tolist():
            of = member == each
            number[of] = self._in_source(each, number[of])
        return member, number

    def _in_source(self, which: int, numbers: Ints) -> Ints:
        """Documents by their numbers in the source, or by their places in the file."""
        member = self.bench.members.each[which]
        if not member.sides:
            return np.array(self.places[member.name], np.int64)[numbers]
        listed = open_side(self.dataset, member.sides[0], member.view).numbers
        return numbers if listed is None else listed[numbers].astype(np.int64)


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


def _over(dataset: Dataset, side: str, member: Member, view: SourceView) -> SourceView:
    """The view on top of the one that the source was read through."""
    if member.view is None:
        return view
    split, _, source = side.partition("/")
    below: Any = dataset.source(split, source, documents=member.view)
    return stacked(content_of(below), view)
