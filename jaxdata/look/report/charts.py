"""The charts of a report: strategies, epochs, lengths, the curriculum over tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, groupby
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdata.base.wording import COLORS, color_of
from jaxdata.look.report.drawing import (
    FULL,
    INK,
    MUTED,
    PALE,
    chart,
    count_along,
    figure_svg,
    percent_along,
)
from jaxdata.look.report.gathering import Histogram, Report
from jaxdata.look.report.samples import SourceTokens
from jaxdata.look.report.share_curves import Event, ShareCurves
from jaxdata.look.strategies import Comparison, StrategyCost
from jaxdata.look.terminal import fit, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BAR: Any = {"height": 0.62, "linewidth": 0}
_GAP = 0.012  # between a bar and its words, of the longest bar


@contextmanager
def _bars(
    names: Sequence[str], words: Sequence[tuple[float, str]], room: float
) -> Iterator[tuple[Figure, Axes]]:
    """A chart with a line for each name, and words to the right of where its bar ends.

    `room` is for the words, of the longest bar.
    """
    with chart(860, 46 + 30 * len(names)) as (figure, axes):
        most = max([end for end, _ in words] + [1e-9])
        for at, (end, said) in enumerate(words):
            axes.text(end + most * _GAP, at, said, va="center", color=MUTED)
        axes.set_xlim(0, most * (1 + room))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), [fit(printable(name), 28) for name in names])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.spines["left"].set_visible(False)
        yield figure, axes


def packing_chart(found: Comparison) -> str:
    """The slots of an epoch with each strategy, and what it drops, as SVG."""
    costs = found.costs
    parts = {
        "tokens of the text": (COLORS[0], [cost.real for cost in costs]),
        "padding": (COLORS[1], [cost.padding for cost in costs]),
        "dropped": (COLORS[5], [cost.dropped for cost in costs]),
    }
    words = [(cost.slots + cost.dropped, _in_words(cost)) for cost in costs]
    with _bars([cost.strategy for cost in costs], words, 0.42) as (figure, axes):
        before = [0] * len(costs)
        for label, (color, counts) in parts.items():
            axes.barh(range(len(costs)), counts, left=before, color=color, label=label, **_BAR)
            before = [a + b for a, b in zip(before, counts, strict=True)]
        count_along(axes.xaxis)
        figure.legend(loc="outside upper left", ncols=3, handlelength=1, handleheight=1)
        return figure_svg(figure, "Packing strategies compared", costs_in_words(costs), "packing")


def costs_in_words(costs: Sequence[StrategyCost]) -> str:
    """What each strategy costs."""
    return "; ".join(f"{cost.strategy}: {_in_words(cost)}" for cost in costs)


def _in_words(cost: StrategyCost) -> str:
    whole = max(cost.real + cost.dropped, 1)
    dropped = f", {100 * cost.dropped / whole:.1f} % dropped" if cost.dropped else ""
    return f"{cost.rows:,} rows, {100 * cost.padding_share:.2f} % padding{dropped}"


def epochs_chart(curves: ShareCurves) -> str:
    """Passes over each source, pale in the whole run and full so far, as SVG."""
    planned, done = curves.epochs, curves.epochs_now
    words = [
        (planned[name], (f"{done[name]:.3f} of " if done else "") + f"{planned[name]:.3f}")
        for name in curves.names
    ]
    with _bars(curves.names, words, 0.25) as (figure, axes):
        for part, opacity in ((planned, PALE), (done, FULL)) if done else ((planned, FULL),):
            _draw(axes, [part[name] for name in curves.names], range(len(words)), opacity)
        axes.set_xlabel("epochs")
        says = "; ".join(f"{printable(name)}: {planned[name]:.3f}" for name in curves.names)
        return figure_svg(figure, "Epochs of each source", says, "epochs")


def bytes_chart(known: Sequence[tuple[SourceTokens, int]]) -> str:
    """Bytes of text a token of sources and the numbers of their colours, as SVG."""
    names, rates = [each.name for each, _ in known], [each.bytes_a_token or 0 for each, _ in known]
    with _bars(names, [(rate, f"{rate:.2f}") for rate in rates], 0.15) as (figure, axes):
        _draw(axes, rates, [color for _, color in known], FULL)
        axes.set_xlabel("bytes of text a token")
        says = "; ".join(
            f"{printable(n)}: {rate:.3f}" for n, rate in zip(names, rates, strict=True)
        )
        return figure_svg(figure, "Bytes a token", says, "bytes")


def _draw(axes: Axes, ends: Sequence[float], colors: Sequence[int], opacity: float) -> None:
    tints = [color_of(number) for number in colors]
    axes.barh(range(len(ends)), ends, color=tints, alpha=opacity, **_BAR)


_TICKS = 7


def length_chart(name: str, found: Histogram, seq_len: int, color: int) -> str:
    """Shares of the documents (bars) and of the tokens (line) by length, as SVG."""
    with chart(330, 170) as (figure, axes):
        bins = len(found.documents)
        tint = color_of(color)
        axes.bar(range(bins), found.document_shares, 0.86, color=tint, alpha=0.35, linewidth=0)
        edges = [at - 0.5 for at in range(bins + 1)]
        axes.stairs(found.token_shares, edges, color=tint, linewidth=2)
        row = log2(seq_len / max(found.edges[0], 1)) - 0.5
        if edges[0] <= row <= edges[-1]:
            axes.axvline(row, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        every = max(1, -(-len(edges) // _TICKS))
        axes.set_xticks(edges[::every], [power(edge) for edge in found.edges[::every]])
        axes.set_xlim(edges[0] - 0.1, edges[-1] + 0.1)
        axes.tick_params(axis="x", pad=8)  # below the 0 % of the other axis
        percent_along(axes.yaxis)
        axes.set_xlabel("tokens of a document")
        title = f"Lengths of {printable(name)}"
        says = "Bars: share of the documents. Line: share of the tokens."
        return figure_svg(figure, title, says, "lengths" + name.encode("utf-8", "replace").hex())


def power(number: int) -> str:
    """A power of two, in units of 1,024.

    >>> [power(number) for number in (512, 8192, 2**21)]
    ['512', '8k', '2M']
    """
    for size, unit in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= size:
            return f"{number // size}{unit}"
    return str(number)


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


def charts(report: Report) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name of each chart, and what draws it as SVG."""
    if report.packing and report.packing.costs:
        yield "packing", partial(packing_chart, report.packing)
    if report.curves:
        yield "curriculum", partial(curriculum_chart, report.curves)
        yield "epochs", partial(epochs_chart, report.curves)
    facts = report.tokens.sources if report.tokens else []
    known = [(each, _color(report, each.name)) for each in facts if each.bytes_a_token is not None]
    if known:
        yield "bytes", partial(bytes_chart, known)


def length_charts(report: Report) -> Iterator[tuple[str, str]]:
    """The lengths of each source that is drawn, as SVG."""
    for name, found in report.lengths.items():
        if found.documents:
            yield name, length_chart(name, found, report.seq_len, _color(report, name))


def _color(report: Report, name: str) -> int:
    """The number of a source's colour: its number in the run, or in no run the next."""
    run = report.curves.names if report.curves else []
    names = [*run, *(each.partition("/")[2] for each in report.drawn)]
    return list(dict.fromkeys(names)).index(name.partition("/")[2])
