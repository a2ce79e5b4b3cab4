"""A run over its tokens: the shares of its sources, planned and given, and what its log says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.feed.report import delivered
from jaxdata.feed.schedule import Skips
from jaxdata.look.run_log import LoggedRun, Point
from jaxdata.look.terminal import printable
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.mixing.mixture import asked_shares, planned_intervals
from jaxdata.rows.table import RowTable

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


def _between(names: list[str], totals: NDArray[Any]) -> dict[str, Any]:
    """The tokens before places, and the shares between them, of totals (places, sources)."""
    between = np.maximum(np.diff(totals, axis=0), 0)
    shares = between / np.maximum(between.sum(axis=1, keepdims=True), 1e-9)
    return {
        "names": names,
        "tokens": np.round(totals.sum(axis=1)).astype(int).tolist(),
        "shares": dict(zip(names, shares.T.tolist(), strict=True)),
    }


def share_curves(loader: Loader, *, resumed: bool) -> ShareCurves:
    """The curves of a loader's run; up to its next row what it delivered, then what is planned."""
    planned = row_table(loader.rows)
    if planned is None:
        raise InputError("only rows as pack and mix return them have shares to draw")
    gaps = Skips(loader.get_state().get("skips", [])).gaps
    events = _planned_events(planned, loader.next_row if resumed else None)
    count = min(_PLACES, max(len(planned) // _ROWS_BETWEEN, 1))
    changes = [*(row for row, _, _ in events), *(each.start for each in planned.intervals)]
    rows = sorted({*np.linspace(0, len(planned), count + 1).astype(int).tolist(), *changes})
    counts = [delivered(planned, gaps, row) for row in rows]
    totals = np.array([[each[name].trained_tokens for name in planned.names] for each in counts])
    intervals = planned_intervals(planned)
    at = np.searchsorted([each.start for each in intervals], rows[:-1], side="right") - 1
    asked = [intervals[number].shares for number in at.tolist()]
    found = _between(planned.names, totals)
    before = dict(zip(rows, found["tokens"], strict=True))
    so_far: dict[str, Any] = {"now": None}
    if resumed:
        now = loader.next_row
        so_far["now"] = dict(zip(planned.names, totals[rows.index(now)].tolist(), strict=True))
        so_far["epochs_now"] = _epochs(planned, now)
        so_far["asked_now"] = asked_shares(planned_intervals(planned, now)) if now else {}
    return ShareCurves(
        **found,
        rows=rows,
        asked={name: [each.get(name, 0.0) for each in asked] for name in planned.names},
        epochs=_epochs(planned, len(planned)),
        **so_far,
        skipped_rows=sum(stop - first for first, stop in gaps),
        events=[Event(row, before[row], kind, says) for row, kind, says in events],
    )


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


def logged_shares(run: LoggedRun) -> ShareCurves | None:
    """The shares of sources as a log has them, where no config says them exactly."""
    points = [each for each in run.points if each.sources and each.tokens]
    if not points:
        return None
    some = np.unique(np.linspace(0, len(points) - 1, _LOGGED_PLACES).astype(int))
    chosen = [points[at] for at in some]
    names, last = list(dict.fromkeys(n for each in chosen for n in each.sources)), chosen[-1]
    totals = np.array([[0.0] * len(names)] + [[p.sources.get(n, 0) for n in names] for p in chosen])
    found = _between(names, totals) | {"tokens": [0, *(each.tokens or 0 for each in chosen)]}
    return ShareCurves(
        **found,
        rows=[0, *map(_row, chosen)],
        epochs=last.epochs if {*names} <= {*last.epochs} else {},
        now={name: round(total) for name, total in zip(names, totals[-1].tolist(), strict=True)},
    )


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
    events: list[Event]


def run_curves(run: LoggedRun, curves: ShareCurves | None, loader: Loader | None) -> RunCurves:
    """The lines of a logged run, on the axis of the shares where there are any."""
    where, points = _places(run, curves, loader), run.points
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
    if run.ended and points:
        row, at = where(points[-1])
        events.append(Event(row, round(at), "end", printable(run.ended)))
    scores = [(each.steps, each.loss) for each in run.scores if each.loss is not None]
    return RunCurves(
        logged=run,
        unit="trained tokens" if curves or all(p.tokens is not None for p in points) else "steps",
        end=where(points[-1])[1] if points else 0.0,
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
