"""`deduplicate`: what a user names is searched for duplicates, and a view made that drops them.

Of a cluster one document stays; what was found becomes views of the sources, and its account.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError, counted, differences, digest, nearest
from jaxdata.base.numbers import Positive, validated
from jaxdata.base.progress import Advance
from jaxdata.converter.engines import EngineName, choose_engine
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.opening import ConvertedDataset, Dataset, open_converted, source_names
from jaxdata.dataset.views import source_view
from jaxdata.dataset.views.source_view import SourceView, TokenRanges, account_lines, stacked
from jaxdata.dataset.views.writing import check_name, other_side, write_views
from jaxdata.dedup import benchmarks
from jaxdata.dedup.benchmarks import NO_OVERLAPS, Overlaps
from jaxdata.dedup.job import DedupJob, Search, Stage, Workbench
from jaxdata.dedup.members import Member, Members, Numbers, open_side
from jaxdata.dedup.minhash import Clusters, find_clusters
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.spans import repeated_spans

MEMORY = 2**30
_UNITS, _SMALLEST, _LARGEST = 256, 2**20, 2**26
"""Units of a large dataset; and tokens of one."""


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


def _silent(_label: str) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _done, _total: None)


@validated
def deduplicate(
    dataset: str | os.PathLike[str],
    name: str,
    *,
    sources: Sequence[str] | None = None,
    against: Iterable[str] = (),
    split: str = "train",
    documents: str | None = None,
    text_key: str = "text",
    workers: Positive | None = None,
    engine: EngineName = "local",
    memory: int = MEMORY,
    unit_tokens: int | None = None,
    stage: Stage = _silent,
    **settings: Any,
) -> DedupReport:
    """Find duplicates and make a view that drops them; an unfinished search is resumed.

    Args:
        dataset: a folder or URL, which the view is written to.
        name: what the view is called, as in `source("train", "web", documents="d1")`.
        sources: those of `split` that may lose documents, the preferred ones first; None for all.
        against: splits or sources of the dataset, and files, folders, globs or URLs of benchmarks:
            what they have is dropped from `sources`, and they stay as they are.
        split: where `sources` are.
        documents: a view that `sources` are read through; the new one drops what it drops, too.
        text_key: the key of the texts in benchmarks; several with commas.
        workers: worker processes; None for one per core. The view does not depend on it.
        engine: "local" for processes of this machine, "ray" for a cluster. The view does not depend
            on it.
        memory: bytes that each process takes to sort, about. The view does not depend on it.
        unit_tokens: tokens of a unit of work, about; None for as many as suit the dataset. The view
            does not depend on it.
        stage: shows progress, as `jaxdata.base.progress.progress_bar` does.
        **settings: what counts as a copy: see :class:`~jaxdata.dedup.settings.DedupSettings`.

    Raises:
        InputError: a source, file, view or setting is wrong; the message says what to do.
        DatasetError: another process makes the same view, or the dataset cannot be written.
        WorkerDied: workers were killed repeatedly over the same unit. The same call resumes.

    >>> report = deduplicate("data/mine", "d1", sources=["web", "wiki"],
    ...                      against=["val"])  # doctest: +SKIP
    """
    started = time.monotonic()
    check_name(name)
    if documents == name:
        raise InputError(f"the view {documents!r} cannot be made of itself: use another name")
    places_of = choose_engine(engine, workers)
    chosen = DedupSettings.checked(**settings)
    opened = open_converted(dataset, ", which can have no views: jaxdata convert its text")
    ours = sources_of(opened, split, sources, documents)
    others, files = against_of(opened, against, ours)
    if chosen.decontaminate and not files:
        raise InputError(
            f"decontaminate={chosen.decontaminate!r} compares with files of benchmarks: name them "
            "with --against"
        )
    tables = benchmarks.read_benchmarks(files, text_key)
    members = Members([*ours, *others, *(member for member, _ in tables)])
    total = sum(entry.tokens for entry in opened.manifest.sources.values())
    unit = unit_tokens or min(max(_SMALLEST, total // _UNITS), _LARGEST)
    job = DedupJob(opened.store.url, name, chosen, members, unit)
    _check_no_pairs(job)
    with leased(opened.store, [job.folder]) as lease:
        search = Search(replace(job, lease=lease), places_of, memory, stage)
        _begin(search, tables)
        read = {"text_key": text_key if files else None, "documents": documents}
        views = _make_views(search, opened, read)
        search.bench.unfinished.end()
    if not opened.store.list(f"{job.folder}/"):
        opened.store.delete(f"{job.folder}/")
    pairs = zip(members.each, search.bench.texts, strict=True)
    before = [member.name for member, texts in pairs if texts.hashed(chosen)]
    refused, seconds = search.compared - search.alike, time.monotonic() - started
    return DedupReport(job.url, name, views, seconds, before, search.compared, refused)


def sources_of(
    dataset: ConvertedDataset, split: str, names: Sequence[str] | None, view: str | None
) -> list[Member]:
    """The sources that may lose documents, in the order given; None for all of the split.

    The two sides of preference pairs are one.

    Raises:
        InputError: a source does not exist, is named twice, or is read through no such view.
    """
    every = source_names(dataset, split)
    given = every if names is None else names
    full = [name if _is_source(dataset, name) else f"{split}/{name}" for name in given]
    members = _members(dataset, full, view=view, against=False)
    if names is not None and len({*full}) < len(full):
        raise InputError(f"a source is named twice in {', '.join(names)}")
    return members


def against_of(
    dataset: ConvertedDataset, names: Iterable[str], ours: Sequence[Member]
) -> tuple[list[Member], list[str]]:
    """The sources of the dataset that texts are compared with, and the names of benchmark files.

    A name is a split of the dataset, a source of one, or else files.
    """
    own = {side for member in ours for side in member.sides}
    full: list[str] = []
    files = []
    for name in names:
        if name in dataset.splits:
            full += [f"{name}/{source}" for source in dataset.splits[name]]
        elif _is_source(dataset, name):
            full.append(name)
        elif "://" in name or "*" in name or Path(name).expanduser().exists():
            files.append(name)
        else:
            known = sorted([*dataset.splits, *dataset.names])
            raise InputError(
                f"against={name!r} is neither a split or source of {dataset.url} "
                f"({', '.join(known)}) nor a file{nearest(name, known)}"
            )
    members = _members(dataset, [name for name in full if name not in own], against=True)
    return members, files


def _is_source(dataset: ConvertedDataset, name: str) -> bool:
    """Whether a name with its split is a source, or preference pairs."""
    return name in dataset.names or f"{name}/chosen" in dataset.names


def _members(
    dataset: ConvertedDataset, names: Iterable[str], *, view: str | None = None, against: bool
) -> list[Member]:
    found: dict[str, Member] = {}
    for name in names:
        pair, sides = _sides(dataset, name)
        if pair not in found:
            opened = [open_side(dataset, side, view) for side in sides]
            fingerprint = digest([side.fingerprint for side in opened])
            found[pair] = Member(pair, len(opened[0].lengths), fingerprint, sides, view, against)
    return list(found.values())


def _sides(dataset: ConvertedDataset, name: str) -> tuple[str, tuple[str, ...]]:
    """The name of what a source belongs to, and the sources whose documents are one there."""
    one = name if name in dataset.names else f"{name}/chosen"
    if one in dataset.names and (other := other_side(one, dataset.manifest)):
        return one.rpartition("/")[0], tuple(sorted([one, other]))  # the chosen one first
    return name, (name,)


def _check_no_pairs(job: DedupJob) -> None:
    """Raise InputError where documents of a source have two sides, and a part of one would go."""
    action = job.settings.overlap_action
    if job.settings.repeats:
        setting, remedy = f"repeats={job.settings.repeats}", "repeats=0"
    elif job.overlaps and action != "drop":
        setting, remedy = f"overlap_action={action!r}", "overlap_action='drop'"
    else:
        return
    for member in job.members.each:
        if len(member.sides) > 1 and not member.against:
            raise InputError(
                f"{setting}: {member.name} has preference pairs, whose two sides begin alike; "
                f"expected sources without: name them with --sources, or use {remedy}"
            )


def _begin(search: Search, tables: list[tuple[Member, bytes]]) -> None:
    """Record what is searched; if units were finished before, check that they fit."""
    unfinished, facts = search.bench.unfinished, search.job.facts()
    if not unfinished.resumes(lambda was: [*differences(json.loads(was), facts).values()]):
        unfinished.begin(json.dumps(facts).encode())
    for member, table in tables:
        unfinished.note(member.table, table)


def _make_views(
    search: Search, dataset: ConvertedDataset, read: dict[str, Any]
) -> Mapping[str, ViewEntry]:
    """Texts to hashes, hashes to clusters, clusters to the views that are published."""
    job, bench = search.job, search.bench
    clusters, runs = find_clusters(search)
    shared = benchmarks.overlaps(bench, runs)
    dropped = drop_copies(bench, clusters, shared)
    spans = repeated_spans(search, dropped.documents)
    members = job.members.each
    prints = {one.name: [dataset[side].fingerprint for side in one.sides] for one in members}
    facts = {name: fact for name, fact in job.facts().items() if name != "unit_tokens"}
    views = views_of_sources(bench, dropped, shared, spans, dataset)
    return write_views(
        dataset.store,
        job.name,
        views,
        parameters={"command": "dedup", **facts, "sides": prints, **read},
        made_of={side: dataset[side].fingerprint for side in views},
    )


EXACT_COPY, NEAR_COPY, TAINTED = range(3)


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
    stays = np.array([each.against for each in members.each])[member]
    label = clusters.near[documents]
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
            mine = number[owner == which]
            ranges = benchmarks.benchmark_spans(bench, which, mine, overlaps.shared, dataset)
            view = _without(bench, which, view, ranges, settings.overlap_action, reason)
        if settings.repeats:
            owner, number = members.places(spans.document)
            ranges = spans._replace(document=number).take(owner == which)
            view = _without(bench, which, view, ranges, settings.repeats_action, "repeated span")
        for side in member.sides:
            views[side] = view
            if member.view is not None:
                below: Any = dataset.with_views({side: member.view})[side]
                views[side] = stacked(source_view.content_of(below), view)
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
