"""The charts of a report as SVG: the run, epochs, strategies.

Each is drawn in two widths, for a desk and for a phone. Colours are variables that a page or a
file gives values to, in light and dark; there are no inline styles, which the page's policy would
refuse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import accumulate, groupby
from math import ceil, floor, log10
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from jaxdata.look.report.curves import Event, RunCurves, ShareCurves, Value
from jaxdata.look.report.gathering import Report
from jaxdata.look.terminal import fit, printable

FULL, PALE = 0.85, 0.38
"""opacity of what was trained, and of what is planned"""
WIDE, NARROW = 860, 330
"""pixels: the widths in which a chart is drawn"""
_COLORS = 8  # of `colors.css`: those of Okabe and Ito (2008), the last two darker and grey
_FRAMES = 4  # at least, in a line of them
_LANE = 15  # from line to line of words
_GAP = 26  # between panels
Key = Sequence[tuple[str, str, float]]
"""names, and their colours and opacities; of a line the opacity is 0"""
Points = Iterable[tuple[float, float]]


def color_name(number: int) -> str:
    """The variable of a source's colour; where there are many sources, the last ones are grey."""
    return f"c{min(number, _COLORS - 1)}"


def width_of(text: str) -> float:
    """The width of 11 px text in pixels, roughly."""
    return cell_len(text) * 6.4


def short(number: float) -> str:
    """A number as people say it: whole below 10,000, then in three digits.

    >>> [short(number) for number in (7, 1_234, 56_789, 999_999, 11_380_862, 2e9)]
    ['7', '1,234', '56.8 k', '1 M', '11.4 M', '2 B']
    """
    if number < 10_000:
        return f"{number:,.0f}"
    rounded = float(f"{number:.2e}")
    units = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
    size, suffix = next(each for each in units if rounded >= each[0])
    return f"{rounded / size:.3g} {suffix}"


def ticks(end: float, most: int = 6, begin: float = 0) -> list[float]:
    """About `most` round numbers from `begin` to `end`, evenly spaced; one where they are equal.

    >>> ticks(1_300), ticks(0.4), ticks(8.2, 4, begin=4.9)
    ([0.0, 250.0, 500.0, 750.0, 1000.0, 1250.0], [0.0, 0.1, 0.2, 0.3, 0.4], [5.0, 6.0, 7.0, 8.0])
    """
    if end <= begin:
        return [begin]
    size = 10.0 ** floor(log10((end - begin) / most))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if (end - begin) / (size * each) <= most)
    first, last = ceil(begin / step - 1e-9), floor(end / step + 1e-9)
    return [round(step * number, 9) for number in range(first, last + 1)]


def stairs(edges: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """The outline of bars: height *k* from edge *k* to the next."""
    steps = zip(edges[:-1], edges[1:], heights, strict=True)
    return [(x, height) for first, stop, height in steps for x in (first, stop)]


class Chart:
    """A drawing of so many pixels, for a page or for a file."""

    def __init__(self, title: str, description: str, width: float) -> None:
        self._head = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
        self.width, self.height = width, 0.0
        self._drawn: list[str] = []

    def _add(self, tag: str, said: str = "", **given: object) -> None:
        named = ((name.replace("_", "-"), value) for name, value in given.items())
        each = (f'{n}="{v:.1f}"' if isinstance(v, float) else f'{n}="{v}"' for n, v in named)
        self._drawn.append(f"<{tag} {' '.join(each)}>{escape(said)}</{tag}>")

    def rect(self, x: float, y: float, wide: float, high: float, fill: str, opacity: float) -> None:
        """A filled rectangle; `"hatch"` is padding, `""` only its dashed outline."""
        paint = {"fill": f"var(--{fill})", "fill_opacity": f"{opacity:g}"}
        if not fill:
            paint = {"fill": "none", "stroke": "var(--muted)", "stroke_dasharray": "3 2"}
        elif fill == "hatch":
            paint = {"fill": "url(#hatch)"}
        self._add("rect", x=float(x), y=float(y), width=float(wide), height=float(high), **paint)

    def text(
        self, x: float, y: float, said: str, fill: str = "muted", anchor: str = "start"
    ) -> None:
        self._add("text", said, x=float(x), y=float(y), text_anchor=anchor, fill=f"var(--{fill})")

    def line(
        self, points: Points, color: str = "line", width: float = 1, dashed: bool = False
    ) -> None:
        dash = {"stroke_dasharray": "4 3"} if dashed else {}
        stroke = {"stroke": f"var(--{color})", "stroke_width": f"{width:g}"}
        self._add("path", d=_path(points), fill="none", **stroke, **dash)

    def area(self, upper: Sequence[Value], lower: Sequence[Value], fill: str, opac: float) -> None:
        path = f"{_path([*upper, *lower[::-1]])}z"
        self._add("path", d=path, fill=f"var(--{fill})", fill_opacity=f"{opac:g}")

    def dot(self, x: float, y: float) -> None:
        self._add("circle", cx=float(x), cy=float(y), r=2.6, fill="var(--ink)")

    def key(self, y: float, names: Key) -> float:
        """Colours, opacities and what they stand for, in lines; returns where the last one is."""
        x = 8.0
        for name, color, opacity in names:
            if x + 20 + width_of(name) > self.width:
                x, y = 8.0, y + _LANE
            if opacity:
                self.rect(x, y - 9, 11, 10, color, opacity)
            else:
                self.line([(x - 2, y - 4), (x + 14, y - 4)], color or "ink", 1.4, not color)
            self.text(x + 20, y, name, "ink")
            x += 38 + width_of(name)
        return y

    def svg(self, kind: str = "") -> str:
        """The drawing, to which a page or a file gives colours and fonts; `kind` is a class."""
        wide, high = f"{self.width:g}", f"{self.height:g}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
            f'height="{high}" class="{f"chart {kind}".strip()}" role="img" font-size="11">'
            f"{self._head}{''.join(self._drawn)}</svg>"
        )


