"""Read costs as tables of at most 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxdata.look.read_costs.cost_warnings import count_text, dear, size_text, too_small
from jaxdata.look.read_costs.costs import Costs, ReadCosts, Way
from jaxdata.look.terminal import counted, plain_table, printable

LEGEND = (
    "x data: bytes of all hosts over those of the dataset; held, cache: of a host at a time; a "
    "host: its bytes in an epoch"
)


def cost_tables(costs: ReadCosts) -> Iterator[Table]:
    """One table for each way of fetching: cached pages, exact ranges."""
    each = {printable(name): source for name, source in costs.sources.items()} | {
        "total": costs.total
    }
    yield _pages(costs, each)
    yield _ranges(costs, each)


def _pages(costs: ReadCosts, each: dict[str, Any]) -> Table:
    cluster = costs.cluster
    title = (
        f"{counted(cluster.hosts, 'host')}, batches of {cluster.batch_size:,}; pages of "
        f"{size_text(cluster.page_bytes)}, each fetched once a host"
    )
    columns = ["GETs", "bytes", "x data", "held", "cache", "first batch", "a host"]
    table = plain_table(title, ["source"], columns)
    for name, source in each.items():
        held = (f"{source.held_pages:,.0f}", size_text(source.held_bytes))
        table.add_row(Text(name), *_cells(source, source.pages, cluster.hosts, held))
    return table


def _ranges(costs: ReadCosts, each: dict[str, Any]) -> Table:
    columns = ["GETs", "bytes", "x data", "first batch", "a host"]
    table = plain_table("exact ranges, merged in each batch, no cache", ["source"], columns)
    for name, source in each.items():
        table.add_row(Text(name), *_cells(source, source.ranges, costs.cluster.hosts, ()))
    return table


def _cells(source: Costs, way: Way, hosts: int, held: tuple[str, ...]) -> list[str]:
    return [
        count_text(way.gets),
        size_text(way.bytes),
        f"{source.over(way):.2f}",
        *held,
        size_text(way.first_batch_bytes),
        size_text(source.host_bytes(way, hosts)),
    ]


def as_json(costs: ReadCosts) -> dict[str, Any]:
    """All figures, as plain values."""
    refused = too_small(costs)
    return {
        **asdict(costs.cluster),
        "steps": costs.steps,
        "exact": costs.exact,
        "followed": costs.says,
        "ok": refused is None,
        "warnings": dear(costs) + ([refused] if refused else []),
        "total": _figures(costs.total, costs.cluster.hosts),
        "sources": {
            name: {
                **_figures(source, costs.cluster.hosts),
                "lanes": source.lanes,
                "chunk_bytes": source.chunk_bytes,
                "rows_a_batch": costs.rows_a_batch(name),
            }
            for name, source in costs.sources.items()
        },
    }


def _figures(costs: Costs, hosts: int) -> dict[str, Any]:
    ways = {"pages": costs.pages, "ranges": costs.ranges}
    return {
        "rows": costs.rows,
        "epochs": costs.epochs,
        "file_bytes": costs.file_bytes,
        "held_pages": costs.held_pages,
        "held_bytes": costs.held_bytes,
        **{
            name: {
                **asdict(way),
                "over_dataset": costs.over(way),
                "host_epoch_bytes": costs.host_bytes(way, hosts),
            }
            for name, way in ways.items()
        },
    }
