"""The report as one page of HTML that fetches nothing, and its charts as files."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxdata.base.errors import MissingExtra
from jaxdata.base.version import VERSION
from jaxdata.look.report.charts import charts, length_charts, short
from jaxdata.look.report.gathering import Report
from jaxdata.look.terminal import counted, printable


def check_installed() -> None:
    """Raise MissingExtra without Jinja2, before a report is gathered for minutes."""
    if find_spec("jinja2") is None:
        raise MissingExtra("report", "jinja2")


def fill(template: str, **values: Any) -> str:
    """A template of `templates/` filled in; texts are escaped, except those of :func:`ours`.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    check_installed()
    loader = PackageLoader("jaxdata.look.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "count": "{:,}".format,
        "fixed": lambda number, digits: f"{number:,.{digits}f}",
        "printable": lambda text: printable(str(text)),
    }
    return environment.get_template(template).render(**values)


def ours(text: str) -> Any:
    """A text that is not escaped: a file of ours, or SVG whose texts are escaped already."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - see above


def text_of(name: str) -> str:
    """A file of `templates/`."""
    return (files("jaxdata.look.report") / "templates" / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """How a Content-Security-Policy names a style or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as one page of HTML, which holds all that it shows.

    Its Content-Security-Policy allows its own style and script, by their hashes, and nothing else:
    whatever text a dataset holds, nothing in it runs and nothing is fetched.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    write_whole(Path(path), page(report))


def page(report: Report) -> str:
    """The report as HTML; see `write_page`."""
    style, script = text_of("colors.css") + text_of("style.css"), text_of("page.js")
    return fill(
        "page.html.j2",
        report=report,
        title=printable(report.url),
        lead=_lead(report),
        tiles=list(_tiles(report)),
        parts=list(_parts(report)),
        sources=list(report.described["sources"].items()),
        documents=_total(report, "documents"),
        tokens=_total(report, "tokens"),
        charts={name: ours(chart.inline()) for name, chart in charts(report).items()},
        length_charts=[(name, ours(chart.inline())) for name, chart in length_charts(report)],
        version=VERSION,
        style=ours(style),
        script=ours(script),
        style_hash=source_hash(style),
        script_hash=source_hash(script),
    )


def _total(report: Report, what: str) -> int:
    return sum(each[what] for each in report.described["sources"].values())


def _lead(report: Report) -> str:
    if report.mixture is None:
        return "A dataset, from its documents to its tokens."
    rows, seq_len, tokens = (report.mixture[each] for each in ("rows", "seq_len", "tokens"))
    done = report.curves.now if report.curves else None
    so_far = "" if done is None else f", {sum(done.values()):,} of them so far"
    return (
        f"A dataset and a run over it: {counted(rows, 'row')} of {seq_len:,} slots, {tokens:,} "
        f"trained tokens{so_far}."
    )


def _tiles(report: Report) -> Iterator[tuple[str, str]]:
    """The numbers at the top."""
    sources, tokens = report.described["sources"].values(), _total(report, "tokens")
    yield "documents", f"{_total(report, 'documents'):,}"
    yield "tokens", short(tokens) if tokens >= 1e8 else f"{tokens:,}"
    yield "sources", f"{len(sources):,}"
    sizes = [(each.get("statistics") or {}).get("text_bytes") for each in sources]
    text = [size for size in sizes if isinstance(size, int)]
    if text and len(text) == len(sizes):
        yield "text", f"{sum(text) / 1e6:,.1f} MB"
    if report.tokens and report.tokens.vocab_size:
        yield "vocabulary", f"{report.tokens.vocab_size:,}"
    if report.batch:
        yield "steps", f"{report.batch.steps:,}"


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    """Anchors of the parts that the page has, and their names."""
    has = {
        "packing": report.packing and report.packing.costs,
        "curriculum": report.curves,
        "epochs": report.curves,
        "batch": report.batch,
        "views": report.views,
        "tokenizer": report.tokens,
    }
    names = [
        "sources",
        "packing",
        "curriculum",
        "epochs",
        "batch",
        "documents",
        "left-out",
        "views",
        "tokenizer",
    ]
    for anchor in names:
        if has.get(anchor, True):
            name = "Views and copies" if anchor == "views" else anchor.replace("-", " ")
            yield anchor, name[0].upper() + name[1:]


def write_images(report: Report, folder: str | os.PathLike[str]) -> list[str]:
    """Write the charts of a report, and its batch, as SVG files; returns their names.

    Each carries its colours for light and dark, so that it reads in both where a page shows it.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    colors = text_of("colors.css")
    made = {f"{name}.svg": chart.file(colors) for name, chart in charts(report).items()}
    if report.batch:
        made["batch.svg"] = fill("batch_image.svg.j2", batch=report.batch, colors=ours(colors))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, image in made.items():
        write_whole(Path(folder) / name, image)
    return list(made)
