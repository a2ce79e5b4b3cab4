"""Charts of one bar a line: strategies, epochs, bytes a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxdata.look.terminal import fit, printable
from jaxdata.notebook import COLORS, color_of
from jaxdata.report.charts.drawing import FULL, INK, MUTED, PALE, chart, count_along
from jaxdata.report.charts.svg import figure_svg
from jaxdata.report.share_curves import ShareCurves
from jaxdata.report.strategy_costs import Comparison, StrategyCost
from jaxdata.report.token_facts import SourceTokens

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
