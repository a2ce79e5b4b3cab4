"""What notebooks show of our objects: small tables and bars of HTML, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLORS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8a7a00",
    "#7d7d85",
)
"""colours that tell sources apart: those of Okabe and Ito (2008) for all kinds of colour vision,
the last two darker and grey"""
Bar = Sequence[tuple[str, float, str]]
"""parts of a bar: name, share of the whole, colour"""
_WIDTH, _HEIGHT = 480, 12
_RIGHT = ' style="text-align:right"'


def visible(text: object) -> str:
    r"""A text that can stand in HTML: escaped, and invisible characters written out.

    >>> print(visible("<b> & \u202e"))
    &lt;b&gt; &amp; \u202e
    """
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text)))


def color_of(number: int) -> str:
    """The colour of a source by its number."""
    return COLORS[number % len(COLORS)]


def table_html(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], below: str = ""
) -> str:
    """A table with a title; numbers are aligned to the right. `below` is HTML.

    >>> table_html("two", ["name", "size"], [("a", 1_000)]).count("1,000</td>")
    1
    """
    head = "".join(f'<th scope="col">{visible(each)}</th>' for each in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="jaxdata"><strong>{visible(title)}</strong><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>{below}</div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f"<td{_RIGHT}>{said}</td>"
    return f"<td>{visible(value)}</td>"


def bars_html(bars: Sequence[Bar], widths: Sequence[float] | None = None) -> str:
    """Bars side by side, each of parts that are stacked to its right end; their names below.

    Args:
        bars: the parts of each.
        widths: share of the whole width of each; by default all are equally wide.
    """
    left, drawn = 0.0, []
    for bar, width in zip(bars, widths or [1 / max(len(bars), 1)] * len(bars), strict=True):
        for name, share, color in bar:
            wide = _WIDTH * width * share
            drawn.append(
                f'<rect x="{left:.1f}" width="{wide:.1f}" height="{_HEIGHT}" fill="{color}">'
                f"<title>{visible(name)}: {100 * share:.2f} %</title></rect>"
            )
            left += wide
    named = {name: color for bar in bars for name, _, color in bar}
    key = " ".join(
        f'<span style="white-space:nowrap"><span style="color:{color}">■</span> '
        f"{visible(name)}</span>"
        for name, color in named.items()
    )
    return (
        f'<svg width="{_WIDTH}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" style="max-width:100%">'
        f"{''.join(drawn)}</svg><div>{key}</div>"
    )
