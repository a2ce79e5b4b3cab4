"""The report as one page of HTML that fetches nothing, and its charts as images."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdata.errors import MissingExtra
from jaxdata.look.terminal import counted, printable
from jaxdata.report.charts import (
    bytes_chart,
    curriculum_chart,
    epochs_chart,
    length_chart,
    packing_chart,
    short,
)
from jaxdata.report.gathering import Report

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = files("jaxdata.report") / "templates"


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as one page of HTML, which holds all that it shows.

    Its Content-Security-Policy allows its own style and script, by their hashes, and nothing else:
    whatever text a dataset holds, nothing in it runs and nothing is fetched.

    Raises:
        MissingExtra: jinja2 or matplotlib is not installed.
    """
    _write(Path(path), page(report))


def write_images(report: Report, folder: str | os.PathLike[str]) -> list[str]:
    """Write the charts of a report as SVG files, which read in light and dark; returns the names.

    Raises:
        MissingExtra: jinja2 or matplotlib is not installed.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name, image in _images(report):
        _write(Path(folder) / name, image)
        written.append(name)
    return written


def page(report: Report) -> str:
    """The report as HTML."""
    style, script = _text("colors.css") + _text("style.css"), _text("page.js")
    template = _environment().get_template("page.html.j2")
    return template.render(
        report=report,
        **_headlines(report),
        **_charts(report),
        style=_safe(style),
        script=_safe(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtra("report", "jinja2") from error
    loader = PackageLoader("jaxdata.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    made.filters |= {
        "count": "{:,}".format,
        "fixed": lambda number, digits: f"{number:,.{digits}f}",
        "printable": lambda text: printable(str(text)),
    }
    return made


def _safe(text: str) -> Any:
    """Text of ours that is not escaped."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own files, and SVG whose texts are escaped


def _headlines(report: Report) -> dict[str, Any]:
    """The top of the page."""
    from jaxdata import __version__

    sources = report.described["sources"]
    documents = sum(each["documents"] for each in sources.values())
    tokens = sum(each["tokens"] for each in sources.values())
    now = report.curves.now if report.curves else None
    return {
        "title": printable(report.url),
        "lead": _lead(report),
        "tiles": list(_tiles(report, documents, tokens)),
        "parts": list(_parts(report)),
        "sources": list(sources.items()),
        "all_documents": documents,
        "all_tokens": tokens or 1,
        "all_tokens_shown": tokens,
        "trained_so_far": sum((now or {}).values()) or 1,
        "version": __version__,
    }


def _lead(report: Report) -> str:
    if report.mixture is None:
        return "A dataset, from its documents to its tokens."
    found = f"{counted(report.mixture['rows'], 'row')} of {report.mixture['seq_len']:,} slots"
    done = f", {sum(report.curves.now.values()):,} tokens of it trained" if (
        report.curves and report.curves.now is not None
    ) else ""
    return f"A dataset and a run over it: {found}, {report.mixture['tokens']:,} tokens{done}."


def _tiles(report: Report, documents: int, tokens: int) -> Iterator[tuple[str, str]]:
    sources = report.described["sources"].values()
    yield "documents", f"{documents:,}"
    yield "tokens", short(tokens) if tokens >= 1e7 else f"{tokens:,}"
    yield "sources", f"{len(sources):,}"
    text = [(each.get("statistics") or {}).get("text_bytes") for each in sources]
    if text and all(isinstance(each, int) for each in text):
        yield "text", f"{sum(text) / 1e6:,.1f} MB"
    if report.tokens and report.tokens.vocab_size:
        yield "vocabulary", f"{report.tokens.vocab_size:,}"
    if report.batch:
        yield "steps", f"{report.batch.steps:,}"


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    yield "sources", "Sources"
    if report.packing and report.packing.costs:
        yield "packing", "Packing"
    if report.curves and report.mixture:
        yield "curriculum", "Curriculum"
        yield "epochs", "Epochs"
    if report.batch:
        yield "batch", "One batch"
    yield "documents", "Documents"
    yield "left-out", "Left out"
    if report.tokens:
        yield "tokenizer", "Tokenizer"


def _charts(report: Report) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(
        ("packing_chart", "curriculum_chart", "epochs_chart", "bytes_chart"), ""
    )
    made["length_charts"] = [
        (name, _safe(length_chart(name, found, report.seq_len, _color(report, name))))
        for name, found in report.lengths.items()
        if found.documents
    ]
    drawn = {name: _safe(draw()) for name, draw in _drawings(report)}
    return made | {f"{name}_chart": chart for name, chart in drawn.items()}


def _drawings(report: Report) -> Iterator[tuple[str, Any]]:
    if report.packing and report.packing.costs:
        yield "packing", partial(packing_chart, report.packing)
    if report.curves and report.mixture:
        yield "curriculum", partial(curriculum_chart, report.curves)
        yield "epochs", partial(epochs_chart, report.curves)
    if report.tokens and any(each.bytes_a_token is not None for each in report.tokens.sources):
        yield "bytes", partial(bytes_chart, report.tokens, partial(_color, report))


def _color(report: Report, name: str) -> int:
    """The number of a source's colour: that of the run's, where it is in it."""
    split, _, source = name.partition("/")
    run = report.curves.names if report.curves else []
    if source in run:
        return run.index(source)
    names = list(dict.fromkeys(each.partition("/")[2] for each in report.drawn))
    return len(run) + [each for each in names if each not in run].index(source)


def _images(report: Report) -> Iterator[tuple[str, str]]:
    colors = _text("colors.css")
    for name, draw in _drawings(report):
        yield f"{name}.svg", _standing_alone(draw(), colors)
    if report.batch:
        template = _environment().get_template("batch_image.svg.j2")
        yield "batch.svg", template.render(batch=report.batch, colors=_safe(colors))


def _standing_alone(svg: str, colors: str) -> str:
    """A chart with the colours that it names, on a ground of its own."""
    ground = '<rect width="100%" height="100%" rx="8" fill="var(--surface)" />'
    begin = svg.index("</desc>") + len("</desc>")
    font = "font-family=\"system-ui, -apple-system, 'Segoe UI', sans-serif\" "
    whole = f"{svg[:begin]}<style>{colors}</style>{ground}{svg[begin:]}"
    return whole.replace("<svg ", f"<svg {font}", 1)


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    whole = path.with_name(f".{path.name}.part")
    whole.write_text(text, encoding="utf-8")
    whole.replace(path)
