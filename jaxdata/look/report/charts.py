"""The charts of a report as SVG: strategies, epochs, bytes a token, lengths, the curriculum.

Colours are variables that a page or a file gives values to, in light and dark; there are no inline
styles, which the page's policy would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, groupby
from math import floor, log2, log10
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from jaxdata.base.wording import COLORS
from jaxdata.look.report.gathering import Histogram, Report
from jaxdata.look.report.share_curves import Event, ShareCurves
from jaxdata.look.strategies import Comparison
from jaxdata.look.terminal import fit, printable

FULL, PALE = 0.85, 0.38
"""opacity of what was trained, and of what is planned"""
_WIDTH = 860
_MARGIN = 12  # around a chart that is a file
_LANE = 15  # from line to line of words
_FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def color_name(number: int) -> str:
    """The variable of a source's colour."""
    return f"c{number % len(COLORS)}"


def width_of(text: str) -> float:
    """The width of 11 px text in pixels, roughly."""
    return cell_len(text) * 6.4


def short(number: float) -> str:
    """A number in at most five characters.

    >>> [short(number) for number in (7, 1_234, 56_789, 4.1e6, 2e9)]
    ['7', '1.2k', '57k', '4.1M', '2B']
    """
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            digits = f"{number / size:.0f}" if number >= 100 * size else f"{number / size:.2g}"
            return digits + suffix
    return f"{number:.0f}"


def power(number: int) -> str:
    """A power of two, in units of 1,024.

    >>> [power(number) for number in (512, 8192, 2**21)]
    ['512', '8k', '2M']
    """
    for size, unit in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= size:
            return f"{number // size}{unit}"
    return str(number)


