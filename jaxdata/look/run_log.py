"""A run as its log tells it: `jaxdata train`'s, or any trainer's lines of `loader.scalars()`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from jaxdata.base.errors import InputError

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
    _read: int = 0
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
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
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
        return bool(whole)

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
