"""Everything that a report says, as plain values: numbers first, drawn later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, TypeVar

import numpy as np

from jaxdata.base.errors import DatasetError, JaxdataError
from jaxdata.base.progress import Advance
from jaxdata.base.version import VERSION
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.documents import Documents
from jaxdata.feed.loader import Loader
from jaxdata.look.dataset_summary import describe_dataset
from jaxdata.look.preview import describe_mixture, work_check
from jaxdata.look.report.batch import DrawnBatch, draw_batch
from jaxdata.look.report.run_curves import RunCurves, logged_shares, run_curves
from jaxdata.look.report.samples import (
    FAR_SAMPLES,
    Sample,
    TokenFacts,
    sample_documents,
    token_facts,
)
from jaxdata.look.report.share_curves import Event, ShareCurves, share_curves
from jaxdata.look.report.view_facts import ViewFacts, view_facts
from jaxdata.look.run_log import LoggedRun
from jaxdata.look.strategies import Comparison, compare
from jaxdata.look.terminal import printable
from jaxdata.look.trace import decoder
from jaxdata.storage import Store

_RECORDS = 3  # of each source
_CHARACTERS = 200


@dataclass(frozen=True)
class LeftOut:
    """One reason for which records of a source were left out."""

    source: str
    kind: str
    """`"quarantined"`: bad records; `"dropped"`: left out on purpose"""
    reason: str
    records: int


@dataclass(frozen=True)
class BadRecord:
    """A quarantined record."""

    source: str
    place: str
    reason: str
    raw: str
    """the beginning of the record, printable"""


def left_out(dataset: Dataset) -> list[LeftOut]:
    """The reasons by source, as conversions counted them, most records first."""
    found: list[LeftOut] = []
    for name in sorted(dataset.names):
        documents = dataset[name]
        if isinstance(documents, ConvertedDocuments):
            found += _of(name, documents.entry.statistics)
    return sorted(found, key=lambda each: -each.records)


def _of(name: str, statistics: dict[str, Any]) -> Iterator[LeftOut]:
    for kind in ("quarantined", "dropped"):
        for reason, records in statistics.get(kind, {}).items():
            if records:
                yield LeftOut(printable(name), kind, printable(reason), records)


def bad_records(dataset: Dataset) -> list[BadRecord]:
    """The first quarantined records of each source that still has the file of them."""
    found: dict[tuple[str, str], list[BadRecord]] = {}
    for name in sorted(dataset.names):
        documents = dataset[name]
        if isinstance(documents, ConvertedDocuments) and any(
            documents.entry.statistics.get("quarantined", {}).values()
        ):
            for folder in (documents.name, documents.name.rpartition("/")[0]):
                place = (documents.store.url, f"{folder}/quarantine.jsonl")
                if place not in found and documents.store.exists(place[1]):
                    found[place] = list(_first(documents.store, place[1], name))
    return [record for records in found.values() for record in records]


def _first(store: Store, file: str, name: str) -> Iterator[BadRecord]:
    """The first records of a file; none if it cannot be read, as it is only a list to look at."""
    try:
        begin = bytes(next(iter(store.scan(file)), b""))
    except (DatasetError, OSError):
        return
    for line in begin.split(b"\n")[:-1][:_RECORDS]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield _bad(name, record)


def _bad(source: str, record: dict[str, Any]) -> BadRecord:
    places = ("file", "member", "line", "row", "piece")
    place = ", ".join(f"{key} {record[key]}" for key in places if record.get(key) is not None)
    raw = record.get("raw") or record.get("raw_base64") or ""
    return BadRecord(
        printable(source),
        printable(place),
        printable(str(record.get("reason", ""))),
        printable(str(raw)[:_CHARACTERS]),
    )


_AT_ONCE = 2**22  # documents


@dataclass(frozen=True)
class Histogram:
    """Documents, and their tokens, by length; bin *k* holds lengths of `[edges[k], edges[k + 1])`.

    Edges are powers of two; empty bins at both ends are left out.
    """

    edges: list[int]
    """(bins + 1,)"""
    documents: list[int]
    """(bins,)"""
    tokens: list[int]
    """(bins,) of these documents, with EOD"""

    @property
    def document_shares(self) -> list[float]:
        """Of all documents, by bin."""
        return _shares(self.documents)

    @property
    def token_shares(self) -> list[float]:
        """Of all tokens, by bin."""
        return _shares(self.tokens)


def length_histogram(documents: Documents) -> Histogram:
    """Count the lengths of a source.

    >>> from jaxdata.dataset.array_documents import ArrayDocuments
    >>> length_histogram(ArrayDocuments([[1], [1, 2], [1, 2, 3], [1] * 9]))
    Histogram(edges=[1, 2, 4, 8, 16], documents=[1, 2, 0, 1], tokens=[1, 5, 0, 9])
    """
    lengths = documents.lengths
    counts, tokens = np.zeros(66, np.int64), np.zeros(66, np.int64)
    for first in range(0, len(lengths), _AT_ONCE):
        some = lengths[first : first + _AT_ONCE].astype(np.int64)
        bins = np.frexp(some)[1]  # the bits of each: frexp is exact below 2^53
        counts += np.bincount(bins, minlength=66)
        tokens += np.bincount(bins, some, minlength=66).astype(np.int64)  # exact below 2^53
    used = np.flatnonzero(counts)
    if not len(used):
        return Histogram([], [], [])
    first, last = int(used[0]), int(used[-1])
    edges = [0 if bits == 0 else 2 ** (bits - 1) for bits in range(first, last + 2)]
    return Histogram(edges, counts[first : last + 1].tolist(), tokens[first : last + 1].tolist())


def _shares(counts: list[int]) -> list[float]:
    whole = sum(counts) or 1
    return [count / whole for count in counts]


MOST_DRAWN = 24
"""sources that are drawn and sampled, the largest; tables have all of them"""
_SAMPLES = 8  # documents of a source
_ALL_SAMPLES = 96
_PARTS = 5  # beside lengths and samples of each source: dataset, views, tokens, packing, run

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The dataset, and maybe the run, that a report is about.

    Attributes:
        dataset: where the documents are.
        split: the split that training reads.
        seq_len: slots of a row.
        loader: a run over them, at its first row or where a state set it; None if there is none.
        resumed: whether a state set it.
        step: the batch to draw; by default the loader's next.
        logged: what the log of a run says; of a run with a loader, of that one.
        command: the command that asks for the report.
        config: the config of the run, as YAML.
        notes: what a reader should know beforehand, such as why there is no run.
    """

    dataset: Dataset
    split: str
    seq_len: int
    loader: Loader | None = None
    resumed: bool = False
    step: int | None = None
    logged: LoggedRun | None = None
    command: str = ""
    config: str = ""
    notes: Sequence[str] = ()


