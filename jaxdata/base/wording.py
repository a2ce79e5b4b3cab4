"""Numbers in sentences for people, and small tables of HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from html import escape

_UNITS = ("kB", "MB", "GB", "TB")


def counted(number: int, what: str) -> str:
    """The number and its noun, in the plural except for one.

    >>> counted(1, "shard"), counted(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def sized(size: float) -> str:
    """A number of bytes, in units of 1,000.

    >>> sized(1), sized(999), sized(2_560), sized(3.21e6), sized(4e16)
    ('1 byte', '999 bytes', '2.6 kB', '3.2 MB', '40,000.0 TB')
    """
    if size < 1_000:
        return counted(round(size), "byte")
    unit = -1
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:,.1f} {_UNITS[unit]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the known one that was meant, if one is near.

    >>> nearest("weigth", ["weight", "seed"]), nearest("x", ["seed"])
    ("; did you mean 'weight'?", '')
    """
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shortened(text: str, most: int = 120) -> str:
    """A text of at most so many characters, with an ellipsis where it was cut.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def reasons(counts: dict[str, int], most: int = 3, noun: str = "reason") -> str:
    """Counts by reason, the most common first, and how many reasons are not named.

    >>> reasons({"not JSON": 2, "no text": 1_000})
    '1,000 no text; 2 not JSON'
    """
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    more = [f"{counted(len(ordered) - most, f'other {noun}')}"] if len(ordered) > most else []
    return "; ".join([f"{count:,} {reason}" for reason, count in ordered[:most]] + more)


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
GREYS = ("#6f6f78", "#96969e", "#b9b9c0")
"""for what is no source"""
HATCHED = "url(#jaxdata-padding)"
"""what padding is filled with, where :func:`hatch` is in the drawing"""
_RIGHT = ' style="text-align:right"'


def on_one_line(text: object) -> str:
    r"""A text with its invisible characters written out.

    >>> print(on_one_line("a\n\x1b[31m"))
    a\n\x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def visible(text: object) -> str:
    r"""A text that can stand in HTML: escaped, and invisible characters written out.

    >>> print(visible("<b> & \u202e"))
    &lt;b&gt; &amp; \u202e
    """
    return escape(on_one_line(text))


def color_of(number: int) -> str:
    """The colour of a source by its number; where there are many, the last ones are grey."""
    return COLORS[min(number, len(COLORS) - 1)]


def hatch() -> str:
    """The pattern of padding, as SVG."""
    return (
        '<pattern id="jaxdata-padding" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="1.5" height="5" fill="#7d7d85"/></pattern>'
    )


def table_html(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a title; numbers are aligned to the right.

    >>> table_html("two", ["name", "size"], [("a", 1_000)]).count("1,000</td>")
    1
    """
    head = "".join(f'<th scope="col">{visible(each)}</th>' for each in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="jaxdata"><strong>{visible(title)}</strong><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f"<td{_RIGHT}>{said}</td>"
    return f"<td>{visible(value)}</td>"
