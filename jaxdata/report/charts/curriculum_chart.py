"""The curriculum drawn: shares over tokens, and what happens on the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import numpy as np

from jaxdata.look.terminal import fit, printable
from jaxdata.notebook import color_of
from jaxdata.report.charts.drawing import FULL, INK, PALE, chart, count_along, percent_along
from jaxdata.report.charts.svg import figure_svg
from jaxdata.report.share_curves import Event, ShareCurves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 805  # of the axes, roughly
_CHARACTER = 6.4  # of 11 px, roughly
_LANE = 15
_LONGEST = 46
_SIGNS = {"phase": "", "amended": "▲ ", "dry": "✕ ", "now": "● "}
_DASHED = (0, (4, 3))


def curriculum_chart(curves: ShareCurves) -> str:
    """Shares of the tokens over a run, stacked, and the shares asked for, as SVG."""
    whole = max(curves.tokens[-1], 1)
    tops = list(accumulate(np.array(curves.shares[name]) for name in curves.names))
    asked = list(accumulate(np.array(curves.asked[name]) for name in curves.names))
    with chart(860, 330) as (figure, axes):
        for number, top in enumerate(tops):
            _band(axes, curves, number, top, tops[number - 1] if number else 0 * top)
        for line in asked[:-1]:
            axes.stairs(
                line, curves.tokens, baseline=None, color=INK, linewidth=1.2, linestyle=_DASHED
            )
        axes.plot([], [], color=INK, linewidth=1.2, linestyle=_DASHED, label="asked for")
        axes.set_ylim(0, 1)
        axes.set_xlim(0, whole)
        percent_along(axes.yaxis)
        count_along(axes.xaxis)
        axes.set_xlabel("trained tokens")
        axes.spines["left"].set_visible(False)
        _mark(axes, curves.events, whole)
        figure.legend(loc="outside lower left", ncols=7, handlelength=1.4, columnspacing=1.4)
        marks = [f"{e.says} at row {e.row:,} ({e.tokens:,} tokens)" for e in curves.events]
        says = f"{curves.tokens[-1]:,} tokens. {'; '.join(marks)}"
        return figure_svg(figure, "Shares of the tokens over the run", says, "shares")


def _band(axes: Axes, curves: ShareCurves, number: int, top: np.ndarray, base: np.ndarray) -> None:
    """The band of a source: full where it was trained, pale where it is only planned."""
    now = next((event.row for event in curves.events if event.kind == "now"), curves.rows[-1])
    past, places = np.searchsorted(curves.rows, now), len(top)
    label: str | None = fit(printable(curves.names[number]), 24)
    for part, opacity in ((slice(0, past), FULL), (slice(past, places), PALE)):
        if len(top[part]):
            edges = curves.tokens[part.start : part.stop + 1]
            axes.stairs(
                top[part],
                edges,
                baseline=base[part],
                fill=True,
                color=color_of(number),
                alpha=opacity,
                linewidth=0,
                label=label,
            )
            label = None


def _mark(axes: Axes, events: Sequence[Event], whole: int) -> None:
    """A line for what happens at a row, its words above the chart in as many lanes as they need."""
    ends: list[float] = []
    for _, together in groupby(events, key=lambda event: event.row):
        here = list(together)
        said = fit(", ".join(_SIGNS[each.kind] + each.says for each in here), _LONGEST)
        width = len(said) * _CHARACTER + 10
        at = here[0].tokens / whole * _WIDTH
        begin = max(min(at, _WIDTH - width), 0)
        lane = next((number for number, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane : lane + 1] = [begin + width]
        now = any(each.kind == "now" for each in here)
        if here[0].row:
            axes.axvline(here[0].tokens, color=INK, linewidth=2 if now else 1)
        axes.annotate(
            said,
            (begin / _WIDTH, 1),
            (0, 7 + _LANE * lane),
            xycoords="axes fraction",
            textcoords="offset points",
            fontweight="bold" if now else "normal",
        )
