"""Which document of a cluster stays; what was found as views of the sources, and its account."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from jaxdata.dedup.job import Workbench
from jaxdata.dedup.members import Member, Numbers
from jaxdata.dedup.minhash import Clusters

EXACT_COPY, NEAR_COPY, TAINTED = range(3)


@dataclass(frozen=True)
class DedupReport:
    """What a search found, and the view that it made.

    Attributes:
        dataset: the dataset.
        name: the view.
        views: `"<split>/<source>"` -> its entry in the manifest; with its account.
        seconds: that it took.
        hashed_before: sources whose documents the conversion hashed.
        compared: pairs of documents of which all n-grams were compared.
        refused: those of them that are less alike than the threshold.
    """

    dataset: str
    name: str
    views: Mapping[str, ViewEntry]
    seconds: float
    hashed_before: Sequence[str] = ()
    compared: int = 0
    refused: int = 0

    def __str__(self) -> str:
        lines = []
        for source, view in self.views.items():
            lines += [f"{source}:", *(f"  {line}" for line in account_lines(view.account))]
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """The time, what was compared, and which text was not hashed."""
        parts = [f"took {self.seconds:,.1f} s"]
        if self.compared:
            parts.append(
                f"compared {counted(self.compared, 'pair')} of documents by all their n-grams: "
                f"{self.refused:,} are less alike than the threshold"
            )
        if self.hashed_before:
            parts.append(f"hashed when converted: {', '.join(self.hashed_before)}")
        return "; ".join(parts)


class Dropped(NamedTuple):
    """Documents that do not stay, in ascending order; (dropped,) each."""

    documents: Numbers
    survivors: Numbers
    """the document that stays instead of each"""
    kind: NDArray[np.uint8]
    """EXACT_COPY, NEAR_COPY, or TAINTED: it has an n-gram of that"""


def clustered(labels: Numbers) -> Numbers:
    """The documents that are in a cluster with others, ascending.

    >>> clustered(np.array([0, 1, 0, 3], np.uint32)).tolist()
    [0, 2]
    """
    others = np.flatnonzero(labels != np.arange(len(labels), dtype=np.uint32))
    return np.union1d(others, labels[others]).astype(np.uint32)


def drop_copies(bench: Workbench, clusters: Clusters, overlaps: Overlaps) -> Dropped:
    """Choose a survivor in each cluster, and drop the others.

    Documents of members that lose none come first, then those without n-grams of benchmarks, then
    those of earlier members, then the longest if these are preferred, then those with smaller
    numbers. Documents of which a part goes are not dropped.
    """
    members, settings = bench.members, bench.settings
    if settings.overlap_action != "drop":
        overlaps = NO_OVERLAPS
    documents = np.union1d(clustered(clusters.near), overlaps.documents)
    ranks = -bench.lengths(documents) * (settings.prefer == "longest")
    member, _ = members.places(documents)
    stays, label = members.against[member], clusters.near[documents]
    tainted = np.isin(documents, overlaps.documents, assume_unique=True)
    order = np.lexsort((documents, ranks, member, tainted, ~stays, label))
    documents, label = documents[order], label[order]
    stays, tainted = stays[order], tainted[order]
    begins = np.append(True, label[1:] != label[:-1])[: len(order)]
    survivor = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    lost = np.flatnonzero(~stays & (~begins | tainted))
    lost = lost[np.argsort(documents[lost])]
    chosen, stay = documents[lost], documents[survivor[lost]]
    exact = clusters.exact[chosen] == clusters.exact[stay]
    kind = np.where(exact, EXACT_COPY, NEAR_COPY).astype(np.uint8)
    mine = tainted[lost] & ~stays[survivor[lost]]
    kind[mine] = TAINTED
    stay[mine] = overlaps.by[np.searchsorted(overlaps.documents, chosen[mine])]
    return Dropped(chosen, stay, kind)


def views_of_sources(
    bench: Workbench, dropped: Dropped, overlaps: Overlaps, spans: TokenRanges, dataset: Dataset
) -> dict[str, SourceView]:
    """A view of each source that may lose documents.

    `spans` occur before; their documents are numbered across members.
    """
    settings, members, views = bench.settings, bench.members, {}
    named = settings.decontaminate and f"overlap ({settings.decontaminate})"
    reason = named or f"{settings.overlap} {settings.of} in a row"
    for which, member in enumerate(members.each):
        if member.against:
            continue
        view = _without_copies(bench, which, dropped, reason, len(dataset[member.sides[0]]))
        if bench.job.overlaps and settings.overlap_action != "drop":
            owner, number = members.places(overlaps.documents)
            ranges = benchmark_spans(bench, which, number[owner == which], overlaps.shared, dataset)
            view = _without(bench, which, view, ranges, settings.overlap_action, reason)
        if settings.repeats:
            owner, number = members.places(spans.document)
            ranges = spans._replace(document=number).take(owner == which)
            view = _without(bench, which, view, ranges, settings.repeats_action, "repeated span")
        for side in member.sides:
            views[side] = _over(dataset, side, member, view)
    return views


def _without_copies(
    bench: Workbench, which: int, dropped: Dropped, overlap: str, documents: int
) -> SourceView:
    """The view of a member of so many documents that drops what does not stay, and no part."""
    members, settings = bench.members, bench.settings
    kinds = ["exact copy", "near copy"]
    if bench.job.overlaps and settings.overlap_action == "drop":
        kinds.append(overlap)
    where = [_where(member) for member in members.each]
    known = list(dict.fromkeys(where))
    owner, lost = members.places(dropped.documents)
    mine = owner == which
    member, number = members.places(dropped.survivors[mine])
    for each in np.unique(member).tolist():
        of = member == each
        number[of] = bench.texts[each].in_source(number[of])
    reason_of = np.array([known.index(place) for place in where])[member] * len(kinds)
    return SourceView(
        documents=documents,
        dropped=bench.texts[which].in_source(lost[mine]),
        reason=(reason_of + dropped.kind[mine]).astype(np.uint8),
        reasons=[f"{kind}{place}" for place in known for kind in kinds],
        survivor_source=member.astype(np.int32),
        survivor=number,
        survivors=[each.sides[0] if each.sides else each.name for each in members.each],
    )


def _without(
    bench: Workbench, which: int, view: SourceView, ranges: TokenRanges, action: str, reason: str
) -> SourceView:
    """The view with more ranges masked or cut, in documents by their numbers in the member."""
    document = bench.texts[which].in_source(ranges.document)
    ranges = ranges._replace(document=document, reason=ranges.reason + len(view.reasons))
    field = "cut" if action == "cut" else "masked"
    joined: Any = {field: TokenRanges.join([getattr(view, field), ranges])}
    return replace(view, reasons=[*view.reasons, reason], **joined)


def _where(member: Member) -> str:
    """Where the copy is that stays, for a reason: in a split, or in a benchmark."""
    if not member.against:
        return ""
    return f" in {member.name.partition('/')[0]}" if member.sides else " in a benchmark"


def _over(dataset: Dataset, side: str, member: Member, view: SourceView) -> SourceView:
    """The view on top of the one that the source was read through."""
    if member.view is None:
        return view
    below: Any = dataset.with_views({side: member.view})[side]
    return stacked(content_of(below), view)