@dataclass
class Report:
    """The parts of a report; one that cannot be had is None, and `notes` say why."""

    url: str
    described: dict[str, Any]
    """the dataset, as `jaxdata inspect --json` prints it"""
    drawn: list[str]
    """`"<split>/<source>"` of the sources that are drawn, in the order of the dataset"""
    lengths: dict[str, Histogram]
    seq_len: int
    split: str
    samples: list[Sample]
    far: bool
    """whether some sources lie in a bucket, of which less is read"""
    left_out: list[LeftOut]
    bad_records: list[BadRecord]
    tokens: TokenFacts | None = None
    packing: Comparison | None = None
    mixture: dict[str, Any] | None = None
    """the plan, as `jaxdata preview --json` prints it"""
    curves: ShareCurves | None = None
    run: RunCurves | None = None
    batch: DrawnBatch | None = None
    work: str = ""
    """how evenly hosts share the work of a step"""
    views: list[ViewFacts] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """what made the page, by name: date, version, command, fingerprint"""
    config: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        """What happens to the run, planned and logged; of a run that ended, not where it is."""
        logged = self.run.events if self.run else []
        ended = any(each.kind == "end" for each in logged)
        planned = self.curves.events if self.curves else []
        kept = [each for each in planned if not (ended and each.kind == "now")]
        return sorted([*kept, *logged], key=lambda each: each.row)


