"""What a run's log says right now, as a small page of text, for `jaxdata train --watch`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jaxdata.look.run_log import LoggedRun, Point
from jaxdata.look.run_log import LogReader as LogReader
from jaxdata.look.terminal import plain_table, printable

_KEPT = 40
"""points of a curve"""
_BARS = "▁▂▃▄▅▆▇█"


class RunView(LoggedRun):
    """A run, which a console prints as two tables: its numbers, and the shares of its sources."""

    @property
    def _newest(self) -> list[Point]:
        """The newest points that say how fast they were."""
        return [each for each in self.points if each.rate is not None][-_KEPT:]

    @property
    def seconds_left(self) -> float | None:
        """By the newest lines; None before there are two and after the end."""
        known = [(p.rate, p.targets) for p in self._newest[1:] if p.rate and p.targets]
        if not known or self.ended or self.steps is None:
            return None
        speed = sum(rate / targets for rate, targets in known) / len(known)
        return (self.steps - self.done) / max(speed, 1e-9)

    def __rich__(self) -> Group:
        title = Text(f"{printable(self.name)}  {self._headline()}", style="bold")
        return Group(title, self._numbers(), _shares(self._newest[-1:]))

    def _headline(self) -> str:
        if self.steps is None and not self.points:
            return "has not begun"
        whole = self.steps or self.done
        done = f"step {self.done:,} of {whole:,} ({100 * self.done / max(whole, 1):.1f} %)"
        if self.ended:
            return f"{printable(self.ended)} after {done} {printable(self.reason)}".rstrip()
        left = self.seconds_left
        return done if left is None else f"{done}, {timedelta(seconds=round(left))} left"

    def _numbers(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        points = self._newest
        for name, values, form in (
            ("loss", [each.loss for each in points], "{:.4f}"),
            ("tokens/s", [each.rate for each in points], "{:,.0f}"),
            ("waited for data", [each.wait_share for each in points[-1:]], "{:.1%}"),
        ):
            if known := [value for value in values if value is not None]:
                said = form.format(known[-1]).replace("%", " %")
                table.add_row(name, said, curve(known) if len(values) > 1 else "")
        for score in self.scores[-1:]:
            of_all = {"validation": (score.loss, score.bits_per_byte)}
            for name, (loss, bits) in (of_all | score.sets).items():
                value, unit = (loss, "loss") if bits is None else (bits, "bits per byte")
                said = "" if value is None else f"{value:.4f}"
                table.add_row(printable(name), said, f"{unit}, after step {score.steps:,}")
        if self.saved is not None:
            table.add_row("newest checkpoint", f"step {self.saved:,}", "")
        return table


def curve(values: Sequence[float]) -> str:
    """Numbers as bars of eight heights.

    >>> curve([1.0, 2.0, 8.0])
    '▁▂█'
    """
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1
    return "".join(_BARS[round((value - low) / step)] for value in values)


def _shares(newest: Sequence[Point]) -> Table | Text:
    if not newest or not newest[0].shares:
        return Text("")
    table, point = plain_table("", ["source"], ["share %", "planned %", "epochs"]), newest[0]
    table.title = None
    for name, share in point.shares.items():
        planned, epochs = point.planned.get(name), point.epochs.get(name)
        table.add_row(
            Text(printable(name)),
            f"{100 * share:.3f}",
            "" if planned is None else f"{100 * planned:.3f}",
            "" if epochs is None else f"{epochs:.3f}",
        )
    return table
