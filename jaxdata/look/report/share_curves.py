"""The curriculum over tokens: what each source gives, exact to the token, and what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.feed.schedule import Skips
from jaxdata.look.terminal import printable
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.mixing.mixture import asked_shares, planned_intervals
from jaxdata.rows.table import RowTable, TokenCounts

Counts = dict[str, TokenCounts]
_PLACES = 64
_ROWS_BETWEEN = 100  # of fewer rows the shares jump by whole rows


@dataclass(frozen=True)
class Event:
    """Something that happens to a run at a row."""

    row: int
    tokens: int
    """trained before it"""
    kind: str
    """`"phase"`, `"amended"`, `"dry"` or `"now"`"""
    says: str


@dataclass(frozen=True)
class ShareCurves:
    """Tokens of a run by source, between places of it."""

    names: list[str]
    rows: list[int]
    """(places,) increasing, from 0 to the end"""
    tokens: list[int]
    """(places,) trained before each"""
    shares: dict[str, list[float]]
    """by source, (places - 1,): of the tokens between a place and the next"""
    asked: dict[str, list[float]]
    """shares that the weights ask for, of the shape of `shares`"""
    epochs: dict[str, float]
    """passes over each source in the whole run"""
    epochs_now: dict[str, float] | None
    """passes over each source so far; None for a run that has not begun"""
    now: dict[str, int] | None
    """tokens of each source so far"""
    asked_now: dict[str, float]
    """the share of them that the weights ask for"""
    skipped_rows: int
    events: list[Event] = field(default_factory=list)


def share_curves(loader: Loader, *, resumed: bool) -> ShareCurves:
    """The curves of a loader's run; up to its next row what it delivered, then what is planned."""
    table = row_table(loader.rows)
    if table is None:
        raise InputError("only rows as pack and mix return them have shares to draw")
    now = loader.next_row if resumed else None
    gaps = Skips(loader.get_state().get("skips", [])).gaps
    rows = _places(table, now)
    before = [_delivered(table, gaps, row) for row in rows]
    asked = _asked(table, rows)
    tokens = [sum(each.trained_tokens for each in counts.values()) for counts in before]
    made = ShareCurves(
        names=table.names,
        rows=rows,
        tokens=tokens,
        shares={name: _shares(before, name) for name in table.names},
        asked={name: [each.get(name, 0.0) for each in asked] for name in table.names},
        epochs=_epochs(table, len(table)),
        epochs_now=None if now is None else _epochs(table, now),
        now=None
        if now is None
        else {name: each.trained_tokens for name, each in _delivered(table, gaps, now).items()},
        asked_now=asked_shares(planned_intervals(table, now)) if now else {},
        skipped_rows=sum(stop - first for first, stop in gaps),
    )
    at = dict(zip(rows, tokens, strict=True))
    made.events.extend(Event(row, at[row], kind, says) for row, kind, says in _events(table, now))
    return made


def _delivered(table: RowTable, gaps: Sequence[tuple[int, int]], row: int) -> Counts:
    """Counts of the rows before one that were not skipped."""
    found = table.token_counts(row)
    for first, stop in gaps:
        if first < row:
            until, since = (table.token_counts(r) for r in (min(stop, row), first))
            found = {name: found[name] - (until[name] - since[name]) for name in found}
    return found


def _places(table: RowTable, now: int | None) -> list[int]:
    """Rows at which the curves are counted: where something changes, and evenly between."""
    between = min(_PLACES, max(len(table) // _ROWS_BETWEEN, 1))
    evenly = np.linspace(0, len(table), between + 1).astype(int).tolist()
    changes = [row for row, _, _ in _events(table, now)]
    return sorted({*evenly, *changes, *(each.start for each in table.intervals)})


def _events(table: RowTable, now: int | None) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    begun: set[int] = set()
    for interval in table.intervals:
        if interval.phase not in begun:
            begun.add(interval.phase)
            found.append((interval.start, "phase", f"phase {interval.phase}"))
    found += [(each["row"], "amended", f"amended: {_changes(each)}") for each in table.amendments]
    found += [(e.row, "dry", f"{printable(e.source)} runs dry") for e in table.exhaustions]
    if now is not None:
        found.append((now, "now", f"now: row {now:,}"))
    return sorted(found)


def _changes(amendment: dict[str, Any]) -> str:
    return ", ".join(printable(name.replace("_", " ")) for name in amendment if name != "row")


def _shares(before: Sequence[dict[str, TokenCounts]], name: str) -> list[float]:
    found = []
    for here, there in pairwise(before):
        between = {each: (there[each] - here[each]).trained_tokens for each in here}
        found.append(between[name] / (sum(between.values()) or 1))
    return found


def _asked(table: RowTable, rows: Sequence[int]) -> list[dict[str, float]]:
    """The shares of trained tokens that the weights ask for, from each place to the next."""
    intervals = planned_intervals(table)
    starts = [each.start for each in intervals]
    at = np.searchsorted(starts, rows[:-1], side="right") - 1
    return [intervals[number].asked_of_trained for number in at.tolist()]


def _epochs(table: RowTable, rows: int) -> dict[str, float]:
    return {name: float(epochs) for name, epochs in table.epochs(rows).items()}