def _path(points: Points) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


class _Panel(NamedTuple):
    """A rectangle of a chart, and the numbers that its edges stand for."""

    chart: Chart
    left: float
    right: float
    top: float
    bottom: float
    end: float
    """at the right edge; the left one is 0"""
    low: float = 0.0
    high: float = 1.0

    def x(self, number: float) -> float:
        """Where a number lies from left to right; beyond the end at the edge."""
        return self.left + (self.right - self.left) * min(number, self.end) / self.end

    def y(self, number: float) -> float:
        """Where a number lies from bottom to top."""
        part = (min(number, self.high) - self.low) / ((self.high - self.low) or 1)
        return self.bottom - (self.bottom - self.top) * part

    def at(self, points: Iterable[Value]) -> list[Value]:
        return [(self.x(x), self.y(y)) for x, y in points]

    def scale(self, numbers: Iterable[float], form: Callable[[float], str]) -> None:
        """Rule it at some numbers, and say them in front."""
        for number in numbers:
            y = self.y(number)
            self.chart.line([(self.left, y), (self.right, y)])
            self.chart.text(self.left - 6, y + 4, form(number), anchor="end")


class Bar(NamedTuple):
    """A line of a bar chart."""

    name: str
    words: str
    """beside the name"""
    parts: list[tuple[float, float, str, float]]
    """(begin, end, colour, opacity), later ones on top"""


def bar_chart(
    title: str, bars: Sequence[Bar], width: float, *, frame: float = 0, key: Key = ()
) -> Chart:
    """Bars below each other with words above them; with `frame`, each is frames of that size."""
    says = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    chart = Chart(title, says, width)
    top = chart.key(14, key) + 5 if key else 0
    chart.height = top + 46 * len(bars) + 2
    ends = [max(end for _, end, _, _ in bar.parts) for bar in bars]
    whole = max(*ends, _FRAMES * frame) or 1
    scale = (width - 4) / (frame * ceil(whole / frame) if frame else whole)
    for number, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        y, name = top + 46 * number, fit(bar.name, 28)
        chart.text(2, y + 15, name, "ink")
        chart.text(2 + width_of(name) + 12, y + 15, fit(bar.words, int((width - 20) / 6)))
        for first, stop, color, opacity in bar.parts:
            chart.rect(2 + scale * first, y + 21, scale * (stop - first), 18, color, opacity)
        for each in range(ceil(end / frame - 1e-9) if frame else 0):
            left, right = (2 + scale * frame * edge for edge in (each, each + 1))
            box = [(left, y + 21), (right, y + 21), (right, y + 39), (left, y + 39), (left, y + 20)]
            chart.line(box, "muted", 1.2)
    return chart


