"""Everything that a report says, as plain values: numbers first, drawn later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from jaxdata.documents.base import Documents, far
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import JaxdataError
from jaxdata.feed.loader import Loader
from jaxdata.look.dataset_summary import describe_dataset
from jaxdata.look.explanation import decoder
from jaxdata.look.validation import describe_mixture
from jaxdata.progress import Advance
from jaxdata.report.drawn_batch import DrawnBatch, draw_batch
from jaxdata.report.left_out import BadRecord, LeftOut, bad_records, left_out
from jaxdata.report.lengths import Histogram, length_histogram
from jaxdata.report.samples import FAR_SAMPLES, Sample, sample_documents
from jaxdata.report.share_curves import ShareCurves, share_curves
from jaxdata.report.strategy_costs import Comparison, compare
from jaxdata.report.token_facts import TokenFacts, token_facts
from jaxdata.report.view_facts import ViewFacts, view_facts

MOST_DRAWN = 24
"""sources that are drawn and sampled, the largest; tables have all of them"""
_SAMPLES = 8  # documents of a source
_ALL_SAMPLES = 96
_PARTS = 5  # beside lengths and samples of each source: dataset, views, tokens, packing, run

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a report is about.

    Attributes:
        dataset: where the documents are.
        split: the split that training reads.
        seq_len: slots of a row.
        loader: a run over them, at its first row or where a state set it; None if there is none.
        resumed: whether a state set it.
        step: the batch to draw; by default the loader's next.
        notes: what a reader should know beforehand, such as why there is no run.
    """

    dataset: Dataset
    split: str
    seq_len: int
    loader: Loader | None = None
    resumed: bool = False
    step: int | None = None
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
    """whether some of it lies in a bucket, of which less is read"""
    left_out: list[LeftOut]
    bad_records: list[BadRecord]
    tokens: TokenFacts | None = None
    packing: Comparison | None = None
    mixture: dict[str, Any] | None = None
    """the plan, as `jaxdata preview --json` prints it"""
    curves: ShareCurves | None = None
    batch: DrawnBatch | None = None
    views: list[ViewFacts] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(subject: Subject, progress: Advance = lambda _done, _total: None) -> Report:
    """Compute a report from lengths and plans, reading a few documents of each source.

    `progress` is called with the parts that are done, and all of them.
    """
    dataset, decode = subject.dataset, decoder(subject.dataset)
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
        samples=_samples(shown, decode, done),
        far=any(far(each) is not None for each in sources.values()),
        left_out=left_out(dataset),
        bad_records=bad_records(dataset),
        notes=list(subject.notes),
    )
    told = report.notes
    report.views = done(view_facts(dataset, told))
    report.tokens = done(_part(told, "tokens", lambda: token_facts(dataset, shown)))
    report.packing = done(_part(told, "packing", lambda: compare(trained, seq_len=subject.seq_len)))
    if subject.loader is not None:
        _add_run(report, subject, subject.loader, decode)
    progress(parts, parts)
    return report


def _add_run(report: Report, subject: Subject, loader: Loader, decode: Any) -> None:
    told = report.notes
    report.mixture = _part(told, "the curriculum", lambda: describe_mixture(loader.rows))
    report.curves = _part(
        told, "the curriculum", lambda: share_curves(loader, resumed=subject.resumed)
    )
    step = min(loader.step, len(loader) - 1) if subject.step is None else subject.step
    if step >= 0:
        report.batch = _part(told, "the batch", lambda: draw_batch(loader, decode, step))


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
    sources: dict[str, Documents], decode: Any, done: Callable[[Any], Any]
) -> list[Sample]:
    most = max(1, min(_SAMPLES, _ALL_SAMPLES // max(len(sources), 1)))
    return [
        sample
        for name, documents in sources.items()
        for sample in done(
            sample_documents(
                name, documents, decode, most if far(documents) is None else min(most, FAR_SAMPLES)
            )
        )
    ]
