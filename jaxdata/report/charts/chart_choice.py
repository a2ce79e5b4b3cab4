"""Which charts a report has, and which colour each source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from jaxdata.report.charts.bar_charts import bytes_chart, epochs_chart, packing_chart
from jaxdata.report.charts.curriculum_chart import curriculum_chart
from jaxdata.report.charts.length_chart import length_chart
from jaxdata.report.gathering import Report


def charts(report: Report) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name of each chart, and what draws it as SVG."""
    if report.packing and report.packing.costs:
        yield "packing", partial(packing_chart, report.packing)
    if report.curves:
        yield "curriculum", partial(curriculum_chart, report.curves)
        yield "epochs", partial(epochs_chart, report.curves)
    facts = report.tokens.sources if report.tokens else []
    known = [(each, _color(report, each.name)) for each in facts if each.bytes_a_token is not None]
    if known:
        yield "bytes", partial(bytes_chart, known)


def length_charts(report: Report) -> Iterator[tuple[str, str]]:
    """The lengths of each source that is drawn, as SVG."""
    for name, found in report.lengths.items():
        if found.documents:
            yield name, length_chart(name, found, report.seq_len, _color(report, name))


def _color(report: Report, name: str) -> int:
    """The number of a source's colour: its number in the run, or in no run the next."""
    run = report.curves.names if report.curves else []
    names = [*run, *(each.partition("/")[2] for each in report.drawn)]
    return list(dict.fromkeys(names)).index(name.partition("/")[2])