def packing_chart(costs: Sequence[Mapping[str, Any]], width: float) -> Chart:
    """The slots of an epoch with each strategy, and what it drops."""
    key = [("tokens of the text", "ink", 0.55), ("padding", "hatch", 1.0), ("dropped", "", 1.0)]
    bars = []
    for cost in costs:
        edges = [0.0, *accumulate(cost[name] for name in ("real", "padding", "dropped"))]
        parts = [
            (a, b, color, opacity)
            for a, b, (_, color, opacity) in zip(edges[:-1], edges[1:], key, strict=True)
            if b > a
        ]
        lost = 100 * cost["dropped"] / max(cost["real"] + cost["dropped"], 1)
        dropped = f", {lost:.1f} % dropped" if cost["dropped"] else ""
        words = f"{short(cost['rows'])} rows, {100 * cost['padding_share']:.2f} % padding{dropped}"
        bars.append(Bar(cost["strategy"], words, parts or [(0.0, 0.0, "ink", 1.0)]))
    return bar_chart("Packing strategies compared", bars, width, key=key)


def epochs_chart(curves: ShareCurves, width: float) -> Chart:
    """Passes over each source as frames that fill: full so far, pale in the whole run."""
    done, bars = curves.epochs_now, []
    most = max([1.0, *curves.epochs.values()]) / (24 if width > NARROW else 10)
    frame = next(size for size in (1, 2, 5, 10, 20, 50, 100, 10**6) if size >= most)
    for number, name in enumerate(curves.names):
        planned, color = curves.epochs[name], color_name(number)
        parts = [(0.0, planned, color, PALE if done else FULL)]
        parts += [(0.0, done[name], color, FULL)] if done else []
        so_far = f"{done[name]:.3f} of " if done else ""
        each = f", a frame is {frame} epochs" if frame > 1 else ""
        bars.append(Bar(printable(name), f"{so_far}{planned:.3f} epochs{each}", parts))
    return bar_chart("Epochs of each source", bars, width, frame=frame)


_SIGNS = {"phase": "", "amended": "▲ ", "dry": "✕ ", "now": "● ", "resumed": "↻ ", "end": "■ "}


def run_chart(
    curves: ShareCurves | None, run: RunCurves | None, happened: Sequence[Event], width: float
) -> Chart:
    """A run over its tokens: loss, and below it the shares of sources; speed; what happened."""
    drawn: list[tuple[float, Callable[[_Panel], None]]] = []
    if run and (run.losses or run.scores):
        drawn.append((190.0, partial(_draw_losses, run)))
    if curves:
        drawn.append((170.0, partial(_draw_shares, curves)))
    if run and run.rates:
        drawn.append((56.0, partial(_draw_line, run.rates, "tokens a second")))
    if run and run.waits:
        waits = [(at, 100 * share) for at, share in run.waits]
        drawn.append((40.0, partial(_draw_line, waits, "waited for data, %")))
    end = float(curves.tokens[-1]) if curves else run.end if run else 1.0
    says = "; ".join(f"{event.says} at row {event.row:,}" for event in happened)
    chart = Chart("The run over its tokens", says, width)
    panels = [_Panel(chart, 44.0, width - 8, 0, 0, max(end, 1.0))]
    events = _placed(happened, panels[0], 46 if width > NARROW else 40)
    top = 14.0 + _LANE * max((lane + 1 for *_, lane in events), default=0)
    below = top
    for high, draw in drawn:
        panels.append(panels[0]._replace(top=below, bottom=below + high))
        draw(panels[-1])
        below += high + _GAP
    for at, begin, said, strong, lane in events:
        for panel in panels[1:] if at > panels[0].left else ():
            chart.line([(at, panel.top), (at, panel.bottom)], "ink", 2 if strong else 1)
        chart.text(begin, top - 7 - _LANE * lane, said, "ink")
    numbers = ticks(panels[0].end, 6 if width > NARROW else 3)
    unit = run.unit if run and not curves else "trained tokens"
    y = panels[-1].bottom
    for each in numbers:
        chart.text(panels[0].x(each), y + 15, short(each), anchor="middle")
    chart.text((panels[0].left + panels[0].right) / 2, y + 31, unit, anchor="middle")
    chart.height = chart.key(below + 26, _key(curves, run)) + 11
    return chart