def gather(subject: Subject, progress: Advance = lambda _done, _total: None) -> Report:
    """Compute a report from lengths and plans, reading a few documents of each source.

    `progress` is called with the parts that are done, and all of them.
    """
    dataset = subject.dataset
    sources = {name: dataset[name] for name in sorted(dataset.names)}
    drawn = _largest(sources)
    shown = {name: sources[name] for name in drawn}
    trained = [sources[f"{subject.split}/{n}"] for n in dataset.splits.get(subject.split, [])]
    parts, numbers = 2 * len(shown) + _PARTS, count(1)
    progress(0, parts)

    def done(part: T) -> T:
        progress(next(numbers), parts)
        return part

    report = Report(
        url=dataset.url,
        described=done(describe_dataset(dataset)),
        drawn=drawn,
        lengths={name: done(length_histogram(each)) for name, each in shown.items()},
        seq_len=subject.seq_len,
        split=subject.split,
        samples=_samples(shown, dataset, done),
        far=any(each.is_far for each in sources.values()),
        left_out=left_out(dataset),
        bad_records=bad_records(dataset),
        notes=list(subject.notes),
    )
    told = report.notes
    report.views = done(view_facts(dataset, told))
    report.tokens = done(_part(told, "tokens", lambda: token_facts(dataset, shown)))
    report.packing = done(_part(told, "packing", lambda: compare(trained, seq_len=subject.seq_len)))
    add_run(report, subject)
    progress(parts, parts)
    return report


def add_run(report: Report, subject: Subject) -> None:
    """Add the run as it is now, instead of what the report says of it."""
    loader, told = subject.loader, report.notes
    report.facts = {
        "written": datetime.now().astimezone().isoformat(" ", "seconds"),
        "jaxdata": VERSION,
        "command": subject.command,
    }
    report.config = subject.config
    if loader is not None:
        report.facts["fingerprint of the run"] = loader.get_state()["fingerprint"]
        if report.mixture is None:
            report.mixture = _part(told, "the plan", lambda: describe_mixture(loader.rows))
        resumed = subject.resumed
        report.curves = _part(told, "the run", lambda: share_curves(loader, resumed=resumed))
        step = min(loader.step, len(loader) - 1) if subject.step is None else subject.step
        if step >= 0:
            decode = decoder(subject.dataset)
            report.batch = _part(told, "the batch", lambda: draw_batch(loader, decode, step))
            report.work = work_check(loader).says
    elif subject.logged is not None:
        report.curves = logged_shares(subject.logged)
    if subject.logged is not None:
        report.run = run_curves(subject.logged, report.curves, loader)


def _part(told: list[str], what: str, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except JaxdataError as error:
        told.append(f"{what} cannot be shown: {error}")
        return None


def _largest(sources: dict[str, Documents]) -> list[str]:
    sizes = {name: int(each.lengths.sum()) for name, each in sources.items()}
    kept = sorted(sizes, key=lambda name: -sizes[name])[:MOST_DRAWN]
    return [name for name in sources if name in kept]


def _samples(
    sources: dict[str, Documents], dataset: Dataset, done: Callable[[Any], Any]
) -> list[Sample]:
    most = max(1, min(_SAMPLES, _ALL_SAMPLES // max(len(sources), 1)))
    decode, found = decoder(dataset), list[Sample]()
    for name, documents in sources.items():
        count = min(most, FAR_SAMPLES) if documents.is_far else most
        found += done(sample_documents(name, documents, dataset, decode, count))
    return found
