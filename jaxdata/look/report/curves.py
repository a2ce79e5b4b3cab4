"""A run over its tokens: the shares of its sources, planned and given, and what its log says.

The log is `jaxdata train`'s, or any trainer's lines of `loader.scalars()`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.feed.report import delivered
from jaxdata.feed.schedule import Skips
from jaxdata.look.terminal import printable
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.mixing.mixture import asked_shares, planned_intervals
from jaxdata.rows.table import RowTable

Record = Mapping[str, Any]
_MOST = 2**63  # of a whole number


class Point(NamedTuple):
    """A step that was logged; what its record does not say is None."""

    step: int
    """from 0"""
    row: int | None
    """the next row after it"""
    tokens: int | None
    """trained up to its end"""
    loss: float | None
    rate: float | None
    """tokens a second"""
    wait_share: float | None
    """of the time, spent waiting for data"""
    sources: Mapping[str, float]
    """tokens of each source up to its end"""
    epochs: Mapping[str, float]


class Score(NamedTuple):
    """A validation after so many steps."""

    steps: int
    loss: float | None
    bits_per_byte: float | None
    sets: dict[str, tuple[float | None, float | None]]
    """of each set that was scored by itself its loss and its bits per byte"""


@dataclass
class LoggedRun:
    """What a log says of a run, gathered from its records, oldest first.

    A step that was run again, after a kill, replaces the first one and those after it.

    >>> run = LoggedRun("log.jsonl")
    >>> for step in range(3):
    ...     run.add({"step": step, "loss": 2.0 - step, "targets": 100})
    >>> run.add({"step": 1, "loss": 0.5, "targets": 100})
    >>> [(each.loss, each.tokens) for each in run.points], run.done
    ([(2.0, 100), (0.5, 200)], 2)
    """

    name: str
    path: Path | None = None
    """of the log, where it is one on this machine"""
    points: list[Point] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    """steps that were done when the run was started again"""
    begun: int = 0
    """steps that were done when the run was last started"""
    steps: int | None = None
    """of the whole run"""
    ended: str | None = None
    """how: `"done"`, `"halted"`"""
    reason: str = ""
    """why"""
    not_finite: int = 0
    """steps whose loss was no finite number"""
    waited: float = 0.0
    """seconds, in all processes of the log one after another"""
    _clock: tuple[float | None, int | None, float] = (None, None, 0.0)
    _lines: int = 0

    @classmethod
    def of(cls, run: Path) -> Self:
        """The run of a folder with `log.jsonl`, or of a file of JSON lines, as it is now.

        Raises:
            InputError: there is no log, or a line of it is no record.
        """
        path = run if run.is_file() else run / "log.jsonl"
        if not path.is_file():
            raise InputError(
                f"no run in {run}: expected its folder (train.output of its config), with "
                "log.jsonl, or a file of JSON lines"
            )
        found = cls(str(run), path)
        found.update()
        return found

    def update(self) -> bool:
        """Take in what was logged since; a line cut short is read when it is whole.

        Returns whether there was anything.
        """
        assert self.path is not None
        lines = self.path.read_bytes().split(b"\n")[self._lines : -1]
        for line in lines:
            self._lines += 1
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise InputError(
                    f"line {self._lines} of {self.path} is no JSON object: expected one a line, "
                    'such as {"step": 0, "loss": 2.5, **loader.scalars()}. Give the log of a run'
                )
            self.add(found)
        return bool(lines)

    @property
    def done(self) -> int:
        """Steps that are done."""
        return max(self.begun, self.points[-1].step + 1 if self.points else 0)

    def add(self, record: Record) -> None:
        """Take in the next record; what has another form than expected is passed over."""
        event, step = record.get("event"), _whole(record, "step")
        if event == "start":
            self.ended, self.steps = None, _whole(record, "steps")
            self._back_to(step or 0)
            self.begun = step or 0
            self.resumed += [step] if step else []
        elif event == "end":
            self.ended = str(record.get("status", "ended"))
            self.reason = str(record.get("reason", ""))
        elif event is None:
            own = "bits_per_byte" in record or ("val_loss" in record and "loss" not in record)
            if not own:
                self._add_point(record, self.done if step is None else step)
            if (score := _score(record)) != (None, None):
                done = step if own and step is not None else self.done
                given = record.get("sets")
                every = given.items() if isinstance(given, dict) else ()
                sets = {name: _score(each) for name, each in every if isinstance(each, dict)}
                self.scores = [each for each in self.scores if each.steps != done]
                self.scores.append(Score(done, *score, sets))

    def _back_to(self, step: int) -> None:
        self.points = [each for each in self.points if each.step < step]
        self.begun = min(self.begun, step)
        self.scores = [each for each in self.scores if each.steps <= step]
        self.resumed = [each for each in self.resumed if each < step]

    def _add_point(self, record: Record, step: int) -> None:
        if step < self.done:
            self._back_to(step)
        before = self.points[-1].tokens if self.points else 0
        tokens, targets = _whole(record, "tokens"), _whole(record, "targets")
        if tokens is None and targets is not None and before is not None:
            tokens = before + targets
        loss, of = _number(record, "loss"), _by_source(record)
        self.not_finite += loss is None and "loss" in record
        shares = of.get("share", {})
        sources = of.get("tokens") or {n: tokens * part for n, part in shares.items() if tokens}
        speed = self._speed(record, tokens)
        row, epochs = _whole(record, "row"), of.get("epochs", {})
        self.points.append(Point(step, row, tokens, loss, *speed, sources, epochs))

    def _speed(self, record: Record, tokens: int | None) -> tuple[float | None, float | None]:
        """Tokens a second and the share of waiting, as said or between two times of a log."""
        rate, share = _number(record, "tokens_per_second"), _number(record, "wait_share")
        waited, time = _number(record, "wait_seconds") or 0.0, _number(record, "time")
        if rate is not None or share is not None:  # waited since the last line
            self.waited += waited
            return rate, share
        then, count, before = self._clock
        self._clock = time, tokens, waited
        more = waited - before if waited >= before else waited  # a new process waits anew
        self.waited += more
        if time is None or then is None or time <= then:
            return None, None
        if tokens is not None and count is not None and tokens >= count:
            rate = (tokens - count) / (time - then)
        return rate, more / (time - then)


def _score(record: Record) -> tuple[float | None, float | None]:
    return _number(record, "val_loss"), _number(record, "bits_per_byte")


def _number(record: Record, name: str) -> float | None:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        return None
    return float(value)


def _whole(record: Record, name: str) -> int | None:
    value = _number(record, name)
    return int(value) if value is not None and value >= 0 else None


def _by_source(record: Record) -> dict[str, dict[str, float]]:
    """Values of each source, of columns like `share/web`."""
    found: dict[str, dict[str, float]] = {}
    for column in record:
        what, slash, name = column.partition("/")
        if slash and (value := _number(record, column)) is not None:
            found.setdefault(what, {})[name] = value
    return found


_PLACES, _LOGGED_PLACES, _POINTS = 64, 64, 160
"""of the shares that are planned, and of those of a log; of the lines of a log"""
_ROWS_BETWEEN = 100  # of fewer rows the shares jump by whole rows
Value = tuple[float, float]
"""a place along the run, and the value there"""


class Event(NamedTuple):
    """Something that happens to a run at a row."""

    row: int
    tokens: int
    """trained before it"""
    kind: str
    """`"phase"`, `"amended"`, `"dry"`, `"now"`, `"resumed"` or `"end"`"""
    says: str


@dataclass(frozen=True, kw_only=True)
class ShareCurves:
    """Tokens of a run by source, between places of it."""

    names: list[str]
    rows: list[int]
    """(places,) increasing, from 0 to the end"""
    tokens: list[int]
    """(places,) trained before each"""
    shares: Mapping[str, list[float]]
    """by source, (places - 1,): of the tokens between a place and the next"""
    asked: Mapping[str, list[float]] = field(default_factory=dict)
    """shares that the weights ask for, of the shape of `shares`"""
    epochs: Mapping[str, float]
    """passes over each source in the whole run"""
    epochs_now: Mapping[str, float] | None = None
    """passes over each source so far; None for a run that has not begun"""
    now: Mapping[str, int] | None
    """tokens of each source so far"""
    asked_now: Mapping[str, float] = field(default_factory=dict)
    """the share of them that the weights ask for"""
    skipped_rows: int = 0
    events: Sequence[Event] = ()

    @classmethod
    def of(cls, loader: Loader, *, resumed: bool) -> Self:
        """Those of a loader's run: up to its next row as it delivered them, then as planned."""
        planned = row_table(loader.rows)
        if planned is None:
            raise InputError("only rows as pack and mix return them have shares to draw")
        gaps = Skips(loader.get_state().get("skips", [])).gaps
        events = _planned_events(planned, loader.next_row if resumed else None)
        count = min(_PLACES, max(len(planned) // _ROWS_BETWEEN, 1))
        changes = [*(row for row, _, _ in events), *(each.start for each in planned.intervals)]
        rows = sorted({*np.linspace(0, len(planned), count + 1).astype(int).tolist(), *changes})
        counts = [delivered(planned, gaps, row) for row in rows]
        names = planned.names
        totals = np.array([[each[name].trained_tokens for name in names] for each in counts])
        intervals = planned_intervals(planned)
        at = np.searchsorted([each.start for each in intervals], rows[:-1], side="right") - 1
        asked = [intervals[number].shares for number in at.tolist()]
        found = _between(names, totals)
        before = dict(zip(rows, found["tokens"], strict=True))
        so_far: dict[str, Any] = {"now": None}
        if resumed:
            now = loader.next_row
            so_far["now"] = dict(zip(names, totals[rows.index(now)].tolist(), strict=True))
            so_far["epochs_now"] = _epochs(planned, now)
            so_far["asked_now"] = asked_shares(planned_intervals(planned, now)) if now else {}
        return cls(
            **found,
            rows=rows,
            asked={name: [each.get(name, 0.0) for each in asked] for name in names},
            epochs=_epochs(planned, len(planned)),
            **so_far,
            skipped_rows=sum(stop - first for first, stop in gaps),
            events=[Event(row, before[row], kind, says) for row, kind, says in events],
        )

    @classmethod
    def of_log(cls, run: LoggedRun) -> Self | None:
        """The shares of sources as a log has them, where no config says them exactly."""
        points = [each for each in run.points if each.sources and each.tokens]
        if not points:
            return None
        some = np.unique(np.linspace(0, len(points) - 1, _LOGGED_PLACES).astype(int))
        chosen = [points[at] for at in some]
        names, last = list(dict.fromkeys(n for each in chosen for n in each.sources)), chosen[-1]
        trained = [[each.sources.get(name, 0) for name in names] for each in chosen]
        totals = np.array([[0.0] * len(names), *trained])
        found = _between(names, totals) | {"tokens": [0, *(each.tokens or 0 for each in chosen)]}
        return cls(
            **found,
            rows=[0, *map(_row, chosen)],
            epochs=last.epochs if {*names} <= {*last.epochs} else {},
            now=dict(zip(names, np.round(totals[-1]).astype(int).tolist(), strict=True)),
        )


def _between(names: list[str], totals: NDArray[Any]) -> dict[str, Any]:
    """The tokens before places, and the shares between them, of totals (places, sources)."""
    between = np.maximum(np.diff(totals, axis=0), 0)
    shares = between / np.maximum(between.sum(axis=1, keepdims=True), 1e-9)
    return {
        "names": names,
        "tokens": np.round(totals.sum(axis=1)).astype(int).tolist(),
        "shares": dict(zip(names, shares.T.tolist(), strict=True)),
    }


def _planned_events(planned: RowTable, now: int | None) -> list[tuple[int, str, str]]:
    first = {each.phase: each.start for each in reversed(planned.intervals)}
    found = [(row, "phase", f"phase {number}") for number, row in first.items()]
    for each in planned.amendments:
        changed = ", ".join(printable(name.replace("_", " ")) for name in each if name != "row")
        found.append((each["row"], "amended", f"amended: {changed}"))
    found += [(e.row, "dry", f"{printable(e.source)} runs dry") for e in planned.exhaustions]
    return sorted([*found, *([] if now is None else [(now, "now", f"now: row {now:,}")])])


def _epochs(planned: RowTable, rows: int) -> dict[str, float]:
    return {name: float(epochs) for name, epochs in planned.epochs(rows).items()}


@dataclass(frozen=True)
class RunCurves:
    """Lines over a run; places are trained tokens, or steps where the log says no tokens."""

    unit: str
    end: float
    """the last place"""
    losses: list[tuple[float, float, float, float]]
    """(place, mean, least, most) of the steps since the place before"""
    scores: list[Value]
    """validation losses"""
    rates: list[Value]
    """tokens a second"""
    waits: list[Value]
    """of the time, the share that was waited for data"""
    events: list[Event]

    @classmethod
    def of(cls, run: LoggedRun, curves: ShareCurves | None, loader: Loader | None) -> Self:
        """The lines of a logged run, on the axis of the shares where there are any."""
        where, points = _places(run, curves, loader), run.points
        in_tokens = curves or all(each.tokens is not None for each in points)
        known, losses = [(where(p)[1], p.loss) for p in points if p.loss is not None], []
        size = -(-len(known) // _POINTS) or 1
        for first in range(0, len(known), size):
            some = known[first : first + size]
            values = [loss for _, loss in some]
            losses.append((some[-1][0], sum(values) / len(some), min(values), max(values)))
        after = {each.step + 1: where(each) for each in points} | {0: (0, 0.0)}
        timed = [each for each in points if each.rate is not None or each.wait_share is not None]
        timed = timed[:: -(-len(timed) // _POINTS) or 1]
        events = [
            Event(after[step][0], round(after[step][1]), "resumed", f"resumed at step {step:,}")
            for step in run.resumed
            if step in after
        ]
        row, end = where(points[-1]) if points else (0, 0.0)
        if run.ended and points:
            events.append(Event(row, round(end), "end", printable(run.ended)))
        scores = [(each.steps, each.loss) for each in run.scores if each.loss is not None]
        return cls(
            unit="trained tokens" if in_tokens else "steps",
            end=end,
            losses=losses,
            scores=[(after[steps][1], loss) for steps, loss in scores if steps in after],
            rates=[(where(p)[1], p.rate) for p in timed if p.rate is not None],
            waits=[(where(p)[1], p.wait_share) for p in timed if p.wait_share is not None],
            events=events,
        )


def _places(
    run: LoggedRun, curves: ShareCurves | None, loader: Loader | None
) -> Callable[[Point], tuple[int, float]]:
    """The row after a step, and its place: among the rows planned, else by the log's tokens."""
    if curves and loader is not None:
        schedule, last = loader.schedule, len(loader) - 1

        def planned(point: Point) -> tuple[int, float]:
            rows = schedule.batch_rows(min(point.step, last))
            row = int(rows.max(initial=-1)) + 1 if point.row is None else point.row
            return row, float(np.interp(row, curves.rows, curves.tokens))

        return planned
    if all(each.tokens is not None for each in run.points):
        return lambda point: (_row(point), float(point.tokens or 0))
    return lambda point: (_row(point), point.step + 1.0)


def _row(point: Point) -> int:
    return point.step + 1 if point.row is None else point.row