def _key(curves: ShareCurves | None, run: RunCurves | None) -> Key:
    names = curves.names if curves else []
    asked = [("asked for", "", 0.0)] if curves and any(curves.asked.values()) else []
    losses = [("loss", "muted", 0.0)] if run and run.losses else []
    scores = [("validation loss", "ink", 0.0)] if run and run.scores else []
    sources = [(fit(printable(n), 24), color_name(k), FULL) for k, n in enumerate(names)]
    return [*losses, *scores, *sources, *asked]


def _draw_losses(run: RunCurves, panel: _Panel) -> None:
    """The mean of the losses between places, and pale from the lowest to the highest of them."""
    places = [each[0] for each in run.losses]
    mean, least, most = ([each[k] for each in run.losses] for k in (1, 2, 3))
    scores = [score for _, score in run.scores]
    panel = panel._replace(low=min(least + scores), high=max(mean + scores))
    panel.scale(ticks(panel.high, 4, begin=panel.low), "{:g}".format)
    if places:
        curves = (zip(places, each, strict=True) for each in (most, least, mean))
        upper, lower, line = map(panel.at, curves)
        panel.chart.area(upper, lower, "muted", 0.25)
        panel.chart.line(line, "muted", 1.4)
    if scores:
        panel.chart.line(panel.at(run.scores), "ink", 1.4)
        for x, y in panel.at(run.scores):
            panel.chart.dot(x, y)


def _draw_shares(curves: ShareCurves, panel: _Panel) -> None:
    """Shares of the tokens, stacked, and the shares asked for."""
    panel = panel._replace(high=100)
    panel.scale((0, 25, 50, 75, 100), "{:g} %".format)
    now = next((event.row for event in curves.events if event.kind == "now"), curves.rows[-1])
    past, below = curves.rows.index(now), np.zeros(len(curves.tokens) - 1)
    for number, name in enumerate(curves.names):
        above = below + 100 * np.array(curves.shares[name])
        for first, stop, opacity in ((0, past, FULL), (past, len(above), PALE)):
            if stop > first:
                edges = curves.tokens[first : stop + 1]
                both = [stairs(edges, each[first:stop].tolist()) for each in (above, below)]
                upper, lower = map(panel.at, both)
                panel.chart.area(upper, lower, color_name(number), opacity)
        below = above
    lines = [100 * np.array(curves.asked[n]) for n in curves.names[:-1] if curves.asked.get(n)]
    for line in accumulate(lines):
        points = panel.at(stairs(curves.tokens, line.tolist()))
        panel.chart.line(points, "ink", 1.2, dashed=True)


def _draw_line(points: Sequence[Value], what: str, panel: _Panel) -> None:
    """Numbers from 0 up, with what they are above them."""
    panel = panel._replace(high=max(value for _, value in points) or 1.0)
    panel.chart.text(panel.left, panel.top - 5, what)
    panel.scale(ticks(panel.high, 2), short if panel.high >= 10 else "{:g}".format)
    panel.chart.line(panel.at(points), "ink", 1.2)


def _placed(
    events: Sequence[Event], panel: _Panel, longest: int
) -> list[tuple[float, float, str, bool, int]]:
    """Place of each row at which something happens, of its words, the words, and their lane."""
    ends, found = list[float](), []
    for _, together in groupby(events, key=lambda event: event.row):
        here = list(together)
        said = fit(", ".join(_SIGNS[each.kind] + each.says for each in here), longest)
        at, width = panel.x(here[0].tokens), width_of(said) + 10
        begin = max(min(at, panel.right - width), 0)
        lane = next((number for number, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane : lane + 1] = [begin + width]
        found.append((at, begin, said, any(each.kind in ("now", "end") for each in here), lane))
    return found


def charts(report: Report, width: float) -> dict[str, Chart]:
    """The charts of a report, by name."""
    found: dict[str, Chart] = {}
    if report.curves or report.run:
        found["run"] = run_chart(report.curves, report.run, report.events, width)
    if report.curves and report.curves.epochs:
        found["epochs"] = epochs_chart(report.curves, width)
    if report.packing:
        found["packing"] = packing_chart(report.packing, width)
    return found


def color_number(report: Report, name: str) -> int:
    """The number of a source's colour: its number in the run, or in no run the next."""
    run = report.curves.names if report.curves else []
    names = [*run, *(each.partition("/")[2] for each in report.drawn)]
    return list(dict.fromkeys(names)).index(name.partition("/")[2])
