"""The charts of a report as files of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jaxdata.report.charts.chart_choice import charts
from jaxdata.report.gathering import Report
from jaxdata.report.templating import fill, ours, text_of, write_whole

_SIZE = re.compile(r'viewBox="0 0 (\S+) ([^"]+)"')
_MARGIN = 12


def write_images(report: Report, folder: str | os.PathLike[str]) -> list[str]:
    """Write the charts of a report, and its batch, as SVG files; returns their names.

    Each carries its colours for light and dark, so that it reads in both where a page shows it.

    Raises:
        MissingExtra: jinja2 or matplotlib is not installed.
    """
    colors = text_of("colors.css")
    made = {f"{name}.svg": _standing_alone(draw(), colors) for name, draw in charts(report)}
    if report.batch:
        made["batch.svg"] = fill("batch_image.svg.j2", batch=report.batch, colors=ours(colors))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, image in made.items():
        write_whole(Path(folder) / name, image)
    return list(made)


def _standing_alone(svg: str, colors: str) -> str:
    """A chart with the colours that it names, on a ground of its own."""
    head, end, rest = svg.partition("</desc>")
    width, height = (float(each) + 2 * _MARGIN for each in _SIZE.findall(head)[0])
    place = f'width="{width:g}" height="{height:g}"'
    font = "system-ui, -apple-system, 'Segoe UI', sans-serif"
    head = re.sub(r' (width|height|viewBox)="[^"]*"', "", head)
    box = f'<svg viewBox="{-_MARGIN} {-_MARGIN} {width:g} {height:g}" {place} font-family="{font}" '
    ground = f'<rect x="{-_MARGIN}" y="{-_MARGIN}" {place} rx="8" fill="var(--surface)" />'
    return head.replace("<svg ", box, 1) + end + f"<style>{colors}</style>{ground}" + rest
