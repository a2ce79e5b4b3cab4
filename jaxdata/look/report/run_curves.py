"""What a run's log says, over the tokens of the run: loss, validation, speed, ends and restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jaxdata.feed.loader import Loader
from jaxdata.look.report.share_curves import Event, ShareCurves
from jaxdata.look.run_log import LoggedRun, Point
from jaxdata.look.terminal import printable

_PLACES = 160
_BANDS = 64
Value = tuple[float, float]
"""a place along the run, and the value there"""


@dataclass(frozen=True)
class RunCurves:
    """Lines over a run; places are trained tokens, or steps where the log says no tokens."""

    logged: LoggedRun
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
    events: list[Event] = field(default_factory=list)


def logged_shares(run: LoggedRun) -> ShareCurves | None:
    """The shares of sources as a log has them, where no config says them exactly."""
    points = [each for each in run.points if each.sources and each.tokens]
    if not points:
        return None
    chosen = [points[at] for at in np.unique(np.linspace(0, len(points) - 1, _BANDS).astype(int))]
    names = list(dict.fromkeys(name for each in chosen for name in each.sources))
    totals = np.array([[0.0] * len(names)] + [[p.sources.get(n, 0) for n in names] for p in chosen])
    between = np.maximum(np.diff(totals, axis=0), 0)
    shares = between / np.maximum(between.sum(axis=1, keepdims=True), 1e-9)
    last = chosen[-1]
    return ShareCurves(
        names=names,
        rows=[0, *(_row(each) for each in chosen)],
        tokens=[0, *(each.tokens or 0 for each in chosen)],
        shares={name: shares[:, k].tolist() for k, name in enumerate(names)},
        asked={},
        epochs={name: last.epochs[name] for name in names} if set(names) <= {*last.epochs} else {},
        epochs_now=None,
        now={name: round(total) for name, total in zip(names, totals[-1].tolist(), strict=True)},
        asked_now={},
        skipped_rows=0,
    )


def run_curves(run: LoggedRun, curves: ShareCurves | None, loader: Loader | None) -> RunCurves:
    """The lines of a logged run, on the axis of the shares where there are any."""
    where = _places(run, curves, loader)

    def place(point: Point) -> float:
        return where(point)[1]

    unit = "trained tokens" if curves or all(p.tokens is not None for p in run.points) else "steps"
    known = [each for each in run.points if each.loss is not None]
    losses, size = [], -(-len(known) // _PLACES) or 1
    for first in range(0, len(known), size):
        some = known[first : first + size]
        values = [each.loss or 0.0 for each in some]
        losses.append((place(some[-1]), sum(values) / len(some), min(values), max(values)))
    after = {each.step + 1: each for each in run.points}
    found = RunCurves(
        logged=run,
        unit=unit,
        end=place(run.points[-1]) if run.points else 0.0,
        losses=losses,
        scores=[
            (place(after[each.steps]) if each.steps in after else 0.0, each.loss)
            for each in run.scores
            if each.loss is not None and (each.steps in after or not each.steps)
        ],
        rates=[(place(p), p.rate) for p in _some(run.points) if p.rate is not None],
        waits=[(place(p), p.wait_share) for p in _some(run.points) if p.wait_share is not None],
    )
    for step in run.resumed:
        if step in after:
            row, at = where(after[step])
            found.events.append(Event(row, round(at), "resumed", f"resumed at step {step:,}"))
    if run.ended and run.points:
        row, at = where(run.points[-1])
        found.events.append(Event(row, round(at), "end", printable(run.ended)))
    return found


def _some(points: list[Point]) -> list[Point]:
    """Of the points that say how fast they were, as many as can be seen."""
    known = [each for each in points if each.rate is not None or each.wait_share is not None]
    return known[:: -(-len(known) // _PLACES) or 1]


def _places(
    run: LoggedRun, curves: ShareCurves | None, loader: Loader | None
) -> Callable[[Point], tuple[int, float]]:
    """The row after a step, and its place: among the rows planned, else by the log's tokens."""
    if curves and loader is not None:
        schedule, total = loader.schedule, len(loader)

        def planned(point: Point) -> tuple[int, float]:
            rows = schedule.batch_rows(min(point.step, total - 1))
            row = int(rows.max(initial=-1)) + 1 if point.row is None else point.row
            return row, float(np.interp(row, curves.rows, curves.tokens))

        return planned
    if all(each.tokens is not None for each in run.points):
        return lambda point: (_row(point), float(point.tokens or 0))
    return lambda point: (_row(point), point.step + 1.0)


def _row(point: Point) -> int:
    return point.step + 1 if point.row is None else point.row
