"""The charts of a report, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxdata.errors import MissingExtra
from jaxdata.look.terminal import fit, printable
from jaxdata.report.lengths import Histogram
from jaxdata.report.share_curves import Event, ShareCurves
from jaxdata.report.strategy_costs import Comparison
from jaxdata.report.svg import SOURCES, figure_svg
from jaxdata.report.token_facts import TokenFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _LINE, _SURFACE = "#101418", "#5b6673", "#d5dbe1", "#fdfdfe"
_STYLE = {
    "axes.edgecolor": _LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": _MUTED,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 11,
    "hatch.color": _MUTED,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxdata",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": _LINE,
    "ytick.labelcolor": _MUTED,
    "ytick.major.size": 0,
}
_CHARACTER = 6.4  # width of a letter of 11 px, roughly


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure whose units are pixels.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("report", "matplotlib") from error
    with rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        figure.get_layout_engine().set(w_pad=4 / 72, h_pad=4 / 72)  # type: ignore[union-attr]
        yield figure, figure.add_subplot()


def short(number: float) -> str:
    """A number in at most five characters.

    >>> [short(number) for number in (7, 1_234, 56_789, 4.1e6, 2e9)]
    ['7', '1.2k', '57k', '4.1M', '2B']
    """
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2g}{suffix}" if number < 100 * size else (
                f"{number / size:.0f}{suffix}"
            )
    return f"{number:.0f}"


def length_chart(name: str, found: Histogram, seq_len: int, color: int) -> str:
    """Shares of the documents (bars) and of the tokens (steps) by length."""
    with _figure(330, 170) as (figure, axes):
        bins = range(len(found.documents))
        axes.bar(
            bins, found.document_shares, width=0.86, color=_color(color), alpha=0.35, linewidth=0
        )
        edges = [at - 0.5 for at in range(len(found.edges))]
        axes.stairs(found.token_shares, edges, color=_color(color), linewidth=2)
        row = _place(found.edges, seq_len) - 0.5
        if -0.5 <= row <= len(bins) - 0.5:
            axes.axvline(row, color=_MUTED, linewidth=1, linestyle=(0, (3, 3)))
        every = max(1, -(-len(found.edges) // 7))
        axes.set_xticks(edges[::every], [short(edge) for edge in found.edges[::every]])
        axes.set_xlim(-0.6, len(bins) - 0.4)
        _percent(axes.yaxis)
        axes.set_xlabel("tokens of a document")
        says = (
            f"{printable(name)}: share of the documents (bars) and of the tokens (line) by length; "
            f"a dashed line marks a row of {seq_len:,} slots."
        )
        return figure_svg(figure, f"Lengths of {printable(name)}", says, _id("len", name))


def _place(edges: Sequence[int], length: int) -> float:
    """Where a length lies among powers of two, in bins."""
    from math import log2

    return log2(length) - log2(max(edges[0], 1)) + (edges[0] == 0) if edges else -2.0


def packing_chart(found: Comparison) -> str:
    """The slots of an epoch with each strategy: text, padding, and what is dropped."""
    with _figure(760, 46 + 34 * len(found.costs)) as (figure, axes):
        names = [cost.strategy for cost in found.costs]
        text = [cost.real for cost in found.costs]
        padding = [cost.padding for cost in found.costs]
        dropped = [cost.dropped for cost in found.costs]
        bar = {"height": 0.62, "linewidth": 0}
        axes.barh(names, text, color=SOURCES[0], label="tokens of the text", **bar)
        axes.barh(names, padding, left=text, color=SOURCES[1], label="padding", **bar)
        ends = [a + b for a, b in zip(text, padding, strict=True)]
        axes.barh(names, dropped, left=ends, color=SOURCES[5], label="dropped", **bar)
        whole = max((a + b for a, b in zip(ends, dropped, strict=True)), default=1)
        for at, cost in enumerate(found.costs):
            said = f"{100 * cost.padding_share:.1f} % padding, {cost.rows:,} rows"
            axes.text(ends[at] + dropped[at] + whole * 0.01, at, said, va="center", color=_MUTED)
        axes.set_xlim(0, whole * 1.34)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelcolor=_INK)
        _numbers(axes.xaxis)
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=3, handlelength=1, handleheight=1)
        says = "; ".join(
            f"{c.strategy}: {c.rows:,} rows, {100 * c.padding_share:.2f} % padding, {c.dropped:,} "
            "tokens dropped"
            for c in found.costs
        )
        return figure_svg(figure, "Packing strategies compared", says, "packing")


def curriculum_chart(curves: ShareCurves) -> str:
    """Shares of the tokens over the run, stacked: as delivered or planned, and as asked for."""
    with _figure(860, 340) as (figure, axes):
        base = asked = [0.0] * (len(curves.rows) - 1)
        now = next((event.tokens for event in curves.events if event.kind == "now"), None)
        for number, name in enumerate(curves.names):
            top = [a + b for a, b in zip(base, curves.shares[name], strict=True)]
            _band(axes, curves, (base, top), number, now)
            asked = [a + b for a, b in zip(asked, curves.asked[name], strict=True)]
            if number < len(curves.names) - 1:
                line = {"baseline": None, "color": _INK, "linewidth": 1.2}
                axes.stairs(asked, curves.tokens, linestyle=(0, (4, 3)), **line)
            base = top
        axes.plot([], [], color=_INK, linewidth=1.2, linestyle=(0, (4, 3)), label="asked for")
        axes.set_ylim(0, 1)
        axes.set_xlim(0, max(curves.tokens[-1], 1))
        _percent(axes.yaxis)
        _numbers(axes.xaxis)
        axes.set_xlabel("trained tokens")
        axes.spines["left"].set_visible(False)
        _mark_events(axes, curves.events, max(curves.tokens[-1], 1))
        figure.legend(loc="outside lower left", ncols=7, handlelength=1.2, columnspacing=1.4)
        return figure_svg(figure, "Shares of the tokens over the run", _in_words(curves), "shares")


def _band(axes: Axes, curves: ShareCurves, edges: Any, number: int, now: int | None) -> None:
    """The band of a source: full where it was trained, pale where it is only planned."""
    base, top = edges
    label = fit(printable(curves.names[number]), 24)
    for past in (True, False):
        chosen = [
            at
            for at, start in enumerate(curves.tokens[:-1])
            if (now is None or start < now) == past
        ]
        if chosen:
            part = slice(chosen[0], chosen[-1] + 1)
            axes.stairs(
                top[part],
                curves.tokens[chosen[0] : chosen[-1] + 2],
                baseline=base[part],
                fill=True,
                color=_color(number),
                alpha=0.85 if past else 0.38,
                linewidth=0,
                label=label if past or chosen[0] == 0 else None,
            )


def _mark_events(axes: Axes, events: Sequence[Event], whole: int) -> None:
    """A line for each event, and its words above the chart, in as many lanes as they need."""
    ends: list[float] = []
    for event in events:
        at, said = event.tokens / whole * 740, _SIGNS[event.kind] + fit(event.says, 40)
        width = len(said) * _CHARACTER + 12
        begin = min(at, 740 - width + 12)
        lane = next((n for n, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane : lane + 1] = [begin + width]
        if event.kind != "phase" or event.tokens:
            style = {"now": "-", "phase": "-"}.get(event.kind, (0, (1, 2)))
            axes.axvline(event.tokens, color=_INK, linewidth=1.2, linestyle=style)
        axes.annotate(
            said,
            (begin / 740, 1),
            (0, 7 + 15 * lane),
            xycoords="axes fraction",
            textcoords="offset points",
            color=_INK if event.kind != "phase" else _MUTED,
            fontweight="bold" if event.kind == "now" else "normal",
        )


_SIGNS = {"phase": "", "amended": "▲ ", "dry": "✕ ", "now": "● "}


def _in_words(curves: ShareCurves) -> str:
    marks = [f"{e.says} at row {e.row:,} ({e.tokens:,} tokens)" for e in curves.events]
    return f"{curves.tokens[-1]:,} tokens. " + "; ".join(marks)


def epochs_chart(curves: ShareCurves) -> str:
    """Passes over each source: pale in the whole run, full so far."""
    names = [fit(printable(name), 28) for name in curves.names]
    with _figure(760, 40 + 28 * len(names)) as (figure, axes):
        bar = {"height": 0.6, "linewidth": 0}
        places, colors = range(len(names)), [_color(number) for number in range(len(names))]
        planned = [curves.epochs[name] for name in curves.names]
        pale = 0.38 if curves.epochs_now is not None else 0.85
        axes.barh(places, planned, color=colors, alpha=pale, **bar)
        if curves.epochs_now is not None:
            done = [curves.epochs_now[name] for name in curves.names]
            axes.barh(places, done, color=colors, alpha=0.85, **bar)
        most = max([*planned, 1e-9])
        for at, name in enumerate(curves.names):
            so_far = f"{curves.epochs_now[name]:.3f} of " if curves.epochs_now else ""
            said = f"{so_far}{planned[at]:.3f}"
            axes.text(planned[at] + most * 0.01, at, said, va="center", color=_MUTED)
        axes.set_xlim(0, most * 1.2)
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.invert_yaxis()
        axes.set_xlabel("epochs")
        axes.spines["left"].set_visible(False)
        says = "; ".join(f"{n}: {planned[at]:.3f} epochs" for at, n in enumerate(names))
        return figure_svg(figure, "Epochs of each source", says, "epochs")


def bytes_chart(facts: TokenFacts, colors: Callable[[str], int]) -> str:
    """Bytes of text a token, by source."""
    known = [each for each in facts.sources if each.bytes_a_token is not None]
    names = [fit(printable(each.name), 28) for each in known]
    with _figure(760, 40 + 28 * len(names)) as (figure, axes):
        rates = [each.bytes_a_token or 0.0 for each in known]
        places = range(len(names))
        tints = [_color(colors(each.name)) for each in known]
        axes.barh(places, rates, color=tints, alpha=0.85, height=0.6, linewidth=0)
        most = max([*rates, 1e-9])
        for at, rate in enumerate(rates):
            axes.text(rate + most * 0.01, at, f"{rate:.2f}", va="center", color=_MUTED)
        axes.set_xlim(0, most * 1.12)
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.invert_yaxis()
        axes.set_xlabel("bytes of text a token")
        axes.spines["left"].set_visible(False)
        says = "; ".join(f"{name}: {rates[at]:.3f}" for at, name in enumerate(names))
        return figure_svg(figure, "Bytes a token, by source", says, "bytes")


def _color(number: int) -> str:
    return SOURCES[number % len(SOURCES)]


def _id(kind: str, name: str) -> str:
    return kind + "".join(f"{ord(each):x}" for each in name)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))


def _numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda number, _: short(number)))
