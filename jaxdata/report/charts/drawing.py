"""What all charts share: matplotlib in our colours, and how numbers are written on axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxdata.errors import MissingExtra
from jaxdata.notebook import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#101418", "#5b6673", "#d5dbe1"
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line"} | {
    color: f"c{number}" for number, color in enumerate(COLORS)
}
"""a colour as charts name it -> the variable of the page that replaces it"""
FULL, PALE = 0.85, 0.38
"""opacity of what was trained, and of what is planned"""
_STYLE: Any = {
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxdata",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
}


@contextmanager
def chart(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """An empty chart; its units are pixels.

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
        yield figure, figure.add_subplot()


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


def count_along(axis: Any) -> None:
    """Write counts on an axis."""
    _write(axis, 6, short)


def percent_along(axis: Any) -> None:
    """Write shares on an axis, as percent."""
    _write(axis, 4, lambda share: f"{100 * share:.0f} %")


def _write(axis: Any, ticks: int, said: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda number, _: said(number)))
