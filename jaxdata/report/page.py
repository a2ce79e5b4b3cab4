"""The report as one page of HTML that fetches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxdata.look.terminal import counted, printable
from jaxdata.report.charts.chart_choice import charts, length_charts
from jaxdata.report.charts.drawing import short
from jaxdata.report.gathering import Report
from jaxdata.report.templating import fill, ours, source_hash, text_of, write_whole


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report as one page of HTML, which holds all that it shows.

    Its Content-Security-Policy allows its own style and script, by their hashes, and nothing else:
    whatever text a dataset holds, nothing in it runs and nothing is fetched.

    Raises:
        MissingExtra: jinja2 or matplotlib is not installed.
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
        charts={name: ours(draw()) for name, draw in charts(report)},
        length_charts=[(name, ours(svg)) for name, svg in length_charts(report)],
        version=_version(),
        style=ours(style),
        script=ours(script),
        style_hash=source_hash(style),
        script_hash=source_hash(script),
    )


def _version() -> str:
    try:
        return version("jaxdata")
    except PackageNotFoundError:
        return "from a checkout"


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
