"""Which document of a cluster stays; what was found as views of the sources, and its account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
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
from jaxdata.dedup.benchmarks import NO_OVERLAPS, Overlaps, benchmark_spans
from jaxdata.dedup.job import Search, Workbench
from jaxdata.dedup.members import Member, Members, Numbers
from jaxdata.dedup.minhash import Clusters, pair_units, pairs_of, similar
from jaxdata.dedup.settings import DedupSettings

_FIRST, _LONGEST = "first", "longest"
EXACT_COPY, NEAR_COPY, TAINTED = range(3)
_REPEATED_SPAN = "repeated span"


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
        read: what text of these was read for, nevertheless; "" where none was.
        compared: pairs of documents of which all n-grams were compared.
        refused: those of them that are less alike than the threshold.
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
        if self.compared:
            lines.append(
                f"compared {counted(self.compared, 'pair')} of documents by all their n-grams; "
                f"{self.refused:,} of them are less alike than the threshold"
            )
        if self.hashed_before:
            read = f"only {self.read}" if self.read else "not at all"
            names = ", ".join(self.hashed_before)
            lines.append(f"hashed when converted: {names}; text read {read}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Dropped:
    """Documents that do not stay, in ascending order; (dropped,) each."""

    documents: Numbers
    survivors: Numbers
    """the document that stays instead of each"""
    kind: NDArray[np.uint8]
    """EXACT_COPY, NEAR_COPY, or TAINTED: it has an n-gram of that"""
    sizes: Ints
    """documents of the cluster"""


def clustered(labels: Numbers) -> Numbers:
    """The documents that are in a cluster with others, ascending.

    >>> clustered(np.array([0, 1, 0, 3], np.uint32)).tolist()
    [0, 2]
    """
    others = np.flatnonzero(labels != np.arange(len(labels), dtype=np.uint32))
    return np.union1d(others, labels[others]).astype(np.uint32)


def drop_copies(search: Search, clusters: Clusters, overlaps: Overlaps) -> Dropped:
    """Choose the survivors of all clusters; documents of which a part goes are not dropped.

    Compared with their survivor, near copies that are less like it are a cluster by themselves, and
    so on, until all that is dropped is like what stays instead.
    """
    bench, settings = search.bench, search.job.settings
    if settings.overlap_action != "drop":
        overlaps = NO_OVERLAPS
    documents = np.union1d(clustered(clusters.near), overlaps.documents)
    ranks = _ranks(bench, documents)
    dropped = choose(bench.members, clusters, overlaps, documents, ranks)
    alike = np.empty(0, np.uint64)
    for round_ in count() if settings.compared_with == "survivor" else ():
        near = dropped.kind == NEAR_COPY
        pairs = pairs_of(dropped.documents[near], dropped.survivors[near])
        units = [*pair_units(search, f"survivors-{round_:06d}", np.setdiff1d(pairs, alike))]
        names = search.do("comparing with what stays", units)
        alike = np.union1d(alike, similar(search, names))
        near[near] = ~np.isin(pairs, alike)
        if not near.any():
            break
        labels = leave(bench.members, clusters.near, documents, dropped, near)
        clusters = clusters._replace(near=labels)
        dropped = choose(bench.members, clusters, overlaps, documents, ranks)
    return dropped


def choose(
    members: Members, clusters: Clusters, overlaps: Overlaps, documents: Numbers, ranks: Ints
) -> Dropped:
    """Choose a survivor in each cluster, and drop the others.

    Documents of members that lose none come first, then those without n-grams of benchmarks, then
    those of earlier members, then those of smaller rank, then those with smaller numbers.

    Args:
        members: where the documents are from.
        clusters: their labels.
        overlaps: documents with n-grams of benchmarks.
        documents: those in a cluster with others, and those with n-grams of benchmarks.
        ranks: (documents,) in order of preference among documents of one member.
    """
    member, _ = members.places(documents)
    stays, label = members.against[member], clusters.near[documents]
    tainted = np.isin(documents, overlaps.documents, assume_unique=True)
    order = np.lexsort((documents, ranks, member, tainted, ~stays, label))
    begins = np.append(True, label[order][1:] != label[order][:-1])[: len(order)]
    cluster = np.cumsum(begins) - 1
    survivor, sizes = documents[order][begins], np.bincount(cluster)
    lost = ~stays[order] & (~begins | tainted[order])
    back = np.argsort(documents[order][lost])
    chosen, which = documents[order][lost][back], cluster[lost][back]
    stay = survivor[which]
    exact = clusters.exact[chosen] == clusters.exact[stay]
    kind = np.where(exact, EXACT_COPY, NEAR_COPY).astype(np.uint8)
    copy_of_against = stays[order][begins][which]
    mine = np.isin(chosen, overlaps.documents, assume_unique=True) & ~copy_of_against
    kind[mine] = TAINTED
    stay[mine] = overlaps.by[np.searchsorted(overlaps.documents, chosen[mine])]
    return Dropped(chosen, stay, kind, sizes[which])


def leave(
    members: Members,
    labels: Numbers,
    documents: Numbers,
    dropped: Dropped,
    unlike: NDArray[np.bool_],
) -> Numbers:
    """Labels of clusters of which some documents leave, to be one by themselves.

    What loses no documents leaves with them, but for the survivor: they may be like that.

    Args:
        members: where the documents are from.
        labels: of the clusters.
        documents: those in a cluster with others, ascending.
        dropped: what is not to stay.
        unlike: (dropped,) which of them leave, since their survivor is unlike them.
    """
    leaving, survivors = dropped.documents[unlike], dropped.survivors[unlike]
    of = documents[np.isin(labels[documents], labels[leaving])]
    against = members.against[members.places(of)[0]]
    moved = np.isin(of, leaving) | against & ~np.isin(of, survivors)
    keys = labels[of].astype(np.int64) * 2 + moved
    _, first, cluster = np.unique(keys, return_index=True, return_inverse=True)
    found = labels.copy()
    found[of] = of[first][cluster]
    return found


def _ranks(bench: Workbench, documents: Numbers) -> Ints:
    """The preference among documents of one member."""
    rule = bench.settings.prefer
    if rule == _FIRST:
        return np.zeros(len(documents), np.int64)
    if rule == _LONGEST:
        return -bench.lengths(documents)
    field = rule.removeprefix("-")
    member, number = bench.members.places(documents)
    values: list[Any] = [None] * len(documents)
    for which, texts in enumerate(bench.texts):
        of = np.flatnonzero(member == which)
        if len(of) and texts.sides and not bench.members.each[which].against:
            source: Any = texts.sides[0].documents
            for at, own in zip(of.tolist(), texts.in_source(number[of]).tolist(), strict=True):
                values[at] = source.kept(own).get(field)
    if values and all(value is None for value in values):
        raise InputError(
            f"prefer={rule!r}: no document of a cluster has a kept field {field!r}; expected "
            f"{_LONGEST!r}, {_FIRST!r} or a field of jaxdata convert --keep"
        )
    return value_ranks(values, largest=rule.startswith("-"))


def value_ranks(values: Sequence[Any], *, largest: bool = False) -> Ints:
    """The rank of each value: numbers before texts, equal ones alike, None always last.

    >>> value_ranks([3, None, 1, 3, "a"]).tolist()
    [1, 3, 0, 1, 2]
    >>> value_ranks([3, None, 1], largest=True).tolist()
    [0, 2, 1]
    """
    keys = [_sortable(value) for value in values]
    known = sorted({key for key in keys if key is not None}, reverse=largest)
    rank = {key: number for number, key in enumerate(known)}
    return np.array([len(rank) if key is None else rank[key] for key in keys], np.int64)


def _sortable(value: Any) -> tuple[bool, Any] | None:
    if value is None or value != value:  # NaN is no value
        return None
    is_number = isinstance(value, int | float)
    return (False, value) if is_number else (True, str(value))


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


def cluster_sizes(dropped: Dropped, some: NDArray[np.bool_] | None = None) -> dict[str, int]:
    """The clusters that lose documents, or some of them, by size."""
    copies = dropped.kind != TAINTED
    if some is not None:
        copies &= some
    _, first = np.unique(dropped.survivors[copies], return_index=True)
    return clusters_by_size(dropped.sizes[copies][first])


def statistics_of(members: Members, dropped: Dropped) -> dict[str, dict[str, Any]]:
    """By source, the clusters in which it loses documents, by size."""
    lost, _ = members.places(dropped.documents)
    return {
        side: {"clusters": cluster_sizes(dropped, lost == which)}
        for which, member in enumerate(members.each)
        for side in member.sides * (not member.against)
    }


def views_of_sources(
    bench: Workbench, dropped: Dropped, overlaps: Overlaps, spans: TokenRanges, dataset: Dataset
) -> dict[str, SourceView]:
    """A view of each source that may lose documents.

    `spans` occur before; their documents are numbered across members.
    """
    made = _Views(bench, dropped, overlaps, spans, dataset)
    return {
        side: _over(dataset, side, member, made.of_member(which))
        for which, member in enumerate(bench.members.each)
        for side in member.sides * (not member.against)
    }


@dataclass(frozen=True)
class _Views:
    """Makes the views of members; see :func:`views_of_sources`."""

    bench: Workbench
    dropped: Dropped
    overlaps: Overlaps
    spans: TokenRanges
    dataset: Dataset

    def of_member(self, which: int) -> SourceView:
        """The view of one member, in numbers of its source."""
        settings, members = self.bench.settings, self.bench.members
        view = self._without_copies(which)
        if self.bench.job.overlaps and settings.overlap_action != "drop":
            member, number = members.places(self.overlaps.documents)
            mine, shared = number[member == which], self.overlaps.shared
            ranges = benchmark_spans(self.bench, which, mine, shared, self.dataset)
            reason = overlap_reason(settings)
            view = self._without(which, view, ranges, settings.overlap_action, reason)
        if settings.repeats:
            owner, number = members.places(self.spans.document)
            ranges = self.spans._replace(document=number).take(owner == which)
            view = self._without(which, view, ranges, settings.repeats_action, _REPEATED_SPAN)
        return view

    def _without_copies(self, which: int) -> SourceView:
        members, settings = self.bench.members, self.bench.settings
        kinds = ["exact copy", "near copy"]
        if self.bench.job.overlaps and settings.overlap_action == "drop":
            kinds.append(overlap_reason(settings))
        where = [_where(member) for member in members.each]
        known = list(dict.fromkeys(where))
        lost, documents = members.places(self.dropped.documents)
        mine = lost == which
        member, number = self._in_sources(self.dropped.survivors[mine])
        reason_of = np.array([known.index(place) for place in where])[member] * len(kinds)
        return SourceView(
            documents=len(self.dataset[members.each[which].sides[0]]),
            dropped=self.bench.texts[which].in_source(documents[mine]),
            reason=(reason_of + self.dropped.kind[mine]).astype(np.uint8),
            reasons=[f"{kind}{place}" for place in known for kind in kinds],
            survivor_source=member.astype(np.int32),
            survivor=number,
            survivors=[each.sides[0] if each.sides else each.name for each in members.each],
        )

    def _without(
        self, which: int, view: SourceView, ranges: TokenRanges, action: str, reason: str
    ) -> SourceView:
        """The view with more ranges masked or cut, in documents by their numbers in the member."""
        source, number = self._in_sources(ranges.first[:, 1])
        ranges = ranges._replace(
            document=self.bench.texts[which].in_source(ranges.document),
            reason=ranges.reason + len(view.reasons),
            first=np.column_stack([source, number, ranges.first[:, 2]]),
        )
        reasons = [*view.reasons, reason]
        if action == "cut":
            return replace(view, reasons=reasons, cut=TokenRanges.join([view.cut, ranges]))
        return replace(view, reasons=reasons, masked=TokenRanges.join([view.masked, ranges]))

    def _in_sources(self, numbers: NDArray[Any]) -> tuple[Ints, Ints]:
        """The member of each document, and its number in the source, or its place in the file."""
        member, number = self.bench.members.places(numbers)
        for each in np.unique(member).tolist():
            of = member == each
            number[of] = self.bench.texts[each].in_source(number[of])
        return member, number


def overlap_reason(settings: DedupSettings) -> str:
    """What the account calls words of benchmarks in a document."""
    if settings.decontaminate:
        return f"overlap ({settings.decontaminate})"
    return f"{settings.overlap} {settings.of} in a row"


def _where(member: Member) -> str:
    """Where the copy is that stays, for a reason: in a split, or in a benchmark."""
    if not member.against:
        return ""
    return f" in {member.name.partition('/')[0]}" if member.sides else " in a benchmark"


def _over(dataset: Dataset, side: str, member: Member, view: SourceView) -> SourceView:
    """The view on top of the one that the source was read through."""
    if member.view is None:
        return view
    split, _, source = side.partition("/")
    below: Any = dataset.source(split, source, documents=member.view)
    return stacked(content_of(below), view)
