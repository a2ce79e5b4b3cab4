"""What a run's log says right now, as a small page of text, for `jaxdata train --watch`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import InputError
from jaxdata.look.terminal import plain_table, printable

_KEPT = 40
"""points of a curve"""
_BARS = "▁▂▃▄▅▆▇█"
Record = Mapping[str, Any]


@dataclass
class RunView:
    """The facts of a run, gathered from the records of its log, oldest first."""

    name: str
    begun: Record = field(default_factory=dict)
    step: int = 0
    """steps done"""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    rates: deque[Record] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """records of printed steps, with tokens a second"""
    score: Record | None = None
    saved: int | None = None
    ended: Record | None = None

    def add(self, record: Record) -> None:
        """Take in the next record."""
        event = record.get("event")
        if event == "start":
            self.begun, self.step, self.ended = record, record["step"], None
        elif event == "checkpoint":
            self.saved = record["step"]
        elif event == "end":
            self.ended = record
        elif "bits_per_byte" in record:
            self.score = record
        elif "loss" in record:
            self.step = record["step"] + 1
            if "tokens_per_second" in record:
                self.losses.append(record["loss"])
                self.rates.append(record)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return int(self.begun.get("steps", 0))

    @property
    def seconds_left(self) -> float | None:
        """By the newest lines; None before there are two and after the end."""
        newest = list(self.rates)[1:]  # the first one compiles
        if not newest or self.ended:
            return None
        steps_a_second = [each["tokens_per_second"] / max(each["targets"], 1) for each in newest]
        speed: float = sum(steps_a_second) / len(newest)
        return (self.steps - self.step) / max(speed, 1e-9)

    def __rich__(self) -> Group:
        """Two tables: the numbers of the run, and the shares of its sources."""
        title = Text(f"{printable(self.name)}  {self._headline()}", style="bold")
        shares = self.rates[-1].get("shares") if self.rates else None
        return Group(title, self._numbers(), _shares(shares or {}))

    def _headline(self) -> str:
        if not self.begun:
            return "has not begun"
        done = (
            f"step {self.step:,} of {self.steps:,} ({100 * self.step / max(self.steps, 1):.1f} %)"
        )
        if self.ended:
            return f"{self.ended['status']} after {done} {self.ended.get('reason', '')}".rstrip()
        left = self.seconds_left
        return done if left is None else f"{done}, {timedelta(seconds=round(left))} left"

    def _numbers(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        if self.rates:
            last, speeds = self.rates[-1], [each["tokens_per_second"] for each in self.rates]
            table.add_row("loss", f"{last['loss']:.4f}", curve(self.losses))
            table.add_row("tokens/s", f"{last['tokens_per_second']:,.0f}", curve(speeds))
            table.add_row("waited for data", f"{100 * last['wait_share']:.1f} %", "")
        if self.score:
            score, step = self.score["bits_per_byte"], self.score["step"]
            table.add_row("validation", f"{score:.4f}", f"bits per byte, after step {step:,}")
        if self.saved is not None:
            table.add_row("newest checkpoint", f"step {self.saved:,}", "")
        return table


class LogReader:
    """Reads the new lines of a log that grows; a line cut short is read when it is whole.

    Raises InputError if the folder holds no log.
    """

    def __init__(self, run: Path) -> None:
        self._path, self._read = run / "log.jsonl", 0
        if not self._path.is_file():
            raise InputError(
                f"no run in {run}: expected its folder (train.output of its config), with log.jsonl"
            )

    def new(self) -> list[dict[str, Any]]:
        """The records that came since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def curve(values: deque[float] | list[float]) -> str:
    """Numbers as bars of eight heights.

    >>> curve([1.0, 2.0, 8.0])
    '▁▂█'
    """
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1
    return "".join(_BARS[round((value - low) / step)] for value in values)


def _shares(sources: Mapping[str, Record]) -> Table | Text:
    if not sources:
        return Text("")
    table = plain_table("", ["source"], ["share %", "planned %", "epochs"])
    table.title = None
    for name, each in sources.items():
        planned = "" if each["planned"] is None else f"{100 * each['planned']:.3f}"
        numbers = f"{100 * each['share']:.3f}", planned, f"{each['epochs']:.3f}"
        table.add_row(Text(printable(name)), *numbers)
    return table
