"""The report as one page of HTML that fetches nothing, and its charts as files."""

import base64
import hashlib
import json
import os
from bisect import bisect_right
from importlib.resources import files
from pathlib import Path
from typing import Any

from jaxdata.base.errors import extra_module
from jaxdata.look.report.charts import NARROW, WIDE, charts, color_name, color_number, short
from jaxdata.look.report.gathering import Report, Sample
from jaxdata.look.terminal import printable, printable_lines
from jaxdata.storage.small_files import write_small


def check_installed() -> None:
    """Raise MissingExtra without Jinja2, before a report is gathered for minutes."""
    extra_module("report", "jinja2")


def fill(template: str, **values: Any) -> str:
    """A template of `templates/` filled in; texts are escaped, except those of :func:`ours`.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    jinja = extra_module("report", "jinja2")
    loader = jinja.PackageLoader("jaxdata.look.report")
    environment = jinja.Environment(loader=loader, autoescape=True, undefined=jinja.StrictUndefined)
    environment.filters |= {
        "count": _count,
        "exact": "{:,}".format,
        "fixed": lambda number, digits: f"{number:,.{digits}f}",
        "value": _value,
        "printable": lambda text: printable(str(text)),
        "printable_lines": printable_lines,
    }
    return str(environment.get_template(template).render(**values))


def ours(text: str) -> Any:
    """A text that is not escaped: a file of ours, or SVG whose texts are escaped already."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - see above


def _count(number: float | None) -> Any:
    """A number as people say it; what it is exactly stays in the page where that is less."""
    if number is None:
        return ""
    said = short(number)
    exact = f'<data value="{number}" title="{number:,}">{said}</data>'
    return said if said == f"{number:,}" else ours(exact)


def _value(number: object, digits: int) -> Any:
    """A measured number, rounded; nothing if there is none."""
    if not isinstance(number, int | float):
        return ""
    return ours(f'<data value="{number!r}">{number:,.{digits}f}</data>')


def text_of(name: str) -> str:
    """A file of `templates/`."""
    return (files("jaxdata.look.report") / "templates" / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """How a Content-Security-Policy names a style or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def write_page(report: Report, path: str | os.PathLike[str], *, reload: int | None = None) -> None:
    """Write a report as one page of HTML, which holds all that it shows.

    With `reload` the page opens itself again after so many seconds, from wherever it was opened.

    Its Content-Security-Policy allows its own style and script, by their hashes, and nothing else:
    whatever text a dataset holds, nothing in it runs and nothing is fetched.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    style, script = text_of("colors.css") + text_of("style.css"), text_of("page.js")
    wide, narrow = charts(report, WIDE), charts(report, NARROW)
    sources = report.described["sources"]
    samples, choices = _browser(report.samples)
    made = fill(
        "page.html.j2",
        report=report,
        subject=report.subject,
        reload=reload,
        title=printable(report.described["dataset"]),
        tiles=_tiles(report),
        sources=list(sources.items()),
        samples=samples,
        choices=choices,
        charts={n: ours(chart.svg("wide") + narrow[n].svg("narrow")) for n, chart in wide.items()},
        colors={name: f"var(--{color_name(color_number(report, name))})" for name in sources},
        style=ours(style),
        script=ours(script),
        style_hash=source_hash(style),
        script_hash=source_hash(script),
    )
    write_small(path, made.encode())


_LENGTHS = (0, 64, 256, 1024, 4096, 16384)
_VALUES = 24  # of a field that is chosen by


def _browser(samples: list[Sample]) -> tuple[list[tuple[Sample, str]], dict[str, list[str]]]:
    """Each sample with its values as JSON, `"field=value"`, and by what they are chosen.

    Kept fields are, of which a few values come again.
    """
    values: dict[str, list[str]] = {}
    for one in samples:
        for key, value in one.kept.items():
            values.setdefault(key, []).append(value)
    few = {k for k, some in values.items() if len({*some}) <= min(_VALUES, len(some) - 1)}
    lengths = [f"below {_LENGTHS[1]} tokens", *(f"from {low:,} tokens" for low in _LENGTHS[1:])]
    tagged, choices = [], {"source": dict[str, None](), "length": dict.fromkeys(lengths)}
    for one in samples:
        length = lengths[bisect_right(_LENGTHS, one.length) - 1]
        own = {"source": printable(one.source), "length": length}
        own |= {key: value for key, value in one.kept.items() if key in few}
        for key, value in own.items():
            choices.setdefault(key, {})[value] = None
        tagged.append((one, json.dumps([f"{key}={value}" for key, value in own.items()])))
    return tagged, {what: list(each) for what, each in choices.items()}


def _tiles(report: Report) -> dict[str, int]:
    """The numbers at the top."""
    sources = report.described["sources"].values()
    found = {"sources": len(sources)}
    found |= {what: sum(each[what] for each in sources) for what in ("documents", "tokens")}
    if "tokenizer" in report.described:
        found["vocabulary"] = report.described["tokenizer"]["vocab_size"]
    if report.mixture:
        found["trained tokens"] = report.mixture["tokens"]
    return found | ({"steps": report.batch["steps"]} if report.batch else {})


def write_images(report: Report, folder: str | os.PathLike[str]) -> list[str]:
    """Write the charts of a report, and its batch, as SVG files; returns their names.

    Each carries its colours for light and dark, so that it reads in both where a page shows it.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    made = {
        f"{name}.svg": fill("chart_image.svg.j2", chart=chart, drawn=ours(chart.svg()))
        for name, chart in charts(report, WIDE).items()
    }
    if report.batch:
        made["batch.svg"] = fill("batch_image.svg.j2", batch=report.batch)
    for name, image in made.items():
        write_small(Path(folder) / name, image.encode())
    return list(made)
