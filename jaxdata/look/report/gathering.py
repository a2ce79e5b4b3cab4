"""Everything that a report says, as plain values: numbers first, drawn later."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from jaxdata.base.errors import InputError, JaxdataError, StateMismatch
from jaxdata.base.progress import Advance
from jaxdata.base.version import VERSION
from jaxdata.config import Config, open_data
from jaxdata.dataset.contract import Dataset
from jaxdata.feed.loader import Loader
from jaxdata.look.dataset_summary import describe_dataset, left_out
from jaxdata.look.preview import describe_mixture, open_run
from jaxdata.look.report.batch import DrawnBatch, draw_batch
from jaxdata.look.report.curves import (
    Event,
    RunCurves,
    ShareCurves,
    logged_shares,
    run_curves,
    share_curves,
)
from jaxdata.look.report.samples import Sample, sample_documents
from jaxdata.look.run_log import LoggedRun
from jaxdata.look.states import read_state
from jaxdata.look.strategies import compare_strategies, sampled
from jaxdata.look.trace import decoder
from jaxdata.storage import local_path

MOST_DRAWN = 24
"""sources that are drawn and sampled, the largest; tables have all of them"""
_SAMPLES, _FAR_SAMPLES, _ALL_SAMPLES = 8, 3, 96
"""documents of a source; of one in a bucket, where each is a request or two; of all"""
_REMEDY = "copy its log.jsonl from the bucket"
T = TypeVar("T")


@dataclass(kw_only=True)
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
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        run: str | None = None,
        state: str | None = None,
        step: int | None = None,
        alone: bool = False,
        command: str = "",
    ) -> Self:
        """The run of a config, as far as its log or a state says it is; or only its dataset.

        Args:
            config: of the run.
            run: where its log is; None: in its `train.output`, if it is there.
            state: says how far the run is (see `read_state`).
            step: the batch to draw.
            alone: whether the config names a dataset and nothing else.
            command: the command that asks.

        Raises:
            InputError: there is no such log, state or step.
        """
        output = config.train.output
        if run is None and not alone and Path(output, "log.jsonl").is_file():
            run = output
        found = cls(
            dataset=open_data(config),
            split=config.split,
            seq_len=config.pack.seq_len,
            step=step,
            logged=LoggedRun.of(local_path(run, _REMEDY)) if run else None,
            command=command,
        )
        if not alone:
            # Pairs become lists, of which pydantic would warn.
            values = config.model_dump(mode="json", exclude_defaults=True, warnings=False)
            found.config = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        # A run of a dataset alone is not the one whose log is given.
        if not (alone and found.logged) or state is not None or step is not None:
            found._open_run(config, state)
        return found

    def _open_run(self, config: Config, state: str | None) -> None:
        """Open the run, where its data makes one, and go where it is."""
        try:
            loader, why = open_run(config)
        except JaxdataError as error:
            if state is not None or self.step is not None:
                raise
            self.notes.append(f"There is no run to show: {error}")
            return
        self.notes += [f"This run does not start as configured: {why}"] if why else []
        if self.step is not None and self.step >= len(loader):
            raise InputError(f"--step {self.step}: the run has steps 0 to {len(loader) - 1}")
        self.loader, self.resumed = loader, state is not None or self.logged is not None
        if state is not None:
            loader.set_state(read_state(state))
        elif self.logged is not None and self.logged.path is not None:
            folder = self.logged.path.parent
            try:
                loader.set_state(read_state(folder))
            except StateMismatch as error:
                self.notes.append(f"The log of {folder} is of another run: {error}")
                self.logged, self.resumed = None, False
            except InputError:  # no checkpoint yet, or none of ours
                loader.reset()
        self.follow()

    def follow(self) -> None:
        """Go to the step after the last that was logged, beyond the newest checkpoint."""
        loader, logged = self.loader, self.logged
        if loader is None or logged is None:
            return
        row = logged.points[-1].row if logged.points else None
        if row is not None:
            loader.seek(row=min(row, len(loader.rows)))
        elif logged.done > loader.step:
            loader.seek(step=min(logged.done, len(loader)))


@dataclass(kw_only=True)
class Report:
    """The parts of a report; one that cannot be had is None, and a note of its subject says why."""

    subject: Subject
    described: dict[str, Any]
    """the dataset, as `jaxdata inspect --json` prints it"""
    drawn: list[str]
    """`"<split>/<source>"` of the sources that are drawn, in the order of the dataset"""
    far: bool
    """whether some sources lie in a bucket, of which less is read"""
    left_out: list[tuple[str, str, str, int]]
    """source, kind, reason and records, most first"""
    samples: list[Sample]
    packing: list[dict[str, Any]] | None
    """as `jaxdata inspect --json` prints it"""
    planned: tuple[int, int]
    """documents that were planned with each strategy, and all of the split"""
    mixture: dict[str, Any] | None = None
    """the plan, as `jaxdata preview --json` prints it"""
    curves: ShareCurves | None = None
    run: RunCurves | None = None
    batch: DrawnBatch | None = None
    facts: dict[str, str] = field(default_factory=dict)
    """what made the page, by name: date, version, command, fingerprint"""

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

    `progress` is called with the sources that are done, and all of them.
    """
    dataset = subject.dataset
    sources = {name: dataset[name] for name in sorted(dataset.names)}
    largest = sorted(sources, key=lambda name: -int(sources[name].lengths.sum()))[:MOST_DRAWN]
    shown = [name for name in sources if name in largest]
    trained = [sources[f"{subject.split}/{n}"] for n in dataset.splits.get(subject.split, [])]
    some, samples = sampled(trained), list[Sample]()
    for done, name in enumerate(shown):
        progress(done, len(shown))
        most = _FAR_SAMPLES if sources[name].is_far else max(_ALL_SAMPLES // len(shown), 1)
        samples += sample_documents(name, sources[name], dataset, min(most, _SAMPLES))
    report = Report(
        subject=subject,
        described=describe_dataset(dataset),
        drawn=shown,
        far=any(each.is_far for each in sources.values()),
        left_out=sorted(
            ((name, *each) for name, docs in sources.items() for each in left_out(docs)),
            key=lambda each: -each[3],
        ),
        samples=samples,
        packing=_part(subject, lambda: compare_strategies(some, seq_len=subject.seq_len)),
        planned=(sum(map(len, some)), sum(map(len, trained))),
    )
    add_run(report)
    return report


def add_run(report: Report) -> None:
    """Add the run as it is now, instead of what the report says of it."""
    subject = report.subject
    loader, dataset = subject.loader, subject.dataset
    report.facts = {
        "written": datetime.now().astimezone().isoformat(" ", "seconds"),
        "jaxdata": VERSION,
        "command": subject.command,
    }
    if loader is not None:
        report.facts["fingerprint of the run"] = loader.get_state()["fingerprint"]
        if report.mixture is None:
            report.mixture = _part(subject, lambda: describe_mixture(loader.rows))
        report.curves = _part(subject, lambda: share_curves(loader, resumed=subject.resumed))
        step = min(loader.step, len(loader) - 1) if subject.step is None else subject.step
        if step >= 0:
            report.batch = _part(subject, lambda: draw_batch(loader, decoder(dataset), step))
    elif subject.logged is not None:
        report.curves = logged_shares(subject.logged)
    if subject.logged is not None:
        report.run = run_curves(subject.logged, report.curves, loader)


def _part(subject: Subject, make: Callable[[], T]) -> T | None:
    """A part; where it cannot be made, a note of why."""
    try:
        return make()
    except JaxdataError as error:
        note = f"A part cannot be shown: {error}"
        subject.notes += [note] if note not in subject.notes else []
        return None
