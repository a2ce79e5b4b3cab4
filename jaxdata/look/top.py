"""What a run's log says right now, as a small page of text, for `jaxdata train --watch`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jaxdata.look.run_log import LoggedRun, Point
from jaxdata.look.terminal import printable, table
from jaxdata.storage import local_path

_KEPT = 40
"""points of a curve"""
_BARS = "▁▂▃▄▅▆▇█"


def watch(run: str) -> None:
    """Print a page about a run, again and again where there is a terminal, until the run ends."""
    view = RunView.of(local_path(run, "watch it on the machine where it runs"))
    if not sys.stdout.isatty():
        Console().print(view)
        return
    with Live(view, auto_refresh=False) as live:
        while not view.ended:
            time.sleep(1)
            view.update()
            live.update(view, refresh=True)


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
        return Group(title, self._numbers(), *_shares(self._newest[-1:]))

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
        shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        losses = [each.loss for each in self._newest if each.loss is not None]
        rates = [each.rate for each in self._newest if each.rate is not None]
        waits = [each.wait_share for each in self._newest if each.wait_share is not None]
        if losses:
            shown.add_row("loss", f"{losses[-1]:.4f}", curve(losses))
        if rates:
            shown.add_row("tokens/s", f"{rates[-1]:,.0f}", curve(rates))
        if waits:
            shown.add_row("waited for data", f"{100 * waits[-1]:.1f} %")
        for score in self.scores[-1:]:
            of_all = {"validation": (score.loss, score.bits_per_byte)}
            for name, (loss, bits) in (of_all | score.sets).items():
                value, unit = (loss, "loss") if bits is None else (bits, "bits per byte")
                said = "" if value is None else f"{value:.4f}"
                shown.add_row(printable(name), said, f"{unit}, after step {score.steps:,}")
        if self.saved is not None:
            shown.add_row("newest checkpoint", f"step {self.saved:,}")
        return shown


def curve(values: Sequence[float]) -> str:
    """Numbers as bars of eight heights.

    >>> curve([1.0, 2.0, 8.0])
    '▁▂█'
    """
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1
    return "".join(_BARS[round((value - low) / step)] for value in values)


def _shares(newest: Sequence[Point]) -> list[Table]:
    return [
        table(
            "",
            ["source"],
            ["share %", "planned %", "epochs"],
            (
                (
                    name,
                    f"{100 * share:.3f}",
                    f"{100 * each.planned[name]:.3f}" if name in each.planned else None,
                    f"{each.epochs[name]:.3f}" if name in each.epochs else None,
                )
                for name, share in each.shares.items()
            ),
        )
        for each in newest
        if each.shares
    ]
