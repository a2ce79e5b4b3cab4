"""The lengths of a source drawn."""

from __future__ import annotations

from math import log2

from jaxdata.look.terminal import printable
from jaxdata.notebook import color_of
from jaxdata.report.charts.drawing import MUTED, chart, percent_along
from jaxdata.report.charts.svg import figure_svg
from jaxdata.report.lengths import Histogram

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
