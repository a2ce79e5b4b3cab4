"""Templates of the page, filled in with everything escaped."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxdata.errors import MissingExtra
from jaxdata.look.terminal import printable


def check_installed() -> None:
    """Raise MissingExtra for what a page is made with, before a report is gathered for minutes."""
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra("report", package)


def fill(template: str, **values: Any) -> str:
    """A template of `templates/` filled in; texts are escaped, except those of :func:`ours`.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtra("report", "jinja2") from error
    loader = PackageLoader("jaxdata.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "count": "{:,}".format,
        "fixed": lambda number, digits: f"{number:,.{digits}f}",
        "printable": lambda text: printable(str(text)),
    }
    return environment.get_template(template).render(**values)


def ours(text: str) -> Any:
    """A text that is not escaped: a file of ours, or SVG whose texts are escaped already."""
    try:
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("report", "jinja2") from error
    return Markup(text)  # noqa: S704 - see above


def text_of(name: str) -> str:
    """A file of `templates/`."""
    return (files("jaxdata.report") / "templates" / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """How a Content-Security-Policy names a style or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
