"""Which document of a cluster stays, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import Ints
from jaxdata.dedup.members import Members, Numbers
from jaxdata.dedup.search import Clusters

FIRST, LONGEST = "first", "longest"
EXACT_COPY, NEAR_COPY, TAINTED = range(3)


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


def choose(members: Members, clusters: Clusters, documents: Numbers, ranks: Ints) -> Dropped:
    """Choose a survivor in each cluster, and drop the others.

    Documents of members that lose none come first, then those without n-grams of benchmarks, then
    those of earlier members, then those of smaller rank, then those with smaller numbers.

    Args:
        members: where the documents are from.
        clusters: their labels.
        documents: those in a cluster with others, and those with n-grams of benchmarks.
        ranks: (documents,) in order of preference among documents of one member.
    """
    member, _ = members.places(documents)
    stays = np.array([each.against for each in members.each])[member]
    label = clusters.near[documents]
    tainted = np.isin(documents, clusters.tainted, assume_unique=True)
    order = np.lexsort((documents, ranks, member, tainted, ~stays, label))
    begins = np.append(True, label[order][1:] != label[order][:-1])[: len(order)]
    cluster = np.cumsum(begins) - 1
    survivor, sizes = documents[order][begins], np.bincount(cluster)
    lost = ~stays[order] & (~begins | tainted[order])
    chosen, which = documents[order][lost], cluster[lost]
    back = np.argsort(chosen)
    chosen, which = chosen[back], which[back]
    stay = survivor[which]
    exact = clusters.exact[chosen] == clusters.exact[stay]
    kind = np.where(exact, EXACT_COPY, NEAR_COPY).astype(np.uint8)
    copy_of_against = stays[order][begins][which]
    mine = np.isin(chosen, clusters.tainted, assume_unique=True) & ~copy_of_against
    kind[mine] = TAINTED
    stay[mine] = clusters.tainted_by[np.searchsorted(clusters.tainted, chosen[mine])]
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
    member, _ = members.places(of)
    against = np.array([each.against for each in members.each])[member]
    moved = np.isin(of, leaving) | against & ~np.isin(of, survivors)
    keys = labels[of].astype(np.int64) * 2 + moved
    _, first, cluster = np.unique(keys, return_index=True, return_inverse=True)
    found = labels.copy()
    found[of] = of[first][cluster]
    return found


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