def ticks(end: float) -> list[float]:
    """At most seven round numbers from 0 to `end`, evenly spaced.

    >>> ticks(1_300), ticks(0.4)
    ([0.0, 250.0, 500.0, 750.0, 1000.0, 1250.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    size = 10.0 ** floor(log10(end / 6))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if end / (size * each) <= 6)
    return [round(step * number, 9) for number in range(floor(end / step + 1e-9) + 1)]


class Chart:
    """A drawing of so many pixels, for a page or for a file."""

    def __init__(self, title: str, description: str, width: float, height: float) -> None:
        self._head = f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
        self._size = width, height
        self._drawn: list[str] = []

    def rect(
        self, x: float, y: float, size: tuple[float, float], fill: str, opacity: float = 1
    ) -> None:
        wide, high = size
        self._drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
            f'fill="var(--{fill})" fill-opacity="{opacity}"/>'
        )

    def text(
        self, x: float, y: float, said: str, fill: str = "muted", anchor: str = "start"
    ) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._drawn.append(f'<text {place} fill="var(--{fill})">{escape(said)}</text>')

    def line(
        self,
        points: Iterable[tuple[float, float]],
        color: str = "line",
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._drawn.append(
            f'<path d="{_path(points)}" fill="none" stroke="var(--{color})" '
            f'stroke-width="{width}"{dash}/>'
        )

    def area(self, points: Iterable[tuple[float, float]], fill: str, opacity: float) -> None:
        self._drawn.append(
            f'<path d="{_path(points)}z" fill="var(--{fill})" fill-opacity="{opacity}"/>'
        )

    def key(self, y: float, names: Iterable[tuple[str, str, float]]) -> None:
        """Colours, opacities and what they stand for, in lines; "" is the dashed line."""
        x = 8.0
        for name, color, opacity in names:
            if x + 20 + width_of(name) > self._size[0]:
                x, y = 8.0, y + _LANE
            if color:
                self.rect(x, y - 9, (11, 10), color, opacity)
            else:
                self.line([(x - 2, y - 4), (x + 14, y - 4)], "ink", 1.2, dashed=True)
            self.text(x + 20, y, name, "ink")
            x += 38 + width_of(name)

    def inline(self) -> str:
        """The drawing within a page, which gives the colours."""
        return self._svg(0, "")

    def file(self, colors: str) -> str:
        """The drawing as a file, with its colours (CSS), on a ground of its own."""
        wide, high = (size + 2 * _MARGIN for size in self._size)
        ground = f'<rect x="-{_MARGIN}" y="-{_MARGIN}" width="{wide:g}" height="{high:g}" rx="8" '
        return self._svg(_MARGIN, f'<style>{colors}</style>{ground}fill="var(--surface)"/>')

    def _svg(self, margin: int, before: str) -> str:
        wide, high = (size + 2 * margin for size in self._size)
        font = f' font-family="{_FONT}"' if margin else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {wide:g} '
            f'{high:g}" width="{wide:g}" height="{high:g}" class="chart" role="img" '
            f'font-size="11"{font}>{self._head}{before}{"".join(self._drawn)}</svg>'
        )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def stairs(edges: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
    """The outline of bars: height *k* from edge *k* to the next."""
    return [
        (x, height)
        for first, stop, height in zip(edges[:-1], edges[1:], heights, strict=True)
        for x in (first, stop)
    ]


class Bar(NamedTuple):
    """A line of a bar chart."""

    name: str
    parts: list[tuple[float, float, str, float]]
    """(begin, end, colour, opacity), later ones on top"""
    words: str
    """beside its end"""


def bar_chart(
    title: str,
    bars: Sequence[Bar],
    *,
    unit: str = "",
    key: Sequence[tuple[str, str, float]] = (),
) -> Chart:
    """Bars below each other with words at their ends, and an axis: of counts, or in a unit."""
    says = "; ".join(f"{bar.name}: {bar.words}" for bar in bars)
    top, bottom = 26 if key else 8, 34 if unit else 20
    chart = Chart(title, says, _WIDTH, top + 30 * len(bars) + bottom)
    names = [fit(bar.name, 28) for bar in bars]
    left = 14 + max(map(width_of, names))
    ends = [max(end for _, end, _, _ in bar.parts) for bar in bars]
    room = [_WIDTH - left - 10 - width_of(bar.words) for bar in bars]
    scale = min(space / (end or 1) for space, end in zip(room, ends, strict=True))
    for at, (name, bar, end) in enumerate(zip(names, bars, ends, strict=True)):
        y = top + 30 * at
        chart.text(left - 6, y + 19, name, "ink", "end")
        for first, stop, color, opacity in bar.parts:
            chart.rect(left + scale * first, y + 6, (scale * (stop - first), 18), color, opacity)
        chart.text(left + scale * end + 8, y + 19, bar.words)
    floor_ = top + 30 * len(bars) + 4
    chart.line([(left, floor_), (_WIDTH, floor_)])
    along = (_WIDTH - left - 20) / scale
    for tick in ticks(along):
        said = f"{tick:.1f}" if unit else short(tick)
        chart.text(left + scale * tick, floor_ + 13, said, anchor="middle")
    if unit:
        chart.text((left + _WIDTH) / 2, floor_ + 27, unit, anchor="middle")
    if key:
        chart.key(14, key)
    return chart


def packing_chart(found: Comparison) -> Chart:
    """The slots of an epoch with each strategy, and what it drops."""
    named = ("tokens of the text", "padding", "dropped")
    colors = [color_name(number) for number in (0, 1, 5)]
    bars = []
    for cost in found.costs:
        edges = [0.0, *accumulate((cost.real, cost.padding, cost.dropped))]
        parts = [(a, b, c, 1.0) for a, b, c in zip(edges[:-1], edges[1:], colors, strict=True)]
        whole = max(cost.real + cost.dropped, 1)
        dropped = f", {100 * cost.dropped / whole:.1f} % dropped" if cost.dropped else ""
        words = f"{cost.rows:,} rows, {100 * cost.padding_share:.2f} % padding{dropped}"
        bars.append(Bar(cost.strategy, parts, words))
    key = [(name, color, 1.0) for name, color in zip(named, colors, strict=True)]
    return bar_chart("Packing strategies compared", bars, key=key)


def epochs_chart(curves: ShareCurves) -> Chart:
    """Passes over each source, pale in the whole run and full so far."""
    done, bars = curves.epochs_now, []
    for number, name in enumerate(curves.names):
        planned, color = curves.epochs[name], color_name(number)
        parts = [(0.0, planned, color, PALE if done else FULL)]
        parts += [(0.0, done[name], color, FULL)] if done else []
        so_far = f"{done[name]:.3f} of " if done else ""
        bars.append(Bar(printable(name), parts, f"{so_far}{planned:.3f}"))
    return bar_chart("Epochs of each source", bars, unit="epochs")


def bytes_chart(known: Sequence[tuple[str, float, int]]) -> Chart:
    """Bytes of text a token: of sources (name, bytes, number of colour)."""
    bars = [
        Bar(printable(name), [(0.0, rate, color_name(number), FULL)], f"{rate:.2f}")
        for name, rate, number in known
    ]
    return bar_chart("Bytes a token", bars, unit="bytes of text a token")


def length_chart(name: str, found: Histogram, seq_len: int, color: int) -> Chart:
    """Shares of the documents (bars) and of the tokens (line) by length."""
    says = "Bars: share of the documents. Line: share of the tokens."
    chart = Chart(f"Lengths of {printable(name)}", says, 330, 170)
    left, right, top, floor_ = 38.0, 316.0, 8.0, 130.0
    bins, tint = len(found.documents), color_name(color)
    step = (right - left) / bins
    edges = [left + step * number for number in range(bins + 1)]
    most = max(*found.document_shares, *found.token_shares)
    height = (floor_ - top) / (most or 1)
    for share in ticks(100 * most)[:: 1 if most < 0.2 else 2]:
        chart.text(left - 5, floor_ - height * share / 100 + 4, f"{share:g} %", anchor="end")
    chart.line([(left, top), (left, floor_), (right, floor_)])
    for x, share in zip(edges, found.document_shares, strict=False):
        size = (0.86 * step, height * share)
        chart.rect(x + 0.07 * step, floor_ - height * share, size, tint, 0.35)
    heights = [floor_ - height * share for share in found.token_shares]
    outline = stairs(edges, heights)
    chart.line([(left, floor_), *outline, (right, floor_)], tint, 2)
    row = left + step * log2(seq_len / max(found.edges[0], 1))
    if left <= row <= right:
        chart.line([(row, top), (row, floor_)], "muted", 1, dashed=True)
    every = max(1, -(-len(edges) // 7))
    for x, edge in [*zip(edges, found.edges, strict=True)][::every]:
        chart.text(x, floor_ + 15, power(edge), anchor="middle")
    chart.text((left + right) / 2, floor_ + 31, "tokens of a document", anchor="middle")
    return chart


_SIGNS = {"phase": "", "amended": "▲ ", "dry": "✕ ", "now": "● "}
_LONGEST = 46


def curriculum_chart(curves: ShareCurves) -> Chart:
    """Shares of the tokens over a run, stacked, and the shares asked for."""
    marks = [f"{e.says} at row {e.row:,} ({e.tokens:,} tokens)" for e in curves.events]
    says = f"{curves.tokens[-1]:,} tokens. {'; '.join(marks)}"
    left, wide, high = 46.0, _WIDTH - 46.0 - 8, 210.0
    events = _events(curves.events, max(curves.tokens[-1], 1), left, wide)
    top = 14.0 + _LANE * max((lane + 1 for *_, lane in events), default=0)
    names = [(fit(printable(n), 24), color_name(k), FULL) for k, n in enumerate(curves.names)]
    key = [*names, ("asked for", "", 1.0)]
    lines = 1 + int(sum(38 + width_of(name) for name, _, _ in key) / (_WIDTH - 190))
    chart = Chart(
        "Shares of the tokens over the run", says, _WIDTH, top + high + 48 + _LANE * lines
    )
    x = [left + wide * tokens / max(curves.tokens[-1], 1) for tokens in curves.tokens]
    now = next((event.row for event in curves.events if event.kind == "now"), curves.rows[-1])
    past, below = curves.rows.index(now), np.zeros(len(x) - 1)
    for number, name in enumerate(curves.names):
        above = below + np.array(curves.shares[name])
        for part, opacity in ((slice(0, past), FULL), (slice(past, len(above)), PALE)):
            if len(above[part]):
                edges = x[part.start : part.stop + 1]
                upper = stairs(edges, (top + high * (1 - above[part])).tolist())
                lower = stairs(edges, (top + high * (1 - below[part])).tolist())
                chart.area([*upper, *lower[::-1]], color_name(number), opacity)
        below = above
    asked = accumulate(np.array(curves.asked[name]) for name in curves.names[:-1])
    for line in asked:
        chart.line(stairs(x, (top + high * (1 - line)).tolist()), "ink", 1.2, dashed=True)
    for share in (0, 25, 50, 75, 100):
        chart.text(left - 6, top + high * (1 - share / 100) + 4, f"{share} %", anchor="end")
    for tick in ticks(max(curves.tokens[-1], 1)):
        at = left + wide * tick / max(curves.tokens[-1], 1)
        chart.text(at, top + high + 15, short(tick), anchor="middle")
    chart.text(left + wide / 2, top + high + 31, "trained tokens", anchor="middle")
    for at, begin, said, is_now, lane in events:
        if at > left:
            chart.line([(at, top), (at, top + high)], "ink", 2 if is_now else 1)
        chart.text(begin, top - 7 - _LANE * lane, said, "ink")
    chart.key(top + high + 54, key)
    return chart


def _events(
    events: Sequence[Event], whole: int, left: float, wide: float
) -> list[tuple[float, float, str, bool, int]]:
    """Place of each row at which something happens, of its words, the words, and their lane."""
    ends: list[float] = []
    found = []
    for _, together in groupby(events, key=lambda event: event.row):
        here = list(together)
        said = fit(", ".join(_SIGNS[each.kind] + each.says for each in here), _LONGEST)
        at, width = left + wide * here[0].tokens / whole, width_of(said) + 10
        begin = max(min(at, left + wide - width), left)
        lane = next((number for number, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane : lane + 1] = [begin + width]
        found.append((at, begin, said, any(each.kind == "now" for each in here), lane))
    return found


def charts(report: Report) -> dict[str, Chart]:
    """The charts of a report, by name."""
    found: dict[str, Chart] = {}
    if report.packing and report.packing.costs:
        found["packing"] = packing_chart(report.packing)
    if report.curves:
        found["curriculum"] = curriculum_chart(report.curves)
        found["epochs"] = epochs_chart(report.curves)
    facts = report.tokens.sources if report.tokens else []
    known = [
        (each.name, each.bytes_a_token, _color(report, each.name))
        for each in facts
        if each.bytes_a_token is not None
    ]
    return found | ({"bytes": bytes_chart(known)} if known else {})


def length_charts(report: Report) -> Iterator[tuple[str, Chart]]:
    """The lengths of each source that is drawn."""
    for name, found in report.lengths.items():
        if found.documents:
            yield name, length_chart(name, found, report.seq_len, _color(report, name))


def _color(report: Report, name: str) -> int:
    """The number of a source's colour: its number in the run, or in no run the next."""
    run = report.curves.names if report.curves else []
    names = [*run, *(each.partition("/")[2] for each in report.drawn)]
    return list(dict.fromkeys(names)).index(name.partition("/")[2])
