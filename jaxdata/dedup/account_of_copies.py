"""The account of a search: what each source keeps and loses, and clusters by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.dedup.members import Members
from jaxdata.dedup.search_stages import Clusters
from jaxdata.dedup.survivors import TAINTED, Dropped, clustered
from jaxdata.format.manifest import ViewEntry
from jaxdata.ragged import Ints
from jaxdata.views.account import account_lines
from jaxdata.wording import counted


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
