"""SVG of matplotlib's, made fit for our pages: colours by variables, no style, one description.

A page with a strict Content-Security-Policy applies no inline style, so each style becomes
attributes; and a colour of `VARIABLES` becomes one, so that a chart reads in light and dark.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from jaxdata.report.charts.drawing import VARIABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
