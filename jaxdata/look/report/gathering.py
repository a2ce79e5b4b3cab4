"""Everything that a report says, as plain values: numbers first, drawn later.

Of a dataset it has the beginnings of documents, token by token; of a batch segments, loss and
padding.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import yaml

from jaxdata.base.errors import InputError, JaxdataError, StateMismatch, counted
from jaxdata.base.progress import Advance
from jaxdata.base.ragged import AnyArray, Bools, equal_runs
from jaxdata.base.version import VERSION
from jaxdata.config import Config, open_data
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import Dataset
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.feed.loader import Loader
from jaxdata.look.dataset_summary import compare_strategies, describe_dataset, sampled
from jaxdata.look.document import Fields, slots_of, tokens_of
from jaxdata.look.preview import describe_mixture, open_run
from jaxdata.look.report.curves import Event, LoggedRun, RunCurves, ShareCurves
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.look.trace import Decode, Tracer, came_from, decoder, origin_of, read_state
from jaxdata.storage import local_path

MOST_DRAWN = 24
"""sources that are drawn and sampled, the largest; tables have all of them"""
_SAMPLES, _FAR_SAMPLES, _ALL_SAMPLES = 8, 3, 96
"""documents of a source; of one in a bucket, where each is a request or two; of all"""
_TOKENS = 500  # of a document that is shown
_DRAWN_ROWS, _SEGMENTS = 8, 800
_DRAWN_CHARACTERS = 320
_CHARACTER, _MARGIN, _PERCENT = 6.4, 9, 8.2  # of a label, beside it, of a row; pixels
_REMEDY = "copy its log.jsonl from the bucket"
T = TypeVar("T")


class Sample(NamedTuple):
    """The beginning of a document."""

    source: str
    document: int
    """the number of the document in the source, through whatever view it is read"""
    first: int
    """the token of that document at which this begins: 0 unless a view cuts it"""
    length: int
    """tokens, with EOD"""
    origin: str
    """the document's input file and line; empty if unknown"""
    kept: dict[str, str]
    pieces: list[tuple[str, bool]] | None
    """the printable text of each token, and whether it has loss as a target; tokens that share a
    character, or whose borders are not known, are one piece. None if no tokenizer is known"""
    cut: bool
    """whether the document goes on"""


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
    batch: dict[str, Any] | None = None
    """see `draw_batch`"""
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
    some, samples, described = sampled(trained), list[Sample](), describe_dataset(dataset)
    for done, name in enumerate(shown):
        progress(done, len(shown))
        most = _FAR_SAMPLES if sources[name].is_far else max(_ALL_SAMPLES // len(shown), 1)
        samples += sample_documents(name, sources[name], dataset, min(most, _SAMPLES))
    report = Report(
        subject=subject,
        described=described,
        drawn=shown,
        far=any(each.is_far for each in sources.values()),
        left_out=sorted(_left_out(described), key=lambda each: (-each[3], each[0])),
        samples=samples,
        packing=_part(subject, lambda: compare_strategies(some, seq_len=subject.seq_len)),
        planned=(sum(map(len, some)), sum(map(len, trained))),
    )
    add_run(report)
    return report


def _left_out(described: Mapping[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """What conversions quarantined as bad or dropped on purpose: source, kind, reason, records."""
    for name, source in described["sources"].items():
        for kind in ("quarantined", "dropped"):
            reasons = source.get("statistics", {}).get(kind, {})
            yield from ((name, kind, reason, n) for reason, n in reasons.items() if n)


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
        report.curves = _part(subject, lambda: ShareCurves.of(loader, resumed=subject.resumed))
        step = min(loader.step, len(loader) - 1) if subject.step is None else subject.step
        if step >= 0:
            report.batch = _part(subject, lambda: draw_batch(loader, decoder(dataset), step))
    elif subject.logged is not None:
        report.curves = ShareCurves.of_log(subject.logged)
    if subject.logged is not None:
        report.run = RunCurves.of(subject.logged, report.curves, loader)


def _part(subject: Subject, make: Callable[[], T]) -> T | None:
    """A part; where it cannot be made, a note of why."""
    try:
        return make()
    except JaxdataError as error:
        note = f"A part cannot be shown: {error}"
        subject.notes += [note] if note not in subject.notes else []
        return None


def sample_documents(
    name: str, documents: Documents, dataset: Dataset, count: int
) -> Iterator[Sample]:
    """Documents spread evenly over a source."""
    decode = decoder(dataset)
    for document in spread(len(documents), count):
        origin, pieces = origin_of(documents, document), None
        _, number, first = in_source(documents, document)
        if decode is not None:
            ids = documents.read(document, 0, _TOKENS)
            loss = np.ones(len(ids), bool)
            if documents.masked:
                given = (np.array([each]) for each in (document, 0, len(ids)))
                loss = documents.masks(*given).views.array(np.uint8) == 1
            texts = token_texts(ids, loss, decode, dataset.token_bytes)
            pieces = [(printable_lines(text), has) for text, has in texts]
        length = int(documents.lengths[document])
        kept = {printable(key): printable(str(each)[:200]) for key, each in origin["kept"].items()}
        came, cut = came_from(origin), length > _TOKENS
        yield Sample(name, number, first, length, came, kept, pieces, cut)


def spread(total: int, count: int) -> list[int]:
    """At most `count` numbers below `total`, evenly spread.

    >>> spread(10, 3), spread(2, 5), spread(0, 5)
    ([1, 5, 8], [0, 1], [])
    """
    count = min(count, total)
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def token_texts(
    ids: AnyArray, loss: Bools, decode: Decode, token_bytes: AnyArray
) -> Iterator[tuple[str, bool]]:
    """The text of each token in turn, and whether it has loss; a piece has one character or more.

    SentencePiece adds a space in front, which is not decoded. Where the bytes of the tokens are not
    those of the text, pieces are runs of equal loss.
    """
    known = (ids < len(token_bytes)).all()
    for cut in range(min(4, len(ids)) if known else 0):  # the last character may be cut
        some = ids[: len(ids) - cut]
        text, ends = decode(some), np.cumsum(token_bytes[some.astype(np.int64)])
        starts = np.cumsum([0, *(len(c.encode(errors="surrogatepass")) for c in text)])
        ends = ends - (ends[0] - len(decode(ids[:1]).encode(errors="surrogatepass")) == 1)
        if ends[-1] == starts[-1] and not text.endswith("\ufffd"):
            stops = np.searchsorted(starts, ends)
            yield from (
                (text[first:stop], bool(has))
                for first, stop, has in zip([0, *stops[:-1]], stops, loss, strict=False)
                if stop > first
            )
            return
    for first, stop in equal_runs(loss):
        yield decode(ids[first:stop]), bool(loss[first])


def draw_batch(loader: Loader, decode: Decode | None, step: int) -> dict[str, Any]:
    """The first rows of the batch of a step of a run, as plain values; places are percent of a row.

    Of a row its `number`, what it `says` in words, the (left, width) of its runs of slots with
    `loss`, and its `segments`. Of a segment the number of its source as `color`; `label` (`web:17`)
    and as much of that as there is room for (`short`); `left` and `width`; which tokens of which
    document it is (`says`), the `origin` of that, and the beginning of its `text`, printable: None
    if no tokenizer is known. The `names` of the sources are in the order of their colours.
    """
    tracer = Tracer(loader, decode)
    numbers = loader.batch_rows(step).tolist()
    found: list[dict[str, Any]] = []
    left, seq_len = _SEGMENTS, tracer.seq_len(numbers[0]) if numbers else 0
    for row in numbers[:_DRAWN_ROWS]:
        pieces = tracer.rows([row])
        left -= len(pieces)
        if found and left < 0:
            break
        loss, taken = loader.rows[row]["loss_mask"], [piece["slots"] for piece in pieces]
        filled = sum(stop - first for first, stop in taken)
        segments = [_segment(piece, seq_len, tracer.names) for piece in pieces]
        runs = ((a, b) for a, b in equal_runs(loss) if loss[a])
        with_loss = [(100 * a / len(loss), 100 * (b - a) / len(loss)) for a, b in runs]
        says = (
            f"row {row:,} of the run: {counted(len(pieces), 'segment')}, {int(loss.sum()):,} of "
            f"{seq_len:,} slots have loss, {seq_len - filled:,} are padding"
        )
        found.append({"number": len(found), "segments": segments, "loss": with_loss, "says": says})
    return {
        "step": step,
        "steps": len(loader),
        "seq_len": seq_len,
        "rows": found,
        "batch_size": len(numbers),
        "names": tracer.names,
    }


def _segment(piece: Fields, slots: int, names: list[str]) -> dict[str, Any]:
    (begin, end), context, text = piece["slots"], piece["without_loss"], piece["excerpt"]
    label, width = f"{printable(piece['source'])}:{piece['document']}", 100 * (end - begin) / slots
    room = width * _PERCENT - _MARGIN
    names_that_fit = (n for n in (label, str(piece["document"])) if len(n) * _CHARACTER < room)
    return {
        "color": names.index(piece["source"]),
        "label": label,
        "short": next(names_that_fit, ""),
        "left": 100 * begin / slots,
        "width": width,
        "says": f"{tokens_of(piece)} of {piece['length']:,}, {slots_of(piece)}"
        + (f", the first {context:,} without loss" if context else ""),
        "origin": came_from(piece["origin"]),
        "text": None if text is None else printable_lines(text[:_DRAWN_CHARACTERS]),
    }
