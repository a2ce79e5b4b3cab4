"""What charts share: matplotlib in the colours of the page, as SVG that scripts can recolour."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from jaxdata.base.errors import MissingExtra
from jaxdata.base.wording import COLORS

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


_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_TEXT = re.compile(r"^(\d+(?:\.\d+)?)px")
ElementTree.register_namespace("", _SVG)


def figure_svg(figure: Figure, title: str, description: str, prefix: str) -> str:
    """A chart as an `<svg>` that a page or a file can hold; ids begin with `prefix`."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Text stays text: the reader's fonts draw what ours here have no glyph for.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(buffer, format="svg", transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 - matplotlib wrote it
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"}:
                parent.remove(child)
    used = {link.lstrip("#") for each in root.iter() for link in _links(each)}
    for each in root.iter():
        _plain(each, used, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    _, _, width, height = root.attrib["viewBox"].split()
    root.attrib |= {"role": "img", "class": "chart", "width": width, "height": height}
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        said = ElementTree.Element(f"{{{_SVG}}}{tag}")
        said.text = text
        root.insert(place, said)
    return ElementTree.tostring(root, encoding="unicode")


def _links(element: ElementTree.Element) -> list[str]:
    clips = re.findall(r"url\((#[^)]+)\)", " ".join(element.attrib.values()))
    return [*clips, element.attrib.get(_LINK, "")]


def _plain(element: ElementTree.Element, used: set[str], prefix: str) -> None:
    """Turn the style of an element into attributes, and keep only ids that are used."""
    attributes = element.attrib
    for declaration in attributes.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            size = _TEXT.match(value)
            attributes["font-size"] = size[1] if size else "11"
            if "bold" in value or re.search(r"\b[67]00\b", value):
                attributes["font-weight"] = "600"
        elif name and name not in {"font-family", "font-style", "font-variant", "font-stretch"}:
            attributes[name] = value
    for name in ("fill", "stroke"):
        if (color := attributes.get(name, "").lower()) in VARIABLES:
            attributes[name] = f"var(--{VARIABLES[color]})"
    if element.tag == f"{{{_SVG}}}text" and "fill" not in attributes:
        attributes["fill"] = "var(--ink)"
    if (known := attributes.pop("id", None)) in used:
        attributes["id"] = f"{prefix}-{known}"
    for name, value in attributes.items():
        if value.startswith("url(#"):
            attributes[name] = f"url(#{prefix}-{value[5:]}"
        elif name == _LINK and value.startswith("#"):
            attributes[name] = f"#{prefix}-{value[1:]}"
