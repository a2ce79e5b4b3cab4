"""`deduplicate`: what a user names is searched for duplicates, and a view made that drops them."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.facts import differences, digest
from jaxdata.base.numbers import Positive, validated
from jaxdata.base.progress import Advance
from jaxdata.base.wording import nearest
from jaxdata.converter.engines import EngineName, choose_engine
from jaxdata.dataset.contract import source_names
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import ViewEntry
from jaxdata.dataset.opening import ConvertedDataset, open_converted
from jaxdata.dataset.views.writing import check_name, other_side, write_views
from jaxdata.dedup.benchmarks import overlaps, read_benchmarks
from jaxdata.dedup.job import DedupJob, Search, Stage
from jaxdata.dedup.members import Member, Members, open_side
from jaxdata.dedup.minhash import find_clusters
from jaxdata.dedup.outcome import DedupReport, drop_copies, views_of_sources
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.spans import repeated_spans

MEMORY = 2**30
_UNITS, _SMALLEST, _LARGEST = 256, 2**20, 2**26
"""Units of a large dataset; and tokens of one."""


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
    benchmarks = read_benchmarks(files, text_key)
    members = Members([*ours, *others, *(member for member, _ in benchmarks)])
    total = sum(entry.tokens for entry in opened.manifest.sources.values())
    unit = unit_tokens or min(max(_SMALLEST, total // _UNITS), _LARGEST)
    job = DedupJob(opened.store.url, name, chosen, members, unit)
    _check_no_pairs(job)
    with leased(opened.store, [job.folder]) as lease:
        search = Search(replace(job, lease=lease), places_of, memory, stage)
        _begin(search, benchmarks)
        read = {"text_key": text_key if files else None, "documents": documents}
        views = _make_views(search, opened, read)
        search.bench.unfinished.end()
    if not opened.store.list(f"{job.folder}/"):
        opened.store.delete(f"{job.folder}/")
    pairs = zip(members.each, search.bench.texts, strict=True)
    before = [member.name for member, texts in pairs if texts.hashed(chosen)]
    refused, seconds = search.compared - search.alike, time.monotonic() - started
    return DedupReport(job.url, name, views, seconds, before, search.compared, refused)


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


def _begin(search: Search, benchmarks: list[tuple[Member, bytes]]) -> None:
    """Record what is searched; if units were finished before, check that they fit."""
    unfinished, facts = search.bench.unfinished, search.job.facts()
    if not unfinished.resumes(lambda was: [*differences(json.loads(was), facts).values()]):
        unfinished.begin(json.dumps(facts).encode())
    for member, table in benchmarks:
        unfinished.note(member.table, table)


def _make_views(
    search: Search, dataset: ConvertedDataset, read: dict[str, Any]
) -> Mapping[str, ViewEntry]:
    """Texts to hashes, hashes to clusters, clusters to the views that are published."""
    job, bench = search.job, search.bench
    clusters, runs = find_clusters(search)
    shared = overlaps(bench, runs)
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
    split, _, source = name.partition("/")
    dataset.source(split, source)  # raises where there is none
    return name, (name,)
